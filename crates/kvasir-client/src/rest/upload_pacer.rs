//! Paces uploads so that they yield to loads.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::ActiveLoads;
use crate::limits::{READ_TIMEOUT, TRANSFER_BYTES_PER_SECOND_MIN, UPLOAD_PAUSE, UPLOAD_PIECE_BYTES};

/// The longest time for a body of `bytes`, to the service or from it.
pub(super) fn transfer_time_max(bytes: usize) -> Duration {
    READ_TIMEOUT.saturating_add(Duration::from_secs(bytes as u64 / TRANSFER_BYTES_PER_SECOND_MIN))
}

/// Paces an upload while a load is active: one piece every [`UPLOAD_PAUSE`], so that the service does not consider it
/// dead.
#[derive(Debug, Clone)]
pub(crate) struct UploadPacer {
    pub(crate) active_loads: Arc<ActiveLoads>,
}

impl UploadPacer {
    /// The object as a body that is sent in pieces.
    pub(crate) fn body(&self, object: Bytes) -> reqwest::Body {
        let pieces = futures::stream::unfold((self.clone(), object), |(pacer, mut rest)| async move {
            if rest.is_empty() {
                return None;
            }
            pacer.active_loads.wait_idle(UPLOAD_PAUSE).await;
            let piece = rest.split_to(rest.len().min(UPLOAD_PIECE_BYTES));
            Some((Ok::<_, std::io::Error>(piece), (pacer, rest)))
        });
        reqwest::Body::wrap_stream(pieces)
    }

    /// The longest time for a body of `bytes`, should loads be active all the while.
    pub(crate) fn time_max(&self, bytes: usize) -> Duration {
        let pauses = u32::try_from(bytes.div_ceil(UPLOAD_PIECE_BYTES)).unwrap_or(u32::MAX);
        transfer_time_max(bytes).saturating_add(UPLOAD_PAUSE.saturating_mul(pauses))
    }

    /// Waits for a good moment to encode: loads decode on the same cores.
    pub(crate) async fn before_encoding(&self, patience: Duration) {
        self.active_loads.wait_idle(patience).await;
    }
}

#[cfg(test)]
mod tests {
    use kvasir_api::StoredChunk;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        time::Instant,
    };

    use super::*;
    use crate::rest::{Client, ClientConfig};

    /// The time in which a body is sent is not the service's silence: a paced upload may take longer than that is borne.
    #[tokio::test]
    async fn a_slow_upload_is_sent_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let config = ClientConfig { read_timeout: Duration::from_millis(400), ..ClientConfig::default() };
        let client = Client::new(url, config).unwrap();
        let _load = client.active_loads.begin(Instant::now());
        let pacer = UploadPacer { active_loads: Arc::clone(&client.active_loads) };
        // Two pieces, and a pause before each.
        let object = Bytes::from(vec![0u8; UPLOAD_PIECE_BYTES + 1]);
        let stored = StoredChunk {
            seq_hash: [2; 32].into(),
            object_digest: [3; 32].into(),
            bytes: object.len() as u64,
            created: true,
        };
        let service = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.read_exact(&mut vec![0u8; object.len()]).await.unwrap();
            let answer = serde_json::to_string(&stored).unwrap();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let (model_id, begun) = ([1; 32].into(), Instant::now());
        let put = client.put_chunk_of(None, &model_id, &stored.seq_hash, object.clone(), Some(&pacer));
        let ((), answered) = tokio::join!(service, put);
        assert_eq!(answered.unwrap(), stored);
        assert!(begun.elapsed() >= 2 * UPLOAD_PAUSE, "{:?}", begun.elapsed());
    }
}
