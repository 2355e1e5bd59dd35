//! Named limits, each with its reason.

/// Largest KV dump that is read into memory in one piece: 16 GiB is 128 K tokens of an 8B GQA model.
pub const DUMP_BYTES_MAX: u64 = 16 << 30;
/// Most tokens of a dump; the longest contexts in use are 1 M.
pub const DUMP_TOKENS_MAX: usize = 1 << 20;
