//! Plans: how large a cache is, what keeping it costs, and which level fits a link.

use kvasir_types::{ModelId, ProfileHash};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Most links of a plan.
pub const PLAN_BANDWIDTHS_MAX: usize = 16;

/// What a plan may name.
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
    /// Name to ask for.
    pub name: String,
    /// All parameters, in units of 10⁹.
    pub parameters: f64,
    /// Parameters that a token passes through, in units of 10⁹.
    pub active_parameters: f64,
    /// Longest context; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// Where these numbers stand.
    pub source: String,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanGpu {
    /// Name to ask for.
    pub name: String,
    /// Memory.
    pub memory_bytes: u64,
    /// Peak dense 16-bit FLOP a second.
    pub flops: f64,
    /// US dollars an hour.
    pub usd_per_hour: f64,
}

/// Asks for a plan. Exactly one of `model` and `model_id` names the model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// A well-known model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A registered model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<ModelId>,
    /// Parameters a token passes through, in units of 10⁹; needed with `model_id`, whose spec does not have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<f64>,
    /// A profile of the registered model, whose measured levels count; absent: assumed ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_hash: Option<ProfileHash>,
    /// Tokens of the context; 8,192 unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Bandwidths of the links in question, in bits a second, at most 16; 3·10⁹ unless told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 16)]
    pub bandwidths: Vec<f64>,
    /// Time to first token to meet, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_s: Option<f64>,
    /// GPU that would compute the context otherwise; `h100` unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// GPUs that compute one request together; 1 unless told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
}

/// Sizes of the same cache by element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanBytes {
    /// fp16 or bf16.
    pub fp16: u64,
    /// fp8 or int8, scales not counted.
    pub fp8: u64,
    /// int4, scales not counted.
    pub int4: u64,
}

/// A number and where it comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanNumber {
    /// The number.
    pub value: f64,
    /// `measured`, `published` or `assumed`.
    pub source: String,
}

/// A level of what is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanLevel {
    /// Bits a KV element.
    pub bits_per_element: PlanNumber,
    /// Logit KL in nats a token, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<PlanNumber>,
}

/// What a link allows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanLink {
    /// Its bandwidth, in bits a second.
    pub bits_per_second: f64,
    /// The ways to the first token: the levels, then `int8`, `fp16`, `recompute`.
    pub ways: Vec<PlanWay>,
    /// Index into `ways` of the best quality in time; absent where none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fits: Option<usize>,
}

/// A way to the first token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanWay {
    /// Its name.
    pub name: String,
    /// Bytes over the link.
    pub bytes: u64,
    /// Seconds until all of the cache is in place.
    pub seconds: f64,
    /// Whether that is in time, where a time was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_slo: Option<bool>,
}

/// A rate that the plan rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanRate {
    /// What it is of.
    pub name: String,
    /// The rate.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// `measured`, `published` or `assumed`.
    pub source: String,
}

/// A plan; all of it is arithmetic over the request and `rates`. Money is in US dollars.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanResponse {
    /// The model.
    pub model: String,
    /// Where its numbers stand.
    pub model_source: String,
    /// Its longest context; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// Tokens of the context.
    pub tokens: u64,
    /// Size of one token's cache.
    pub bytes_per_token: PlanBytes,
    /// Size of the whole cache.
    pub bytes: PlanBytes,
    /// Bytes stored: all levels.
    pub bytes_stored: u64,
    /// Bytes of the model's weights.
    pub weight_bytes: u64,
    /// GPUs of the named kind that hold the weights and this cache.
    pub gpus_needed: u64,
    /// Seconds to compute the cache again.
    pub recompute_s: f64,
    /// What that costs.
    pub recompute_usd: f64,
    /// What one load costs.
    pub load_usd: f64,
    /// What keeping it for a month costs.
    pub month_usd: f64,
    /// Reuses a month above which keeping pays; absent where it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub break_even_reuses: Option<f64>,
    /// The levels that the plan is of, coarsest first.
    pub levels: Vec<PlanLevel>,
    /// One answer a link.
    pub links: Vec<PlanLink>,
    /// What else it rests on.
    pub rates: Vec<PlanRate>,
}
