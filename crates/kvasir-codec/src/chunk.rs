//! The two traits that clients and engines use: chunks to objects, and objects to chunks.

use std::{ops::Range, sync::Arc};

use kvasir_container::Head;
use kvasir_types::{ChainLink, Level, Loss, ProfileHash};

use crate::{DecodeError, EncodeError, KvSink, KvSource, Profile};

/// Everything that becomes one chunk object. Block hashes and `seq_hash` are derived from `link` and `tokens`; model and profile are the encoder's.
#[derive(Clone, Copy)]
pub struct ChunkInput<'a> {
    /// The chunk's tokens, 1 to [`kvasir_types::CHUNK_TOKENS_MAX`].
    pub tokens: &'a [u32],
    /// The token before the chunk, if there is one and it may be stored.
    pub preceding_token: Option<u32>,
    /// Absolute position of the first token.
    pub first_position: u64,
    /// Where the chunk attaches to its chain.
    pub link: ChainLink,
    /// The loss of the prefix over which this KV was computed.
    pub beneath: Loss,
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

/// Converts chunks to objects. The same symbols give the same bytes on every path.
pub trait ChunkEncoder: Send + Sync {
    /// Encodes all levels of a chunk into one object.
    ///
    /// # Errors
    /// See [`EncodeError`]. Values are never the reason: non-finite ones are stored exactly.
    fn encode(&self, input: &ChunkInput<'_>) -> Result<Vec<u8>, EncodeError>;

    /// The profile that objects will name.
    fn profile_hash(&self) -> ProfileHash;

    /// Levels of every object.
    fn level_count(&self) -> usize;
}

/// One scope of a profile, with the data needed to decide which reader needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeReach {
    /// Index in the profile.
    pub scope: usize,
    /// The range from its first to its last layer.
    pub layers: Range<usize>,
    /// The range from its first to its last head.
    pub heads: Range<usize>,
}

/// Layers that decode together: no scope reaches out of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerGroup {
    /// The layers.
    pub layers: Range<usize>,
    /// The scopes that hold them.
    pub scopes: Vec<ScopeReach>,
}

/// Turns objects, or byte prefixes of them, back into KV.
pub trait ChunkDecoder: Send + Sync {
    /// The model's layers in the finest groups that decode separately, in layer order. Empty if a decoder
    /// only supports all layers together.
    fn layer_groups(&self) -> &[LayerGroup] {
        &[]
    }

    /// As [`decode`](Self::decode), but only the scopes of `group` (one of
    /// [`layer_groups`](Self::layer_groups), or fewer scopes of it): those that a pipeline stage or a
    /// tensor-parallel rank needs, or the layers needed next.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    fn decode_group(
        &self,
        head: &Head,
        object_prefix: &[u8],
        group: &LayerGroup,
        level: Level,
        tokens: Range<usize>,
        sink: &mut dyn KvSink,
    ) -> Result<(), DecodeError> {
        let _ = group;
        self.decode(head, object_prefix, level, tokens, sink)
    }

    /// The profile of its chunks, for a decoder on a device; `None` if there is none to share.
    fn shared_profile(&self) -> Option<&Arc<Profile>> {
        None
    }

    /// Predicted logit KL of every level in nats per token, coarsest first, if the profile says.
    fn level_kl(&self) -> Option<Vec<f64>> {
        None
    }

    /// Decodes `tokens` (relative to the chunk) at `level` and writes all layers of them to `sink`.
    ///
    /// `object_prefix` starts at the object's first byte and may end anywhere after the last piece needed.
    /// Bytes before and between the needed pieces are not looked at. Nothing is written before every piece
    /// it depends on was checked against its checksum.
    ///
    /// # Errors
    /// See [`DecodeError`]. After an error some rows of `tokens` may have been written, of exact tokens also lossy
    /// ones: use none of them.
    fn decode(
        &self,
        head: &Head,
        object_prefix: &[u8],
        level: Level,
        tokens: Range<usize>,
        sink: &mut dyn KvSink,
    ) -> Result<(), DecodeError>;
}
