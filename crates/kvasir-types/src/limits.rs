//! Format constants and the limits that every crate shares, each with its reason.

/// Tokens of a *block*, the unit of matching. A constant of the format, independent of the engine's page
/// size.
pub const BLOCK_TOKENS: usize = 16;
/// Tokens of a *span*, the unit of checksums and of rANS streams: 8 rows of 32 lanes.
pub const SPAN_TOKENS: usize = 256;
/// A chunk's length is a multiple of this (the last chunk of a context may be partial).
pub const CHUNK_TOKENS_STEP: usize = SPAN_TOKENS;
/// Default length of a *chunk*, the unit of storage and of adaptation (CacheGen §5.3 uses 1.5 K tokens).
pub const CHUNK_TOKENS_DEFAULT: usize = 1536;
/// Longest chunk: keeps a directory below 64 spans, so that header and directory stay one small read.
pub const CHUNK_TOKENS_MAX: usize = 64 * SPAN_TOKENS;
/// Most quality levels of a profile: no application needs more than 3^7 between the coarsest and the finest
/// step.
pub const LEVELS_MAX: usize = 8;
/// Most layers of a model spec: the largest public models have 126; twice that leaves room.
pub const LAYERS_MAX: usize = 256;
/// Most rotated elements of a head that a formula may generate; the widest public models rotate 512. Bounds
/// the memory that a few bytes of JSON can cause.
pub const ROTARY_DIMS_MAX: u32 = 1024;
/// Most ropes of a model spec: public models have at most two.
pub(crate) const ROPES_MAX: usize = 32;
/// Most bytes of a model spec's names: weights, revision, adapter, thinning.
pub(crate) const SPEC_TEXT_BYTES_MAX: usize = 4 << 10;
/// Longest tenant, namespace, model or label name in bytes: a valid path segment on every supported store.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest key of an opaque object in bytes: keys that engines' connectors build from hashes have at most
/// 200.
pub const OBJECT_KEY_BYTES_MAX: usize = 512;

const _: () = assert!(SPAN_TOKENS.is_multiple_of(BLOCK_TOKENS) && SPAN_TOKENS.is_multiple_of(32));
const _: () = assert!(CHUNK_TOKENS_DEFAULT.is_multiple_of(CHUNK_TOKENS_STEP));
