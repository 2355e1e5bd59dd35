//! Uploads that step aside.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::Activity;
use crate::{
    fetcher::ByteRate,
    limits::{UPLOAD_PAUSE, UPLOAD_PIECE_BYTES},
};

/// How fast an upload may go: as fast as its rate allows while nothing is loaded, and one piece every
/// [`UPLOAD_PAUSE`] while something is, so that the service does not take it for dead.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    pub(crate) activity: Arc<Activity>,
    pub(crate) rate: Option<ByteRate>,
}

impl Pace {
    /// The object as a body that is sent at this pace.
    pub(crate) fn body(&self, object: Bytes) -> reqwest::Body {
        let start = Instant::now();
        let pieces =
            futures::stream::unfold((self.clone(), object, 0u64), move |(pace, mut rest, sent)| async move {
                if rest.is_empty() {
                    return None;
                }
                pace.activity.wait_idle(UPLOAD_PAUSE).await;
                if let Some(rate) = pace.rate {
                    sleep_until(start + rate.time_for(sent)).await;
                }
                let piece = rest.split_to(rest.len().min(UPLOAD_PIECE_BYTES));
                let sent = sent + piece.len() as u64;
                Some((Ok::<_, std::io::Error>(piece), (pace, rest, sent)))
            });
        reqwest::Body::wrap_stream(pieces)
    }

    /// Waits for a good moment to burn CPU time on encoding: loads decode on the same cores.
    pub(crate) async fn before_encoding(&self, patience: Duration) {
        self.activity.wait_idle(patience).await;
    }
}
