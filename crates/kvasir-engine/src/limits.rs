//! Named limits of the engine, each with its reason.

/// Tokens of a page unless told otherwise: vLLM's default, and Kvasir's block.
pub const PAGE_TOKENS_DEFAULT: usize = kvasir_types::BLOCK_TOKENS;
/// Longest page: above this a sequence wastes more memory in its last page than it holds.
pub const PAGE_TOKENS_MAX: usize = 1024;
/// Tokens a prefill step takes at once: bounds its activations (scores are `heads × this × context` floats).
pub const PREFILL_TOKENS_DEFAULT: usize = 256;
/// Commands that wait for the scheduler's thread: it takes them all between two steps, so this many come within one.
pub const COMMANDS_QUEUE: usize = 256;
/// Loads that run at once: they share one link, and each holds pages while it runs.
pub const LOADS_AT_ONCE: usize = 8;
/// Fewest tokens that a load must bring more than memory holds: below, computing them is sooner than asking.
pub const LOAD_GAIN_TOKENS_MIN: usize = 32;
/// Largest body of a completion request: a million tokens as JSON numbers are 7 MB.
pub const REQUEST_BYTES_MAX: usize = 8 << 20;
/// Most tokens that a request may ask for, whatever the context: bounds its channel.
pub const ANSWER_TOKENS_MAX: usize = 1 << 16;
/// Stop sequences of a request, as OpenAI has it, and their longest.
pub const STOPS_MAX: usize = 4;
/// Bytes of one stop sequence: held back from a stream while it could still become one.
pub const STOP_BYTES_MAX: usize = 256;
