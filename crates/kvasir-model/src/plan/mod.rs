//! KV arithmetic: the size of a cache, the cost of keeping it, when keeping it pays, and which level fits.
//!
//! Everything is arithmetic over a [`Request`]. Each of its rates gives its [`Source`], so that a reader sees
//! which conclusions depend on a measurement and which on an assumption. Formulas:
//!
//! - bytes per token: Σ over layers `heads × elements` of both planes × bytes per element; sliding-window layers
//!   stop growing at their window, MLA layers hold `latent + rope_dims` once;
//! - prefill: `2 × active parameters × tokens + 2 × layers × heads × head_dim × tokens²` FLOP (causal attention,
//!   scores and values), over the GPU's peak × the share of it that prefill reaches;
//! - load: `round trip + bytes ÷ bandwidth`, decoding overlapped with it and bounded by the decoder's rate;
//! - weights: `parameters × bits per parameter`; they and one context's KV must fit the GPUs;
//! - keeping for a month pays when reuses × (recompute cost − fetch cost) exceed it (CacheGen §8).

mod arithmetic;
mod presets;

use serde::Serialize;

pub use arithmetic::{KvBytes, bytes_at, plan, prefill_flops};
pub use presets::{GPUS, Gpu, LayerRun, ModelPreset, gpu, preset, presets};

/// The origin of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Measured by a command of this project.
    Measured,
    /// Published by the maker or seller.
    Published,
    /// Assumed; replace it by your own.
    Assumed,
}

impl Source {
    /// In one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Published => "published",
            Self::Assumed => "assumed",
        }
    }
}

/// A number with its origin.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rate {
    /// In the unit given by the field.
    pub value: f64,
    /// Its origin.
    pub source: Source,
}

impl Rate {
    /// A published number.
    pub const fn published(value: f64) -> Self {
        Self { value, source: Source::Published }
    }

    /// A measured number.
    pub const fn measured(value: f64) -> Self {
        Self { value, source: Source::Measured }
    }

    /// An assumed number.
    pub const fn assumed(value: f64) -> Self {
        Self { value, source: Source::Assumed }
    }
}

/// Size of a quality level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LevelRate {
    /// Bits per KV element, including everything in the object.
    pub bits_per_element: Rate,
    /// Logit KL in nats per token, if known for this model.
    pub kl: Option<Rate>,
}

impl LevelRate {
    /// Levels of a model without a profile: the CacheGen paper's size (2.29 bits per element on Mistral-7B,
    /// its default level) and two assumed levels below it.
    pub const ASSUMED: [Self; 3] = {
        const fn level(bits_per_element: Rate) -> LevelRate {
            LevelRate { bits_per_element, kl: None }
        }
        [level(Rate::assumed(0.6)), level(Rate::assumed(1.2)), level(Rate::published(2.29))]
    };
}

/// Prices and rates of a deployment. Money in US dollars, sizes in bytes, time in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Deployment {
    /// GPU that would run the prefill.
    pub gpu: Gpu,
    /// GPUs that prefill one request together.
    pub gpus: u32,
    /// Share of the peak that prefill reaches, 0 to 1.
    pub prefill_efficiency: Rate,
    /// Dollars per GPU-hour.
    pub gpu_hour: Rate,
    /// Dollars to keep 10⁹ bytes for a month.
    pub gigabyte_month: Rate,
    /// Dollars for one read request to the store (one per chunk).
    pub read_request: Rate,
    /// Dollars to move 10⁹ bytes out of the store; 0 within a region.
    pub gigabyte_read: Rate,
    /// Seconds from a request to its first byte.
    pub round_trip: Rate,
    /// KV bytes (16-bit) decoded per second, at levels that `decode_rates` lacks.
    pub decode_rate: Rate,
    /// The same by level, coarsest first, where the decoder in use was measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decode_rates: Vec<Rate>,
}

impl Deployment {
    /// One GPU of a kind at list prices, objects in the same region.
    pub const fn on(gpu: Gpu) -> Self {
        Self {
            gpu,
            gpus: 1,
            prefill_efficiency: Rate::assumed(0.5),
            gpu_hour: gpu.hour,
            // S3 Standard, first 50 TB: $0.023 per GB-month, $0.0004 per thousand GETs, no charge within the
            // region.
            gigabyte_month: Rate::published(0.023),
            read_request: Rate::published(0.4e-6),
            gigabyte_read: Rate::published(0.0),
            round_trip: Rate::assumed(0.03),
            // A GPU's, which nobody measured. A CPU core is far slower: 3 GB/s direct, 0.1 GB/s with a basis.
            decode_rate: Rate::assumed(50e9),
            decode_rates: Vec::new(),
        }
    }

    /// KV bytes (16-bit) decoded per second at a level.
    pub fn decode_rate_of(&self, level: usize) -> Rate {
        self.decode_rates.get(level).copied().unwrap_or(self.decode_rate)
    }
}

/// The input of the arithmetic.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Request {
    /// The model.
    pub model: ModelPreset,
    /// Tokens of the context.
    pub tokens: u64,
    /// Tokens per chunk.
    pub chunk_tokens: u64,
    /// Bandwidths of the links to compare, in bits per second.
    pub bandwidths: Vec<Rate>,
    /// Time-to-first-token objective, seconds.
    pub slo: Option<f64>,
    /// Levels of a stored chunk, coarsest first; the last one has the stored size.
    pub levels: Vec<LevelRate>,
    /// Prices and rates of the deployment.
    pub deployment: Deployment,
}

/// The result; every field follows from the request by the formulas of this module.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The request, with all rates and sources.
    pub request: Request,
    /// Bytes of one token's KV, by element type (while every layer still grows).
    pub bytes_per_token: KvBytes,
    /// Bytes of the whole context's KV, by element type.
    pub bytes: KvBytes,
    /// Bytes stored: all levels.
    pub bytes_stored: u64,
    /// Bytes of the model's weights as stored.
    pub weight_bytes: u64,
    /// GPUs of the named kind that hold the weights and this context's KV in 16 bits.
    pub gpus_needed: u64,
    /// Prefill FLOP of the context.
    pub prefill_flops: f64,
    /// Seconds to recompute it.
    pub recompute_seconds: f64,
    /// Dollars of one recomputation.
    pub recompute_cost: f64,
    /// Dollars of one load of all levels.
    pub load_cost: f64,
    /// Dollars per month of keeping it.
    pub month_cost: f64,
    /// Reuses per month above which keeping pays; none if a load costs as much as recomputing.
    pub break_even_reuses: Option<f64>,
    /// One result per link.
    pub links: Vec<LinkPlan>,
}

/// The result for a link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkPlan {
    /// Its bandwidth, bits per second.
    pub bandwidth: Rate,
    /// The results of all ways to the first token; recomputing last.
    pub ways: Vec<Way>,
    /// Index into `ways` of the best quality within the SLO (text counts as exact); none if nothing fits.
    pub fits: Option<usize>,
}

/// A way to the first token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Way {
    /// `level 0`…, `fp16`, `int8`, `recompute`.
    pub name: String,
    /// Bytes over the link.
    pub bytes: u64,
    /// Seconds until all KV is in place.
    pub seconds: f64,
    /// Whether that is within the SLO, if there is one.
    pub within_slo: Option<bool>,
}

#[cfg(test)]
mod tests;
