//! The longest usable prefix of a token sequence.

use kvasir_types::{Level, LevelError, Loss, Medium, ModelId, Name, ObjectDigest, ProfileHash, SeqHash};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Maximum number of tokens of a lookup by tokens: the longest contexts in use have 1 M.
pub const LOOKUP_TOKENS_MAX: usize = 1 << 20;
/// Most hashes of a lookup by block hashes.
pub const LOOKUP_BLOCKS_MAX: usize = LOOKUP_TOKENS_MAX / kvasir_types::BLOCK_TOKENS;

/// Queries the longest stored prefix. Give exactly one of `tokens`, `block_hashes` and `chunk_ids`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LookupRequest {
    /// The model.
    pub model_id: ModelId,
    /// The namespace.
    pub namespace: Name,
    /// The tokens; the server hashes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
    /// Hashes of consecutive blocks, starting at the root (the last one may be a shorter tail).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_hashes: Option<Vec<SeqHash>>,
    /// `seq_hash` of consecutive chunks, starting at the root: for a context whose chunks the caller knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_ids: Option<Vec<SeqHash>>,
    /// Bypass cached misses and query the store, including tombstones of matched chunks.
    #[serde(default)]
    pub fresh: bool,
    /// Request presigned URLs if the store supports them; otherwise every chunk is read through the service.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
}

/// Query of a lookup whose body is binary: tokens ([`MEDIA_TOKENS`](crate::MEDIA_TOKENS)) or block hashes
/// ([`MEDIA_BLOCKS`](crate::MEDIA_BLOCKS)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LookupQuery {
    /// The model.
    pub model_id: ModelId,
    /// The namespace.
    pub namespace: Name,
    /// As [`LookupRequest::fresh`].
    #[serde(default)]
    pub fresh: bool,
    /// As [`LookupRequest::direct`].
    #[serde(default)]
    pub direct: bool,
}

/// The longest usable prefix, chunk by chunk from the first token on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LookupResponse {
    /// Total number of matched tokens.
    pub matched_tokens: u64,
    /// The objects that contain them, in order.
    pub chunks: Vec<ChunkMatch>,
}

/// One object of a match.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChunkMatch {
    /// The chunk's identity.
    pub seq_hash: SeqHash,
    /// The object.
    pub object_digest: ObjectDigest,
    /// The profile it was encoded with.
    pub profile_hash: ProfileHash,
    /// Position of its first token in the context.
    pub first_token: u64,
    /// Number of tokens in it.
    pub tokens: u32,
    /// Number of its leading tokens that match: all of them, except in the last chunk of a match.
    pub matched_tokens: u32,
    /// Size of the whole object.
    pub bytes: u64,
    /// Bytes of header, block hashes, directory and tokens: these must be read first.
    pub head_bytes: u64,
    /// `level_bytes[l]`: length of the object's prefix that decodes to level `l`.
    pub level_bytes: Vec<u64>,
    /// Sum of the predicted logit KL (nats per token) of the prefixes that this chunk was computed over.
    pub kl_beneath: f32,
    /// Errors of its levels, if its encoder measured them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<ChunkErrors>,
    /// Location of its bytes.
    pub medium: Medium,
    /// How to read it.
    pub via: Via,
}

/// Errors of a chunk's levels, as measured by its encoder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChunkErrors {
    /// Error of each level, coarsest first: that of its worst plane.
    pub levels: Vec<LevelError>,
    /// Largest error of the KV that the chunk was computed over.
    pub beneath: LevelError,
    /// Length of the chain of computations over lossy KV, including the chunk itself.
    pub hops: u8,
}

impl ChunkMatch {
    /// The loss of KV decoded at a level whose predicted KL is `kl`. Without measurements, the error is
    /// unknown and no hop is counted.
    pub fn loss_at(&self, level: Level, kl: f64) -> Loss {
        let beneath = f64::from(self.kl_beneath);
        let Some(errors) = &self.errors else {
            return Loss { kl: beneath + kl, error: LevelError::UNKNOWN, hops: 0 };
        };
        let own = errors.levels.get(level.index()).copied().unwrap_or(LevelError::UNKNOWN);
        Loss { kl: beneath, error: errors.beneath, hops: errors.hops }.through(kl, own)
    }
}

/// How a chunk is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// Through the service.
    Proxy,
    /// From the object store, with this presigned URL.
    Direct {
        /// Presigned `GET` URL that supports `Range`.
        url: String,
        /// Validity, in seconds from the response; 0 if unknown. Look up again for a new URL.
        #[serde(default)]
        expires_in_s: u64,
    },
}
