#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)
)]

mod builder;
mod directory;
mod error;
mod extensions;
mod fields;
mod head;
mod header;
mod limits;
mod measured;
mod opaque;
mod profile_head;
mod tokens;
mod verify;

pub use builder::{ChunkBuilder, ChunkMeta};
pub use directory::SectionId;
pub use error::{ContainerError, Part};
pub use extensions::Extension;
pub use head::{Head, PieceEntry};
pub use header::{ChunkHeader, reissue_header};
pub use limits::{
    BLOCK_HASH_BYTES, EXACT_TOKENS_MAX, EXTENSIONS_BYTES_MAX, FORMAT_VERSION, HEAD_BYTES_MAX, HEADER_BYTES,
    MAGIC, OBJECT_BYTES_MAX, OPAQUE_PIECE_BYTES, PIECE_BYTES_MAX, SECTIONS_MAX,
};
pub use measured::Measured;
pub use opaque::{Opaque, OpaqueHead};
pub use profile_head::{
    NO_KL, NOTE_BYTES_MAX, PROFILE_HEAD_BYTES_MAX, PROFILE_MAGIC, ProfileHead, ProfileHeadError,
    ProfileLevel, ProfileOrigin, STARTER_RECIPE, TRANSPARENT_NOTE,
};
pub use verify::ObjectVerifier;
