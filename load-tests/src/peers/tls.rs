//! TLS of the servers that are compared: one certificate for all of them, and a client that trusts nothing else.

use std::{
    io::{self, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    sync::{Arc, LazyLock},
};

use anyhow::Result;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName},
};

use crate::http;

/// Where all servers are.
const HOST: &str = "127.0.0.1";

struct Identity {
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    key_pem: String,
}

static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let made = generate_simple_self_signed([HOST.to_owned()]);
    let CertifiedKey { cert, signing_key } = made.expect("an address is a valid name");
    Identity {
        certificate: cert.der().clone(),
        certificate_pem: cert.pem(),
        key_pem: signing_key.serialize_pem(),
    }
});

/// Paths of the certificate and of its key, as files that servers read.
pub(super) fn files(directory: &Path) -> Result<[String; 2]> {
    let paths = ["tls.crt", "tls.key"].map(|name| directory.join(name));
    for (path, pem) in paths.iter().zip([&IDENTITY.certificate_pem, &IDENTITY.key_pem]) {
        std::fs::write(path, pem)?;
    }
    Ok(paths.map(|path| path.display().to_string()))
}

/// A connection whose handshake comes with the first request.
pub(super) fn connect(socket: TcpStream) -> Result<StreamOwned<ClientConnection, ReadAhead>> {
    let mut roots = RootCertStore::empty();
    roots.add(IDENTITY.certificate.clone())?;
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection = ClientConnection::new(Arc::new(config), ServerName::try_from(HOST)?)?;
    Ok(StreamOwned::new(connection, ReadAhead(BufReader::with_capacity(http::BUFFER_BYTES, socket))))
}

/// A socket that is read in long pieces: rustls asks for 4 KiB at a time.
#[derive(Debug)]
pub(super) struct ReadAhead(BufReader<TcpStream>);

impl Read for ReadAhead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for ReadAhead {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}
