//! A load: the tokio shell around the fetcher core.
//!
//! ```text
//!            ┌─ Fetch, Cancel ─► Network: FetchTasks fill ObjectAssemblies, repairs beside them ──┐ VerifiedChunk
//! Fetcher ─► LoadDriver ─────────► DecodeQueue: DecodeUnits on blocking threads ◄─────────────────┘
//!   ▲         │    │ what is in place, what is to be computed
//!   └─events──┘    ├─► LoadProgress ─► Ready, Recompute, Withdrawn
//!                  └─► LoadRecorder ─► LoadReport in Done
//! ```
//!
//! Each part has separate state; the driver passes results between them.

mod arrival;
mod assembly;
mod begin;
mod beneath;
mod byte_ranges;
mod clock;
mod decode;
mod decode_queue;
mod device_promise;
mod driver;
mod error;
mod fetch;
mod learned_costs;
mod loaded;
mod network;
mod options;
mod progress;
mod recorder;
mod report;
mod running;
#[cfg(test)]
mod sample;
mod timeline;
mod token_ranges;

pub(crate) use begin::{LoadTask, PlannedLevels};
pub(crate) use beneath::Beneath;
pub use error::{LoadError, LoadFailure};
pub(crate) use learned_costs::LearnedCosts;
pub use learned_costs::{CostModels, decoding_cores};
pub use loaded::{Load, Loaded};
pub use options::LoadOptions;
pub use report::{ChunkReport, DeviceUse, LoadReport, LoadTimes};
pub(crate) use running::{DriverEvent, Running};
pub use running::{LayerReady, RecomputeCause};
