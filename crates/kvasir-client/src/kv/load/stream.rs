//! What an engine sees of a load.

use std::{
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use kvasir_codec::KvBuffer;
use kvasir_types::{Level, TokenRange};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{LoadReport, arrival::Arrival};
use crate::pages::WriteGate;

/// KV that is in its pages.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerReady {
    /// The rank whose table was written, as an index into the tables of the load.
    pub rank: usize,
    /// Layers of the model.
    pub layers: Range<usize>,
    /// Tokens of the context.
    pub token_range: TokenRange,
    /// The level it was decoded at.
    pub level: Level,
    /// Predicted logit KL of that level and of what lies beneath the chunk, in nats a token.
    pub predicted_kl: f64,
    /// Whether that is above the caller's bound: such blocks do not belong into an engine's own prefix cache.
    pub flagged: bool,
    /// Leading layers that are in place now for *all* tokens of the load (those reported as [`LoadEvent::Recompute`]
    /// apart), on this rank. The suffix may be started on these.
    pub layers_complete: usize,
}

/// Why tokens are to be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecomputeCause {
    /// They are not stored, or are the last token, whose logits no cache holds.
    NotStored,
    /// Computing was predicted to be sooner than fetching, or to be no worse within the time there is.
    Text,
    /// Reading failed, or what was read is damaged.
    Failed,
}

/// Something that an engine wants to know of a load, in the order in which it happened.
#[derive(Debug)]
pub enum LoadEvent {
    /// Layers of some tokens are in their pages.
    LayerReady(LayerReady),
    /// These tokens are to be computed. Supersedes a `LayerReady` for some of their layers.
    Recompute {
        /// The tokens.
        range: TokenRange,
        /// Why.
        cause: RecomputeCause,
    },
    /// These tokens, given to be computed before, came over the link first and are decoded into their pages now:
    /// computing them may stop. Only with [`TextMode::Overlapped`](crate::fetcher::TextMode::Overlapped), for ranges that
    /// were predicted to be computed too late. An engine that cannot stop may go on: either KV is that of these
    /// tokens, and whichever is written last stays.
    Withdrawn {
        /// The tokens: a whole chunk of the load.
        range: TokenRange,
    },
    /// The load is over. Comes once, last.
    Done {
        /// What it did.
        report: Box<LoadReport>,
    },
}

/// A message from the load's task to its owner.
pub(super) enum LoadOutput {
    Event(LoadEvent),
    /// Rows for the sink of `get_kv`.
    Rows {
        first_token: u64,
        rows: Box<KvBuffer>,
    },
}

/// A load under way: a stream of [`LoadEvent`]s.
///
/// It goes on by itself, whether or not it is polled. Dropping it cancels it: its requests are given up at once, and
/// when `drop` returns nothing is written to the tables any more, even if their pages are the next request's in the
/// same moment. Every await point may be left for good.
#[derive(Debug)]
pub struct Load {
    pub(super) outputs: mpsc::UnboundedReceiver<LoadOutput>,
    pub(super) commands: mpsc::Sender<Arrival>,
    pub(super) task: JoinHandle<()>,
    pub(super) gate: Arc<WriteGate>,
}

impl std::fmt::Debug for LoadOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Event(event) => event.fmt(f),
            Self::Rows { first_token, rows } => write!(f, "{} rows from {first_token}", rows.tokens()),
        }
    }
}

impl Load {
    /// The next event; `None` after [`LoadEvent::Done`].
    pub async fn next(&mut self) -> Option<LoadEvent> {
        futures::StreamExt::next(self).await
    }

    /// Tells the load that the engine has computed `range`, in `took`: needed with
    /// [`TextMode::Overlapped`](crate::fetcher::TextMode::Overlapped), and teaches the cost model either way.
    pub async fn computed(&self, range: TokenRange, took: Duration) {
        // A load that is over has no use for it.
        let _ = self.commands.send(Arrival::Computed { range, took }).await;
    }

    /// Waits for the end and gives the report alone.
    pub async fn report(mut self) -> Option<LoadReport> {
        loop {
            if let LoadEvent::Done { report } = self.next().await? {
                return Some(*report);
            }
        }
    }

    pub(super) async fn next_output(&mut self) -> Option<LoadOutput> {
        self.outputs.recv().await
    }
}

impl Stream for Load {
    type Item = LoadEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<LoadEvent>> {
        loop {
            return match self.outputs.poll_recv(context) {
                Poll::Ready(Some(LoadOutput::Event(event))) => Poll::Ready(Some(event)),
                Poll::Ready(Some(LoadOutput::Rows { .. })) => continue,
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            };
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.task.abort();
        self.gate.close();
    }
}
