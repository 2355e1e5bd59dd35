//! Paces uploads so that they yield to loads.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::ActiveLoads;
use crate::{
    fetcher::ByteRate,
    limits::{READ_TIMEOUT, TRANSFER_BYTES_PER_SECOND_MIN, UPLOAD_PAUSE, UPLOAD_PIECE_BYTES},
};

/// The longest time for a body of `bytes`, to the service or from it.
pub(super) fn transfer_time_max(bytes: usize) -> Duration {
    READ_TIMEOUT.saturating_add(Duration::from_secs(bytes as u64 / TRANSFER_BYTES_PER_SECOND_MIN))
}

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

    /// The longest time for a body of `bytes`, should loads be active all the while.
    pub(crate) fn time_max(&self, bytes: usize) -> Duration {
        let pauses = u32::try_from(bytes.div_ceil(UPLOAD_PIECE_BYTES)).unwrap_or(u32::MAX);
        let paced = self.rate.map_or(Duration::ZERO, |rate| rate.time_for(bytes as u64));
        transfer_time_max(bytes).saturating_add(UPLOAD_PAUSE.saturating_mul(pauses)).saturating_add(paced)
    }

    /// Waits for a good moment to encode: loads decode on the same cores.
    pub(crate) async fn before_encoding(&self, patience: Duration) {
        self.active_loads.wait_idle(patience).await;
    }
}
