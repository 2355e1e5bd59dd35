//! The fetcher: a sans-IO core that decides, for every chunk of a load, which bytes to read and when to stop.
//!
//! [`Fetcher::on`] takes an [`FetcherEvent`] and the time since the load began, and answers with [`FetcherAction`]s. The tokio
//! shell of [`Session`](crate::Session) and the simulator of `kvasir-lab` run this very core.
//!
//! ```
//! use std::time::Duration;
//! use kvasir_client::tuning::*;
//! use kvasir_types::{Level, TokenRange};
//!
//! let chunk = PlannedChunk::with_default_loss(TokenRange { start: 0, end: 1536 }, vec![1_000_000, 2_000_000]);
//! let plan = FetchPlan {
//!     chunks: vec![chunk],
//!     slo: Duration::from_millis(500),
//!     suffix_time: Duration::ZERO,
//!     prior_rate: ByteRate::from_mbps(1000.0),
//!     first_byte: None,
//! };
//! let config = FetcherConfig {
//!     estimator: EstimatorKind::Harmonic,
//!     recompute: RecomputeModel::from_seconds(0.0, 1e-3, 0.0), // 1.5 s for this chunk: worse than fetching
//!     decode: DecodeModel::from_seconds(1e-6, 0.0),
//!     text_mode: TextMode::Overlapped,
//!     decodes_on_gpu: false,
//! };
//! let mut fetcher = Fetcher::new(plan, Box::new(CacheGen::default()), config)?;
//! let actions = fetcher.on(FetcherEvent::Start, Duration::ZERO);
//! assert_eq!(actions[0], FetcherAction::Fetch { request: RequestId(0), chunk: 0, start: 0, end: 2_000_000 });
//! # Ok::<(), InvalidPlan>(())
//! ```

mod byte_rate;
mod chunk;
mod chunk_rates;
mod config;
mod core;
mod cost;
mod estimator;
mod event;
mod in_flight;
mod meter;
mod plan;
mod policy;
mod state;
mod transfer_rate;
mod transfers;

pub use self::core::{Fetcher, InvalidPlan};
pub use byte_rate::ByteRate;
pub use chunk::{ChunkFetchState, ChunkStatus};
pub use config::{FETCH_ATTEMPTS_MAX, FetcherConfig, TextMode};
pub use cost::{DecodeModel, RecomputeModel};
pub use estimator::EstimatorKind;
pub(crate) use estimator::WINDOW_SAMPLES;
pub use event::{FetcherAction, FetcherEvent, Neighbours, RequestId};
pub use plan::{FetchPlan, PlannedChunk};
pub use policy::{CacheGen, Fixed, Policy, PolicyStep, PolicyView, Progressive};

#[cfg(test)]
mod deferred_tests;
#[cfg(test)]
mod tests;
