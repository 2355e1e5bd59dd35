//! Named limits of the engine, each with its reason.

/// Default number of tokens per page: vLLM's default, and the size of Kvasir's block.
pub const PAGE_TOKENS_DEFAULT: usize = kvasir_types::BLOCK_TOKENS;
/// Longest page: above this a sequence wastes more memory in its last page than it holds.
pub const PAGE_TOKENS_MAX: usize = 1024;
/// Default number of tokens per prefill step. It bounds the activations (scores are `heads × this × context`
/// floats).
pub const PREFILL_TOKENS_DEFAULT: usize = 256;
/// Commands that may wait for the scheduler's thread. It drains the queue between steps, so this is the
/// maximum per step.
pub const COMMANDS_QUEUE: usize = 256;
/// Loads that run at the same time. They share one link, and each holds pages while it runs.
pub const LOADS_AT_ONCE: usize = 8;
/// A load must bring at least this many tokens more than memory holds; computing fewer is faster than a
/// request.
pub const LOAD_GAIN_TOKENS_MIN: usize = 32;
/// Largest body of a completion request: a million tokens as JSON numbers are 7 MB.
pub const REQUEST_BYTES_MAX: usize = 8 << 20;
/// Most tokens that a request may generate, whatever the context; bounds its channel.
pub const ANSWER_TOKENS_MAX: usize = 1 << 16;
/// Stop sequences per request, as in OpenAI's API, and their maximum length.
pub const STOPS_MAX: usize = 4;
/// Bytes of one stop sequence: held back from a stream while it could still become one.
pub const STOP_BYTES_MAX: usize = 256;
