//! Named limits of the engine, each with its reason.

/// Tokens of a page unless told otherwise: vLLM's default, and Kvasir's block.
pub const PAGE_TOKENS_DEFAULT: usize = kvasir_types::BLOCK_TOKENS;
/// Longest page: above this a sequence wastes more memory in its last page than it holds.
pub const PAGE_TOKENS_MAX: usize = 1024;
/// Tokens a prefill step takes at once: bounds its activations (scores are `heads × this × context` floats).
pub const PREFILL_TOKENS_DEFAULT: usize = 256;
/// Largest KV dump that is read into memory at once: 16 GiB is 128 K tokens of an 8B GQA model.
pub const DUMP_BYTES_MAX: u64 = 16 << 30;
/// Most tokens of a dump; the longest contexts in use are 1 M.
pub const DUMP_TOKENS_MAX: usize = 1 << 20;
