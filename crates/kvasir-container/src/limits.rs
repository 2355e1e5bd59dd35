//! Constants of the container and its limits, each with its reason.

use kvasir_types::{CHUNK_TOKENS_MAX, SPAN_TOKENS};

/// First four bytes of a chunk object.
pub const MAGIC: [u8; 4] = *b"KVSC";
/// Major and minor version written by this crate. Readers accept this and every later minor version.
/// Additions of later versions are in extensions; each extension says whether a reader that does not know it
/// must reject the object.
pub const FORMAT_VERSION: (u8, u8) = (1, 1);
/// Size of the header.
pub const HEADER_BYTES: usize = 256;
/// Size of a stored block hash: the first bytes of the block's `seq_hash`. Against accidents, not adversaries:
/// the full `seq_hash` of the chunk is in the header.
pub const BLOCK_HASH_BYTES: usize = 8;
/// Size of a section's entry in the directory.
pub(crate) const SECTION_ENTRY_BYTES: usize = 6;
/// Size of a piece's entry in the directory.
pub(crate) const PIECE_ENTRY_BYTES: usize = 8;
/// Size of an extension before its data.
pub(crate) const EXTENSION_ENTRY_BYTES: usize = 8;
/// Most bytes of all extensions of an object. They are in the head, which is read first.
pub const EXTENSIONS_BYTES_MAX: usize = 64 << 10;
/// Most sections: 256 layers × 2 planes × 8 levels × 4 scopes each; a full directory stays below 8.5 MB.
pub const SECTIONS_MAX: usize = 16_384;
/// Most spans of a chunk.
pub(crate) const SPANS_MAX: usize = CHUNK_TOKENS_MAX / SPAN_TOKENS;
/// Longest piece: 256 tokens × 65,536 elements × 4 bytes, the widest layer a model spec allows, uncompressed.
pub const PIECE_BYTES_MAX: u32 = 1 << 26;
/// Length of an opaque object's pieces, except the last: the unit of its checksums, small compared with a
/// request's 4 to 32 MB.
pub const OPAQUE_PIECE_BYTES: u32 = 1 << 20;
/// Longest object: S3's limit for a single PUT, because an object is written with one PUT.
pub const OBJECT_BYTES_MAX: u64 = 5 << 30;
/// Most exact tokens at the start of a context (attention sinks): one block.
pub const EXACT_TOKENS_MAX: u8 = 16;
/// Room for the frame that zstd adds to incompressible tokens.
pub(crate) const TOKENS_SLACK_BYTES: usize = 1024;
/// Longest head (header, block hashes, directory, extensions, tokens): bounds the memory of a reader before
/// it reads the first piece.
pub const HEAD_BYTES_MAX: usize = 10 << 20;
/// zstd level for tokens: a chunk has a few kilobytes of them.
pub(crate) const TOKENS_ZSTD_LEVEL: i32 = 19;

const _: () = assert!(
    HEADER_BYTES
        + CHUNK_TOKENS_MAX / kvasir_types::BLOCK_TOKENS * BLOCK_HASH_BYTES
        + SECTIONS_MAX * (SECTION_ENTRY_BYTES + SPANS_MAX * PIECE_ENTRY_BYTES)
        + EXTENSIONS_BYTES_MAX
        + CHUNK_TOKENS_MAX * 4
        + TOKENS_SLACK_BYTES
        <= HEAD_BYTES_MAX
);
