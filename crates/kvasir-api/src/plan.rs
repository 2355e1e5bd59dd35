//! Plans: the size of a cache, the cost of keeping it, and the level that fits a link.

use kvasir_types::{ModelId, ProfileHash};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Most links of a plan.
pub const PLAN_BANDWIDTHS_MAX: usize = 16;

/// The models and GPUs for plans.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanOptions {
    /// Well-known models, by name.
    pub models: Vec<PlanModel>,
    /// GPUs.
    pub gpus: Vec<PlanGpu>,
}

/// A well-known model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanModel {
    /// Name for requests.
    pub name: String,
    /// Total parameters, in units of 10⁹.
    pub parameters: f64,
    /// Active parameters per token, in units of 10⁹.
    pub active_parameters: f64,
    /// Maximum context; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// Source of these numbers.
    pub source: String,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanGpu {
    /// Name for requests.
    pub name: String,
    /// Memory.
    pub memory_bytes: u64,
    /// Peak dense 16-bit FLOP per second.
    pub flops: f64,
    /// US dollars per hour.
    pub usd_per_hour: f64,
}

/// Requests a plan. Exactly one of `model` and `model_id` names the model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// A well-known model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A registered model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<ModelId>,
    /// Active parameters per token, in units of 10⁹; required with `model_id`, whose spec does not contain
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<f64>,
    /// A profile of the registered model, whose measured levels are used; absent: assumed levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_hash: Option<ProfileHash>,
    /// Tokens of the context; default 8,192.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Bandwidths of the links, in bits per second, at most 16; default 3·10⁹.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 16)]
    pub bandwidths: Vec<f64>,
    /// Target time to first token, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_s: Option<f64>,
    /// GPU that would otherwise compute the context; default `h100`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// GPUs that compute one request together; default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
}

/// Sizes of the same cache by element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanBytes {
    /// fp16 or bf16.
    pub fp16: u64,
    /// fp8 or int8, excluding scales.
    pub fp8: u64,
    /// int4, excluding scales.
    pub int4: u64,
}

/// A number and its source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanNumber {
    /// The number.
    pub value: f64,
    /// `measured`, `published` or `assumed`.
    pub source: String,
}

/// A stored level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanLevel {
    /// Bits per KV element.
    pub bits_per_element: PlanNumber,
    /// Logit KL in nats per token, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<PlanNumber>,
}

/// Results for one link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanLink {
    /// Its bandwidth, in bits per second.
    pub bits_per_second: f64,
    /// Options for the first token: the levels, then `int8`, `fp16`, `recompute`.
    pub ways: Vec<PlanWay>,
    /// Index into `ways` of the best quality that is in time; absent if none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fits: Option<usize>,
}

/// An option for the first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanWay {
    /// Its name.
    pub name: String,
    /// Bytes sent over the link.
    pub bytes: u64,
    /// Seconds until the whole cache is in place.
    pub seconds: f64,
    /// Whether that is in time, if a time was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_slo: Option<bool>,
}

/// A rate used by the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanRate {
    /// Name of the rate.
    pub name: String,
    /// The rate.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// `measured`, `published` or `assumed`.
    pub source: String,
}

/// A plan, computed from the request and `rates` alone. Costs are in US dollars.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanResponse {
    /// The model.
    pub model: String,
    /// Source of its numbers.
    pub model_source: String,
    /// Its maximum context; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// Tokens of the context.
    pub tokens: u64,
    /// Size of one token's cache.
    pub bytes_per_token: PlanBytes,
    /// Size of the whole cache.
    pub bytes: PlanBytes,
    /// Stored bytes: all levels.
    pub bytes_stored: u64,
    /// Bytes of the model's weights.
    pub weight_bytes: u64,
    /// GPUs of the given kind needed to hold the weights and this cache.
    pub gpus_needed: u64,
    /// Seconds to recompute the cache.
    pub recompute_s: f64,
    /// Cost of recomputing.
    pub recompute_usd: f64,
    /// Cost of one load.
    pub load_usd: f64,
    /// Cost of keeping it for a month.
    pub month_usd: f64,
    /// Reuses per month above which keeping pays; absent if it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub break_even_reuses: Option<f64>,
    /// The levels used by the plan, coarsest first.
    pub levels: Vec<PlanLevel>,
    /// One result per link.
    pub links: Vec<PlanLink>,
    /// Other rates used by the plan.
    pub rates: Vec<PlanRate>,
}
