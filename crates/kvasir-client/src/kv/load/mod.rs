//! A load: the tokio shell around the fetcher core.
//!
//! ```text
//! core ──Fetch──► FetchTask: parts, hedges, routes ──bytes──► ObjectAssembly: every piece checked as it completes
//!   ▲                                                              │ damaged: read once more, beside the core
//!   └──events── LoadDriver ◄──DecodeOutcome── DecodeQueue (blocking threads) ◄── DecodeUnit: runs of spans × groups of layers
//!                  │
//!                  └──► LayerReady, Recompute, Withdrawn, Done
//! ```

mod arrival;
mod assembly;
mod begin;
mod decode;
mod driver;
mod error;
mod fetch;
mod options;
mod progress;
mod report;
mod state;
mod stream;
mod token_ranges;

pub use error::{LoadError, LoadFailure};
pub use options::LoadOptions;
pub use report::{ChunkReport, LoadReport, ReadReport};
pub use stream::{LayerReady, Load, LoadEvent, RecomputeCause};
