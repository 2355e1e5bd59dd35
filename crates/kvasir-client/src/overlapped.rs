//! Loads for engines that compute from text while bytes arrive.

use std::time::Duration;

use kvasir_types::TokenRange;

pub use crate::load::RecomputeCause;
use crate::{
    LayerReady, Loaded,
    load::{DriverEvent, Running},
};

/// An event of an overlapped load, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum LoadEvent {
    /// Layers of some tokens are in their pages.
    Ready(LayerReady),
    /// The engine must compute these tokens and report them with [`OverlappedLoad::computed`]. Supersedes
    /// their earlier `Ready`.
    Compute {
        /// The tokens.
        range: TokenRange,
        /// The cause.
        cause: RecomputeCause,
    },
    /// Tokens given to the engine to compute arrived over the link first and are now decoded into their
    /// pages: computing them may stop. An engine that cannot stop may continue: both results are KV of these
    /// tokens, and the later write remains.
    Withdrawn(TokenRange),
}

/// A load during which the engine computes. Otherwise as [`Load`](crate::Load): dropping it cancels it.
#[derive(Debug)]
#[must_use = "dropping a load cancels it"]
pub struct OverlappedLoad(Running);

impl OverlappedLoad {
    pub(crate) const fn new(running: Running) -> Self {
        Self(running)
    }

    /// The next event; `None` when the load has ended.
    pub async fn next(&mut self) -> Option<LoadEvent> {
        Some(match self.0.next().await? {
            DriverEvent::Ready(ready) => LoadEvent::Ready(ready),
            DriverEvent::Recompute { range, cause } => LoadEvent::Compute { range, cause },
            DriverEvent::Withdrawn { range } => LoadEvent::Withdrawn(range),
            DriverEvent::Done { .. } => return None,
        })
    }

    /// Tells the load that the engine computed `range` in `took`.
    pub async fn computed(&mut self, range: TokenRange, took: Duration) {
        self.0.computed(range, took).await;
    }

    /// Waits for the end. Tokens computed in the meantime are not [missing](Loaded::missing).
    pub async fn finish(self) -> Loaded {
        self.0.finish().await
    }
}
