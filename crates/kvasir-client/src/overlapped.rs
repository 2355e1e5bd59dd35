//! Loads for engines that compute from text while bytes come.

use std::time::Duration;

use kvasir_types::TokenRange;

pub use crate::load::RecomputeCause;
use crate::{
    LayerReady, Loaded,
    load::{DriverEvent, Running},
};

/// Something that happened in an overlapped load, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum LoadEvent {
    /// Layers of some tokens are in their pages.
    Ready(LayerReady),
    /// The engine is to compute these tokens, and to say so with [`OverlappedLoad::computed`]. Supersedes what was ready of them.
    Compute {
        /// The tokens.
        range: TokenRange,
        /// Why.
        cause: RecomputeCause,
    },
    /// These tokens, given to be computed before, came over the link first and are decoded into their pages now: computing them
    /// may stop. An engine that cannot stop may go on: either KV is that of these tokens, and whichever is written last stays.
    Withdrawn(TokenRange),
}

/// A load beside which the engine computes. Otherwise as [`Load`](crate::Load): dropping it cancels it.
#[derive(Debug)]
#[must_use = "dropping a load cancels it"]
pub struct OverlappedLoad(Running);

impl OverlappedLoad {
    pub(crate) const fn new(running: Running) -> Self {
        Self(running)
    }

    /// The next event; `None` when the load is over.
    pub async fn next(&mut self) -> Option<LoadEvent> {
        Some(match self.0.next().await? {
            DriverEvent::Ready(ready) => LoadEvent::Ready(ready),
            DriverEvent::Recompute { range, cause } => LoadEvent::Compute { range, cause },
            DriverEvent::Withdrawn { range } => LoadEvent::Withdrawn(range),
            DriverEvent::Done { .. } => return None,
        })
    }

    /// Tells the load that the engine has computed `range`, in `took`.
    pub async fn computed(&mut self, range: TokenRange, took: Duration) {
        self.0.computed(range, took).await;
    }

    /// Waits for the end. What was computed meanwhile is not [missing](Loaded::missing).
    pub async fn finish(self) -> Loaded {
        self.0.finish().await
    }
}
