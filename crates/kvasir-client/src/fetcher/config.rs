//! Configuration of a fetcher.

use super::{
    cost::{DecodeModel, RecomputeModel},
    estimator::EstimatorKind,
};

/// How often a chunk's read is started before the chunk is given up. Bytes that arrived remain usable.
pub const FETCH_ATTEMPTS_MAX: u32 = 3;

/// When text chunks are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TextMode {
    /// While other chunks are being transferred: GPU and network are separate resources.
    #[default]
    Overlapped,
    /// By the engine, after the load: computing adds to the load's time.
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
    /// Whether the GPU that computes also decodes.
    pub decodes_on_gpu: bool,
}
