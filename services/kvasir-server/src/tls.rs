//! TLS by rustls: certificates that are reloaded when they change, and client certificates if a CA is given.

use std::{path::Path, sync::Arc};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::{WebPkiClientVerifier, danger::ClientCertVerifier},
        version::{TLS12, TLS13},
    },
};

use crate::{config::TlsConfig, reload::ReloadableFiles};

/// The TLS configuration of the listener.
#[derive(Debug)]
pub(crate) struct Tls(ReloadableFiles<ServerConfig>);

impl Tls {
    /// Reads certificate, key and, if given, the CA of client certificates.
    ///
    /// # Errors
    /// What is wrong: at start they must be usable; later the last good ones stay in force.
    pub(crate) fn open(config: &TlsConfig) -> Result<Self, String> {
        let mut paths: Vec<&Path> = vec![&config.certificate_file, &config.key_file];
        paths.extend(config.client_ca_file.as_deref());
        ReloadableFiles::open(&paths, |files| {
            server_config(&files[0], &files[1], files.get(2).map(Vec::as_slice))
        })
        .map(Self)
        .map_err(|problem| format!("tls: {problem}"))
    }

    pub(crate) fn reload(&self) {
        self.0.reload();
    }

    pub(crate) fn has_rejected_files(&self) -> bool {
        self.0.is_rejected()
    }

    /// For the next connection, with the certificates now in force.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.get())
    }
}

fn server_config(certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> Result<ServerConfig, String> {
    let chain = certificates(certificate, "tls.certificate_file")?;
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("tls.key_file has no usable key: {e}"))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|e| e.to_string())?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => builder.with_client_cert_verifier(verifier(ca, provider)?),
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|e| format!("the certificate and the key do not match: {e}"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn verifier(
    ca: &[u8],
    provider: Arc<tokio_rustls::rustls::crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca, "tls.client_ca_file")? {
        roots.add(certificate).map_err(|e| format!("tls.client_ca_file: {e}"))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|e| format!("tls.client_ca_file: {e}"))
}

fn certificates(pem: &[u8], setting: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|e| format!("{setting} is not valid PEM: {e}"))?;
    if chain.is_empty() { Err(format!("{setting} contains no certificate")) } else { Ok(chain) }
}
