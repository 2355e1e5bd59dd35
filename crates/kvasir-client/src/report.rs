//! Detailed reports of loads and saves, for operators, benchmarks and plots. An engine does not need them.

pub use crate::{
    load::{ChunkReport, DeviceUse, LoadError, LoadFailure, LoadReport, LoadTimes},
    rest::ReadReport,
    save::{ChunkOutcome, ChunkSaveReport, SaveOutcome, SaveProgress, SaveRefusal, SaveReport},
};
