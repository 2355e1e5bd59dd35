//! Reports of loads: what a client saw of one, and the last ones that a replica remembers.

use std::collections::BTreeMap;

use kvasir_types::Level;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Most parts of a timeline, of each kind.
pub const LOAD_TIMELINE_MAX: usize = 64;
/// Most loads that a replica remembers of a tenant.
pub const LOADS_KEPT_MAX: usize = 64;

/// How a load went, told by the client: what the service cannot see from its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadRecord {
    /// Time that was allowed, in milliseconds.
    pub slo_ms: u64,
    /// Time it took.
    pub elapsed_ms: u64,
    /// Tokens loaded.
    pub loaded_tokens: u64,
    /// Tokens given up, which the engine computes.
    pub recomputed_tokens: u64,
    /// Bytes loaded of each level.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, u64>)]
    pub bytes_by_level: BTreeMap<Level, u64>,
    /// Bytes of it that came directly from the store.
    #[serde(default)]
    pub direct_bytes: u64,
    /// Loaded tokens by the level they were decoded at.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, u64>)]
    pub tokens_by_level: BTreeMap<Level, u64>,
    /// What computing the loaded tokens would have taken by the engine's own measure, on all of its GPUs together.
    #[serde(default)]
    pub saved_gpu_ms: u64,
    /// Its course.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<LoadTimeline>,
}

/// The course of a load, as far as a picture needs it. Times are milliseconds since the load began.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadTimeline {
    /// Its chunks in the order of their tokens, at most 64: neighbours are joined where there were more.
    #[schema(max_items = 64)]
    pub chunks: Vec<LoadedChunk>,
    /// Throughput as the client measured it, at most 64 samples: neighbours are joined where there were more.
    #[schema(max_items = 64)]
    pub bandwidth: Vec<BandwidthSample>,
}

/// One chunk of a load, or neighbours together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadedChunk {
    /// Its first token, from the start of the context.
    pub first_token: u64,
    /// Its tokens.
    pub tokens: u64,
    /// The level it was decoded at, the coarsest of neighbours; absent where the engine computes any of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u8>)]
    pub level: Option<Level>,
    /// Bytes that came for it.
    pub bytes: u64,
    /// First request sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    /// Last byte there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched_ms: Option<u64>,
    /// Decoded and handed over, or given back to be computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<u64>,
}

/// Throughput at one moment of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BandwidthSample {
    /// When it was measured.
    pub at_ms: u64,
    /// What it was.
    pub bytes_per_second: u64,
}

/// Query of the last loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LoadsQuery {
    /// Only loads that took longer than they were allowed.
    #[serde(default)]
    #[param(required = false)]
    pub missed: bool,
    /// Most loads of the answer; 64 unless told, and at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// A load that a client reported to this replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportedLoad {
    /// When it was reported, in milliseconds since 1970.
    pub received_at_ms: u64,
    /// Whether it took longer than it was allowed.
    pub missed: bool,
    /// Time that was allowed, in milliseconds.
    pub slo_ms: u64,
    /// Time it took.
    pub elapsed_ms: u64,
    /// Tokens loaded.
    pub loaded_tokens: u64,
    /// Tokens given up, which the engine computed.
    pub recomputed_tokens: u64,
    /// Bytes loaded of each level.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub bytes_by_level: BTreeMap<Level, u64>,
    /// Bytes of it that came directly from the store.
    pub direct_bytes: u64,
    /// Loaded tokens by the level they were decoded at.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub tokens_by_level: BTreeMap<Level, u64>,
    /// What computing the loaded tokens would have taken by the engine's own measure, on all of its GPUs together.
    pub saved_gpu_ms: u64,
    /// Its course, where the client told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<LoadTimeline>,
}

impl LoadRecord {
    /// Whether it took longer than it was allowed.
    pub const fn missed(&self) -> bool {
        self.elapsed_ms > self.slo_ms
    }
}

impl ReportedLoad {
    /// A report that came at that time, in milliseconds since 1970.
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

/// The last loads of the caller's tenant that this replica was told of, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoadList {
    /// The loads.
    pub loads: Vec<ReportedLoad>,
}
