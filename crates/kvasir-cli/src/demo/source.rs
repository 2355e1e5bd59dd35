//! A minimal server that sends the same bytes to every client. The baselines are fetched from it, so that
//! they pay only for the link.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// A running source; dropping it stops the server.
#[derive(Debug)]
pub struct BytesSource {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl BytesSource {
    /// Serves `bytes` on a free loopback port.
    pub async fn start(bytes: Arc<[u8]>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                // A reader may disconnect early; that is no error of the source.
                let _ = connection.write_all(&bytes).await;
                let _ = connection.shutdown().await;
            }
        });
        Ok(Self { address, task })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for BytesSource {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads all bytes that `address` sends; `expected` only sizes the buffer.
pub async fn read_all(address: SocketAddr, expected: usize) -> std::io::Result<Vec<u8>> {
    let mut connection = TcpStream::connect(address).await?;
    let mut bytes = Vec::with_capacity(expected);
    connection.read_to_end(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_connection_gets_all_bytes() {
        let bytes: Arc<[u8]> = (0..300_000u32).map(|i| i as u8).collect();
        let source = BytesSource::start(Arc::clone(&bytes)).await.expect("starts");
        for _ in 0..2 {
            assert_eq!(read_all(source.address(), 10).await.expect("reads"), *bytes);
        }
    }
}
