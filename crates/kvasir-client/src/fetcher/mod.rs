//! The fetcher: a sans-IO core that decides, for every chunk of a load, which bytes to read and when to stop.
//!
//! [`Fetcher::on`] takes an [`Event`] and the time since the load began, and answers with [`Action`]s. The tokio
//! shell of [`KvClient`](crate::KvClient) and the simulator of `kvasir-sim` run this very core.
//!
//! ```
//! use std::time::Duration;
//! use kvasir_client::fetcher::*;
//! use kvasir_types::{Level, TokenRange};
//!
//! let chunk = ChunkPlan::with_default_loss(TokenRange { start: 0, end: 1536 }, vec![1_000_000, 2_000_000]);
//! let plan = FetchPlan {
//!     chunks: vec![chunk],
//!     slo: Duration::from_millis(500),
//!     suffix_time: Duration::ZERO,
//!     prior_rate: ByteRate::from_mbps(1000.0),
//! };
//! let config = FetcherConfig {
//!     estimator: EstimatorKind::Harmonic,
//!     recompute: RecomputeModel::from_seconds(0.0, 1e-3, 0.0), // 1.5 s for this chunk: worse than fetching
//!     decode: DecodeModel::from_seconds(1e-6, 0.0),
//!     text_mode: TextMode::Overlapped,
//! };
//! let mut fetcher = Fetcher::new(plan, Box::new(CacheGen::default()), config)?;
//! let actions = fetcher.on(Event::Start, Duration::ZERO);
//! assert_eq!(actions[0], Action::Fetch { request: RequestId(0), chunk: 0, start: 0, end: 2_000_000 });
//! # Ok::<(), InvalidPlan>(())
//! ```

mod core;
mod cost;
mod estimator;
mod event;
mod meter;
mod peers;
mod plan;
mod policy;
mod rate;
mod rates;
mod state;
mod transfers;

pub use self::core::{ChunkTimeline, FETCH_ATTEMPTS_MAX, Fetcher, FetcherConfig, InvalidPlan, TextMode};
pub use cost::{DecodeModel, RecomputeModel};
pub use estimator::{Estimator, EstimatorKind, Sample, Stretch, WINDOW_SAMPLES};
pub use event::{Action, Event, Neighbours, RequestId};
pub use plan::{ChunkPlan, FetchPlan};
pub use policy::{CacheGen, ChunkState, Fixed, Policy, Progressive, Status, Step, View};
pub use rate::ByteRate;

#[cfg(test)]
mod tests;
