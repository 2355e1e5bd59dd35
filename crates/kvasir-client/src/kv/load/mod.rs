//! A load: the tokio shell around the fetcher core.
//!
//! ```text
//!            ┌─ Fetch, Cancel ─► Network: FetchTasks fill ObjectAssemblies, repairs beside them ──┐ VerifiedChunk
//! Fetcher ─► LoadDriver ─────────► DecodeQueue: DecodeUnits on blocking threads ◄─────────────────┘
//!   ▲         │    │ what is in place, what is to be computed
//!   └─events──┘    ├─► LoadProgress ─► LayerReady, Recompute, Withdrawn
//!                  └─► LoadRecorder ─► LoadReport in Done
//! ```
//!
//! Each part has its own state; the driver passes on what one of them gives.

mod arrival;
mod assembly;
mod begin;
mod clock;
mod decode;
mod decode_queue;
mod driver;
mod error;
mod fetch;
mod network;
mod options;
mod progress;
mod recorder;
mod report;
#[cfg(test)]
mod sample;
mod stream;
mod token_ranges;

pub use error::{LoadError, LoadFailure};
pub use options::LoadOptions;
pub use report::{ChunkReport, LoadReport, ReadReport};
pub use stream::{LayerReady, Load, LoadEvent, RecomputeCause};
