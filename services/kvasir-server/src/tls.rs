//! TLS by rustls: certificates that are reloaded when they change, and client certificates if a CA is given.

use std::{path::Path, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};
use tokio_rustls::{
    Accept, TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::{CryptoProvider, aws_lc_rs},
        pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
        server::{WebPkiClientVerifier, danger::ClientCertVerifier},
        version::{TLS12, TLS13},
    },
};

use crate::{config::TlsConfig, limits, reload::ReloadableFiles};

/// The TLS configuration of the listener.
#[derive(Debug)]
pub(crate) struct Tls {
    files: ReloadableFiles<LoadedTls>,
    reloads: watch::Sender<()>,
}

/// The configuration that the files make.
#[derive(Debug)]
struct LoadedTls {
    server: Arc<ServerConfig>,
    /// `None`: clients need no certificate.
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl Tls {
    /// Reads certificate, key and, if given, the CA of client certificates.
    ///
    /// # Errors
    /// What is wrong: at start they must be usable; later the last good ones stay in force.
    pub(crate) fn open(config: &TlsConfig) -> Result<Self, String> {
        let mut paths: Vec<&Path> = vec![&config.certificate_file, &config.key_file];
        paths.extend(config.client_ca_file.as_deref());
        let files = ReloadableFiles::open(&paths, |files| {
            LoadedTls::new(&files[0], &files[1], files.get(2).map(Vec::as_slice))
        });
        let files = files.map_err(|problem| format!("tls: {problem}"))?;
        Ok(Self { files, reloads: watch::Sender::new(()) })
    }

    pub(crate) fn reload(&self) {
        if self.files.reload_if(|_, _| Ok(())) {
            self.reloads.send_replace(());
        }
    }

    pub(crate) fn has_rejected_files(&self) -> bool {
        self.files.is_rejected()
    }

    /// The handshake of a connection, with the certificates now in force, and a receiver that is told of later ones.
    pub(crate) fn accept<S>(&self, stream: S) -> (Accept<S>, watch::Receiver<()>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // First: a reload in between is one of the later ones.
        let reloads = self.reloads.subscribe();
        let acceptor = TlsAcceptor::from(Arc::clone(&self.files.get().server));
        let handshake = acceptor.accept_with(stream, |connection| {
            connection.set_buffer_limit(Some(limits::TLS_AHEAD_BYTES_MAX));
        });
        (handshake, reloads)
    }

    /// Resolves once reloaded certificates do not accept a client that connected before: its CA was removed, or its own
    /// certificate has expired since.
    pub(crate) async fn refused(&self, client: &[CertificateDer<'_>], mut reloads: watch::Receiver<()>) {
        while reloads.changed().await.is_ok() {
            if !self.files.get().accepts(client) {
                return;
            }
        }
        std::future::pending().await
    }
}

impl LoadedTls {
    fn new(certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> Result<Self, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let clients = client_ca.map(|ca| verifier(ca, Arc::clone(&provider))).transpose()?;
        let server = Arc::new(server_config(certificate, key, provider, clients.clone())?);
        Ok(Self { server, clients })
    }

    fn accepts(&self, client: &[CertificateDer<'_>]) -> bool {
        self.clients.as_ref().is_none_or(|clients| {
            client.split_first().is_some_and(|(own, intermediates)| {
                clients.verify_client_cert(own, intermediates, UnixTime::now()).is_ok()
            })
        })
    }
}

fn server_config(
    certificate: &[u8],
    key: &[u8],
    provider: Arc<CryptoProvider>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<ServerConfig, String> {
    let chain = certificates(certificate, "tls.certificate_file")?;
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("tls.key_file has no usable key: {e}"))?;
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|e| e.to_string())?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(clients),
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|e| format!("the certificate and the key do not match: {e}"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn verifier(ca: &[u8], provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, String> {
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio_rustls::{
        TlsConnector,
        rustls::{ClientConfig, pki_types::ServerName},
    };

    use super::*;

    #[tokio::test]
    async fn sixteen_records_are_encrypted_ahead_of_a_reader_that_takes_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let (certificate_file, key_file) = (directory.path().join("crt"), directory.path().join("key"));
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        std::fs::write(&certificate_file, cert.pem()).expect("writes");
        std::fs::write(&key_file, signing_key.serialize_pem()).expect("writes");
        let tls = Tls::open(&TlsConfig { certificate_file, key_file, client_ca_file: None }).expect("opens");
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).expect("a certificate");
        let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(client));
        let (near, far) = tokio::io::duplex(32 << 10);
        let (handshake, _reloads) = tls.accept(far);
        let name = ServerName::try_from("localhost").expect("a name");
        let (server, client) = tokio::join!(handshake, connector.connect(name, near));
        let (mut server, _unread) = (server.expect("accepts"), client.expect("connects"));
        let taken = server.write(&vec![7; 1 << 20]).await.expect("writes");
        assert_eq!(taken, limits::TLS_AHEAD_BYTES_MAX);
    }
}
