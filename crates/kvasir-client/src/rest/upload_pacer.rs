//! Paces uploads so that they yield to loads.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::ActiveLoads;
use crate::{
    fetcher::ByteRate,
    limits::{UPLOAD_PAUSE, UPLOAD_PIECE_BYTES},
};

/// Paces an upload: at its configured rate while no load is active; otherwise one piece every
/// [`UPLOAD_PAUSE`], so that the service does not consider it dead.
#[derive(Debug, Clone)]
pub(crate) struct UploadPacer {
    pub(crate) active_loads: Arc<ActiveLoads>,
    pub(crate) rate: Option<ByteRate>,
}

impl UploadPacer {
    /// The object as a body sent at the paced rate.
    pub(crate) fn body(&self, object: Bytes) -> reqwest::Body {
        let start = Instant::now();
        let pieces = futures::stream::unfold(
            (self.clone(), object, 0u64),
            move |(pacer, mut rest, sent)| async move {
                if rest.is_empty() {
                    return None;
                }
                pacer.active_loads.wait_idle(UPLOAD_PAUSE).await;
                if let Some(rate) = pacer.rate {
                    sleep_until(start + rate.time_for(sent)).await;
                }
                let piece = rest.split_to(rest.len().min(UPLOAD_PIECE_BYTES));
                let sent = sent + piece.len() as u64;
                Some((Ok::<_, std::io::Error>(piece), (pacer, rest, sent)))
            },
        );
        reqwest::Body::wrap_stream(pieces)
    }

    /// Waits for a good moment to encode: loads decode on the same cores.
    pub(crate) async fn before_encoding(&self, patience: Duration) {
        self.active_loads.wait_idle(patience).await;
    }
}
