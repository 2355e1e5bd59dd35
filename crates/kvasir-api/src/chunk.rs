//! Chunk objects.

use kvasir_types::{Level, ObjectDigest, SeqHash};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Query of a chunk `GET`; without it, the whole object or the requested `Range`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ChunkQuery {
    /// Only the byte prefix that decodes to this level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// Only the head and the pieces with this many of the chunk's first tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// Only the head and these sections, by number in the directory: `0-3,7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sections: Option<String>,
}

/// Query of a sample.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SampleQuery {
    /// Maximum number of chunks, 1 to 1,024; default 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1_024)]
    pub chunks: Option<usize>,
}

impl SampleQuery {
    /// Most chunks of a sample.
    pub const CHUNKS_MAX: usize = 1_024;
    /// Default number of chunks in a sample.
    pub const CHUNKS_DEFAULT: usize = 256;
}

/// Stored chunks of a model in all namespaces of the tenant: those with the smallest hashes. Hashes are
/// random, so these are a uniform sample, which does not change unless chunks are stored or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChunkSample {
    /// The chunks, by hash.
    pub chunks: Vec<SeqHash>,
    /// When each of them was first stored, in milliseconds since 1970 by the store's clock. Empty in answers of
    /// services that do not tell.
    #[serde(default)]
    pub stored_at_ms: Vec<u64>,
}

/// Response to storing a chunk: it is now durable and visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredChunk {
    /// The chunk.
    pub seq_hash: SeqHash,
    /// Name of the object.
    pub object_digest: ObjectDigest,
    /// Its size.
    pub bytes: u64,
    /// False if the identical object was already stored.
    pub created: bool,
}

/// When an object was stored, when it expires, and how this replica used it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChunkStatus {
    /// When it was stored, in milliseconds since 1970 by the store's clock.
    pub stored_at_ms: u64,
    /// When it expires unless a context pins it, in milliseconds since 1970; absent: this replica's collector has no
    /// time to live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// Its use through this replica; absent: none is remembered, or uses are not recorded because the cold tier has no
    /// capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_here: Option<ChunkUse>,
}

/// How one replica used an object, as far back as it remembers: at most to its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChunkUse {
    /// Lookups that matched it, and requests that read it.
    pub uses: u64,
    /// Time since the last of them, in milliseconds.
    pub last_ago_ms: u64,
}

/// A presigned URL of one object, if the store supports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectUrl {
    /// `GET` it, optionally with a `Range`, and without the service's credentials.
    pub url: String,
    /// Validity, in seconds from the response. Request a new URL at any time.
    pub expires_in_s: u64,
}
