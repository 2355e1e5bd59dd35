//! Reports of loads: a client's record of one, and the latest ones that a replica keeps.

use std::collections::BTreeMap;

use kvasir_types::Level;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Maximum number of parts of each kind in a timeline.
pub const LOAD_TIMELINE_MAX: usize = 64;
/// Maximum number of loads that a replica keeps per tenant.
pub const LOADS_KEPT_MAX: usize = 64;

/// A client's report of a load, which the service cannot observe itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadRecord {
    /// Time allowed, in milliseconds.
    pub slo_ms: u64,
    /// Duration, in milliseconds.
    pub elapsed_ms: u64,
    /// Tokens loaded.
    pub loaded_tokens: u64,
    /// Tokens that were given up and that the engine computes.
    pub recomputed_tokens: u64,
    /// Bytes loaded by level.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, u64>)]
    pub bytes_by_level: BTreeMap<Level, u64>,
    /// Bytes of these that were read directly from the store.
    #[serde(default)]
    pub direct_bytes: u64,
    /// Loaded tokens by the level at which they were decoded.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, u64>)]
    pub tokens_by_level: BTreeMap<Level, u64>,
    /// GPU time saved by the load, as measured by the engine, summed over all of its GPUs.
    #[serde(default)]
    pub saved_gpu_ms: u64,
    /// Timeline of the load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<LoadTimeline>,
}

/// Timeline of a load, in enough detail for a plot. Times are milliseconds since the load began.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadTimeline {
    /// Its chunks in the order of their tokens, at most 64; beyond that, neighbours are joined.
    #[schema(max_items = 64)]
    pub chunks: Vec<LoadedChunk>,
    /// Throughput as the client measured it, at most 64 samples; beyond that, neighbours are joined.
    #[schema(max_items = 64)]
    pub bandwidth: Vec<BandwidthSample>,
}

/// One chunk of a load, or several joined ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadedChunk {
    /// Its first token, counted from the start of the context.
    pub first_token: u64,
    /// Number of its tokens.
    pub tokens: u64,
    /// The level at which it was decoded, the coarsest of joined chunks; absent if the engine computes any of
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u8>)]
    pub level: Option<Level>,
    /// Bytes received for it.
    pub bytes: u64,
    /// Time of its first request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    /// Arrival of its last byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched_ms: Option<u64>,
    /// Decoded and handed over, or returned to the engine to compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<u64>,
}

/// Throughput at one time of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BandwidthSample {
    /// Time of the measurement.
    pub at_ms: u64,
    /// Throughput.
    pub bytes_per_second: u64,
}

/// Query of the latest loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LoadsQuery {
    /// Only loads that exceeded their time.
    #[serde(default)]
    #[param(required = false)]
    pub missed: bool,
    /// Maximum number of loads in the response; default and maximum 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A load that a client reported to this replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportedLoad {
    /// When it was reported, in milliseconds since 1970.
    pub received_at_ms: u64,
    /// Whether it exceeded its time.
    pub missed: bool,
    /// Time allowed, in milliseconds.
    pub slo_ms: u64,
    /// Duration, in milliseconds.
    pub elapsed_ms: u64,
    /// Tokens loaded.
    pub loaded_tokens: u64,
    /// Tokens that were given up and that the engine computed.
    pub recomputed_tokens: u64,
    /// Bytes loaded by level.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub bytes_by_level: BTreeMap<Level, u64>,
    /// Bytes of these that were read directly from the store.
    pub direct_bytes: u64,
    /// Loaded tokens by the level at which they were decoded.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub tokens_by_level: BTreeMap<Level, u64>,
    /// GPU time saved by the load, as measured by the engine, summed over all of its GPUs.
    pub saved_gpu_ms: u64,
    /// Timeline of the load, if the client sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<LoadTimeline>,
}

impl LoadRecord {
    /// Whether it exceeded its time.
    pub const fn missed(&self) -> bool {
        self.elapsed_ms > self.slo_ms
    }
}

impl ReportedLoad {
    /// A report that arrived at this time, in milliseconds since 1970.
    pub fn new(record: LoadRecord, received_at_ms: u64) -> Self {
        Self {
            received_at_ms,
            missed: record.missed(),
            slo_ms: record.slo_ms,
            elapsed_ms: record.elapsed_ms,
            loaded_tokens: record.loaded_tokens,
            recomputed_tokens: record.recomputed_tokens,
            bytes_by_level: record.bytes_by_level,
            direct_bytes: record.direct_bytes,
            tokens_by_level: record.tokens_by_level,
            saved_gpu_ms: record.saved_gpu_ms,
            timeline: record.timeline,
        }
    }
}

/// The latest loads of the caller's tenant reported to this replica, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoadList {
    /// The loads.
    pub loads: Vec<ReportedLoad>,
}
