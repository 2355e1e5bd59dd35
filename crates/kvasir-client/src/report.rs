//! What loads and saves did, in detail: for operators, benchmarks and pictures. No engine needs it to be correct.

pub use crate::{
    load::{ChunkReport, LoadError, LoadFailure, LoadReport},
    rest::ReadReport,
    save::{ChunkOutcome, ChunkSaveReport, SaveOutcome, SaveProgress, SaveRefusal, SaveReport},
};
