//! Configuration of a fetcher.

use super::{
    cost::{DecodeModel, RecomputeModel},
    estimator::EstimatorKind,
};

/// Times a chunk's read is begun before the chunk is given up (what arrived stays usable).
pub const FETCH_ATTEMPTS_MAX: u32 = 3;

/// When text chunks are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TextMode {
    /// While other chunks are on the wire: GPU and network are two resources.
    #[default]
    Overlapped,
    /// By the engine, after the load: their time adds to the load's.
    Deferred,
}

/// Cost models and estimator of a load.
#[derive(Debug, Clone)]
pub struct FetcherConfig {
    /// Throughput estimator.
    pub estimator: EstimatorKind,
    /// Prefill times.
    pub recompute: RecomputeModel,
    /// Decode times.
    pub decode: DecodeModel,
    /// When text chunks are computed.
    pub text_mode: TextMode,
}
