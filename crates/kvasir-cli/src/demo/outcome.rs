//! The demo's results: the documented JSON document, and the evidence behind it for the report.

use std::time::Duration;

use serde::Serialize;

/// The result of a demo, with exactly the documented keys.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// Tokens of the stored context.
    pub(crate) tokens: u64,
    /// Size of its uncompressed KV cache (f16).
    pub(crate) bytes_raw: u64,
    /// Size of the cache as 8-bit integers with a scale per head and token.
    pub(crate) bytes_8bit: u64,
    /// Size of the stored objects with all levels.
    pub(crate) bytes_stored: u64,
    /// Bytes sent over the link for the load.
    pub(crate) bytes_fetched: u64,
    /// Target time to first token.
    pub(crate) slo_ms: u64,
    /// Whether the measured time to first token met it.
    pub(crate) slo_met: bool,
    /// Whether greedy generation over the loaded cache gave the same text as over the uncompressed one.
    pub(crate) same_text: bool,
    /// Share of positions at which both caches predict the same next token.
    pub(crate) top1_agreement: f64,
    /// Perplexity of the text's continuation.
    pub(crate) perplexity: Perplexity,
    /// Times to first token on the same shaped link.
    pub(crate) ttft_ms: Ttft,
    /// The stored levels, coarsest first.
    pub(crate) levels: Vec<LevelSize>,
}

/// Perplexity over the uncompressed and over the loaded cache.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Perplexity {
    /// Uncompressed.
    pub(crate) full: f64,
    /// Loaded from Kvasir.
    pub(crate) kvasir: f64,
}

/// Milliseconds from the request to the first generated token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Ttft {
    /// Look up, stream, decode, and run one step of the model.
    pub(crate) kvasir: f64,
    /// Recompute the cache.
    pub(crate) recompute: f64,
    /// Fetch the f16 cache over the same link.
    pub(crate) raw: f64,
    /// Fetch the 8-bit cache over the same link and dequantise it.
    pub(crate) int8: f64,
}

/// Cumulative size of a level: the bytes needed to decode at it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct LevelSize {
    /// The level.
    pub(crate) level: u8,
    /// Bits per KV element, including all overhead of the objects.
    pub(crate) bits_per_element: f64,
    /// Bytes over all chunks.
    pub(crate) bytes: u64,
}

/// Quality of one form of the cache, over every measured position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QualityPoint {
    /// Name of a level or of a plain format.
    pub(crate) name: String,
    /// Bits per KV element.
    pub(crate) bits_per_element: f64,
    /// Logit KL against the uncompressed cache, in nats per token.
    pub(crate) kl: f64,
    /// Share of positions with the same most probable token.
    pub(crate) top1: f64,
    /// Perplexity of the continuation.
    pub(crate) perplexity: f64,
}

/// One chunk of the load.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChunkEvent {
    /// Level at arrival; `None` if it was recomputed from text.
    pub(crate) level: Option<u8>,
    /// Bytes sent over the link.
    pub(crate) bytes: u64,
    /// Time of its first request, since the start of the load.
    pub(crate) from: Duration,
    /// Time at which its last byte had arrived.
    pub(crate) until: Duration,
}

/// Everything behind the outcome.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Evidence {
    /// Chunks of the load, in order.
    pub(crate) chunks: Vec<ChunkEvent>,
    /// The link's bandwidth as a step function: `(seconds since the start, Mbit/s)`.
    pub(crate) link: Vec<(f64, f64)>,
    /// Name of the series.
    pub(crate) link_name: String,
    /// Bandwidth as the client measured it: `(seconds, Mbit/s)`.
    pub(crate) measured: Vec<(f64, f64)>,
    /// Parts of Kvasir's time to first token, in order.
    pub(crate) parts_ms: Vec<(String, f64)>,
    /// Quality of the levels and of 8-bit, over [`positions`](Self::positions).
    pub(crate) qualities: Vec<QualityPoint>,
    /// Teacher-forced positions behind every quality.
    pub(crate) positions: usize,
    /// Number of contexts that these positions come from.
    pub(crate) contexts: usize,
    /// KL of the loaded cache, in nats per token.
    pub(crate) kl: f64,
    /// Text generated over the uncompressed cache.
    pub(crate) text_full: String,
    /// Text generated over the loaded cache.
    pub(crate) text_kvasir: String,
    /// Tokens per chunk.
    pub(crate) chunk_tokens: usize,
}
