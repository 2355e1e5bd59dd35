//! Chunk objects.

use kvasir_types::{Level, ObjectDigest, SeqHash};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Query of a chunk `GET`: without it, the whole object or the `Range` asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ChunkQuery {
    /// Only the byte prefix that decodes to this level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// Only the head and the pieces that hold the chunk's first so many tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// Only the head and these sections, by their numbers in the directory: `0-3,7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sections: Option<String>,
}

/// Query of a sample.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SampleQuery {
    /// Most chunks, 1 to 1,024; 256 where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1_024)]
    pub chunks: Option<usize>,
}

impl SampleQuery {
    /// Most chunks of a sample.
    pub const CHUNKS_MAX: usize = 1_024;
    /// Chunks of a sample where the query does not say.
    pub const CHUNKS_DEFAULT: usize = 256;
}

/// Stored chunks of a model in all namespaces of the tenant: those with the smallest hashes. Hashes are random, so they are a uniform
/// sample of what is stored, and stay the same while nothing is stored or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChunkSample {
    /// The chunks, by hash.
    pub chunks: Vec<SeqHash>,
}

/// Answer to storing a chunk: from here on it is durable and visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredChunk {
    /// The chunk.
    pub seq_hash: SeqHash,
    /// Name of the object.
    pub object_digest: ObjectDigest,
    /// Its size.
    pub bytes: u64,
    /// False when the very same object was there already.
    pub created: bool,
}

/// A presigned URL of one object, where the store has such.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectUrl {
    /// `GET` it, with a `Range`, and without the service's credentials.
    pub url: String,
    /// How long it is valid, from the answer on. Ask again before or after.
    pub expires_in_s: u64,
}
