//! The two traits that clients and engines see: a chunk goes in, an object comes out, and back.

use std::ops::Range;

use kvasir_container::Head;
use kvasir_types::{Level, ProfileHash};

use crate::{DecodeError, EncodeError, KvSink, KvSource};

/// Everything that becomes one chunk object. Block hashes and `seq_hash` are derived from `parent_hash` and
/// `tokens`; model and profile are the encoder's.
#[derive(Clone, Copy)]
pub struct ChunkInput<'a> {
    /// The chunk's tokens, 1 to [`kvasir_types::CHUNK_TOKENS_MAX`].
    pub tokens: &'a [u32],
    /// The token before the chunk, if there is one and it may be stored.
    pub preceding_token: Option<u32>,
    /// Absolute position of the first token.
    pub first_position: u64,
    /// Identity of everything before the chunk (a root's bytes at position 0).
    pub parent_hash: [u8; 32],
    /// Sum of the predicted KL, in nats per token, of the lossy prefix this KV was computed over; 0 over an
    /// exact prefix.
    pub kl_beneath: f32,
    /// The KV of `tokens`, relative to the chunk's start.
    pub kv: &'a dyn KvSource,
}

impl std::fmt::Debug for ChunkInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkInput")
            .field("tokens", &self.tokens.len())
            .field("first_position", &self.first_position)
            .finish_non_exhaustive()
    }
}

/// Turns chunks into objects. The same symbols give the same bytes on every path.
pub trait ChunkEncoder: Send + Sync {
    /// Encodes all levels of a chunk into one object.
    ///
    /// # Errors
    /// See [`EncodeError`]; values are never the reason: non-finite ones are stored as they are.
    fn encode(&self, input: &ChunkInput<'_>) -> Result<Vec<u8>, EncodeError>;

    /// The profile that objects will name.
    fn profile_hash(&self) -> ProfileHash;

    /// Levels of every object.
    fn level_count(&self) -> usize;
}

/// Turns objects, or byte prefixes of them, back into KV.
pub trait ChunkDecoder: Send + Sync {
    /// Decodes `tokens` (relative to the chunk) at `level` and writes all layers of them to `sink`.
    ///
    /// `object_prefix` starts at the object's first byte and may end anywhere after the last piece needed.
    /// Bytes before and between the needed pieces are not looked at. Nothing is written before every piece
    /// it depends on was checked against its checksum.
    ///
    /// # Errors
    /// See [`DecodeError`]. After an error some rows may have been written; they are right, but not all there.
    fn decode(
        &self,
        head: &Head,
        object_prefix: &[u8],
        level: Level,
        tokens: Range<usize>,
        sink: &mut dyn KvSink,
    ) -> Result<(), DecodeError>;
}
