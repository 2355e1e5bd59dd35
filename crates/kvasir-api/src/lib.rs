//! Everything that is on Kvasir's wire: requests, responses and error codes of the `/v1` REST API.
//!
//! The server and the client share these types, so they cannot disagree. Paths are built by [`routes`];
//! errors are RFC 9457 problem documents with a stable [`ErrorCode`].

#![forbid(unsafe_code)]

mod access;
mod chunk;
mod error;
mod lookup;
mod model;
pub mod routes;

pub use access::{Role, required_role};
pub use chunk::{ChunkQuery, StoredChunk};
pub use error::{ErrorCode, Problem};
pub use lookup::{
    ChunkMatch, LOOKUP_BLOCKS_MAX, LOOKUP_TOKENS_MAX, LookupQuery, LookupRequest, LookupResponse, Via,
};
pub use model::{
    ConfigResponse, NamespaceRequest, NamespaceResponse, ProfileInfo, ProfileList, RegisteredModel,
    StoreCapabilities,
};

pub use kvasir_types as types;

/// Media type of a chunk object.
pub const MEDIA_CHUNK: &str = "application/vnd.kvasir.chunk";
/// Media type of a profile.
pub const MEDIA_PROFILE: &str = "application/vnd.kvasir.profile";
/// Media type of raw tokens: u32 little endian, one after the other.
pub const MEDIA_TOKENS: &str = "application/vnd.kvasir.tokens";
/// Media type of an error.
pub const MEDIA_PROBLEM: &str = "application/problem+json";
