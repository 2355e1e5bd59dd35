//! What the demo found: the documented JSON document, and the evidence behind it for the report.

use std::time::Duration;

use serde::Serialize;

/// The result of a demo, with exactly the documented keys.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// Tokens of the context that was stored and streamed back.
    pub(crate) tokens: u64,
    /// Its KV cache uncompressed (f16).
    pub(crate) bytes_raw: u64,
    /// The same in 8-bit integers with a scale per head and token.
    pub(crate) bytes_8bit: u64,
    /// The stored objects, all levels.
    pub(crate) bytes_stored: u64,
    /// What travelled for the load.
    pub(crate) bytes_fetched: u64,
    /// The time to first token aimed at.
    pub(crate) slo_ms: u64,
    /// Whether the measured time to first token kept it.
    pub(crate) slo_met: bool,
    /// Whether greedy generation over the loaded cache gave the text of the uncompressed one.
    pub(crate) same_text: bool,
    /// Share of positions at which both caches predict the same next token.
    pub(crate) top1_agreement: f64,
    /// Perplexity of the text's continuation.
    pub(crate) perplexity: Perplexity,
    /// Times to first token on the same shaped link.
    pub(crate) ttft_ms: Ttft,
    /// The levels as stored, coarsest first.
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
    /// Look up, stream, decode, one step of the model.
    pub(crate) kvasir: f64,
    /// Compute the cache anew.
    pub(crate) recompute: f64,
    /// Fetch the f16 cache over the same link.
    pub(crate) raw: f64,
    /// Fetch the 8-bit cache over the same link and dequantise it.
    pub(crate) int8: f64,
}

/// Size of a level, cumulative: what must travel to decode at it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct LevelSize {
    /// The level.
    pub(crate) level: u8,
    /// Bits a KV element, everything in the objects counted.
    pub(crate) bits_per_element: f64,
    /// Bytes over all chunks.
    pub(crate) bytes: u64,
}

/// Quality of one way to keep a cache, over every measured position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QualityPoint {
    /// What it is: a level, or a plain format.
    pub(crate) name: String,
    /// Bits a KV element.
    pub(crate) bits_per_element: f64,
    /// Logit KL against the uncompressed cache, nats a token.
    pub(crate) kl: f64,
    /// Share of positions with the same most probable token.
    pub(crate) top1: f64,
    /// Perplexity of the continuation.
    pub(crate) perplexity: f64,
}

/// One chunk of the load.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChunkEvent {
    /// Level it arrived at; `None` where it was recomputed from text.
    pub(crate) level: Option<u8>,
    /// Bytes that travelled.
    pub(crate) bytes: u64,
    /// When its first request was sent, since the start of the load.
    pub(crate) from: Duration,
    /// When its last byte had arrived.
    pub(crate) until: Duration,
}

/// Everything behind the outcome.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Evidence {
    /// Chunks of the load, in order.
    pub(crate) chunks: Vec<ChunkEvent>,
    /// The link: `(seconds since the start, Mbit/s)`, a step function.
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
    /// Contexts they come from.
    pub(crate) contexts: usize,
    /// KL of what the load brought, nats a token.
    pub(crate) kl: f64,
    /// Generated over the uncompressed cache.
    pub(crate) text_full: String,
    /// Generated over the loaded cache.
    pub(crate) text_kvasir: String,
    /// Tokens of a chunk.
    pub(crate) chunk_tokens: usize,
}
