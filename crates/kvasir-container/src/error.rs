//! Why bytes are not a valid chunk object, or input cannot become one.

use std::fmt;

use crate::limits::FORMAT_VERSION;

/// A part of an object that has a separate checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The 256-byte header.
    Header,
    /// Block hashes, directory and extensions.
    Directory,
    /// The compressed tokens.
    Tokens,
    /// One piece.
    Piece {
        /// Index in the directory.
        section: usize,
        /// Span index.
        span: usize,
    },
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("header"),
            Self::Directory => f.write_str("directory"),
            Self::Tokens => f.write_str("tokens"),
            Self::Piece { section, span } => write!(f, "piece of section {section}, span {span}"),
        }
    }
}

/// An object that must not be used, or a chunk that cannot be written. Offsets are relative to the object's
/// start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// Some other kind of file.
    #[error("not a chunk object: it starts with {found:02x?}")]
    Magic {
        /// First four bytes.
        found: [u8; 4],
    },
    /// Written by a format that this build does not read.
    #[error(
        "format {}.{} is not supported, this build reads {}.{} and later minor versions; upgrade the reader or encode the chunk again",
        found.0, found.1, FORMAT_VERSION.0, FORMAT_VERSION.1
    )]
    Version {
        /// Major and minor version found.
        found: (u8, u8),
    },
    /// The bytes end before the part does.
    #[error("{part}: needs {expected} bytes from the object's start, there are {actual}")]
    Truncated {
        /// Part that is cut.
        part: Part,
        /// Offset of the end of the part.
        expected: u64,
        /// Bytes there are.
        actual: u64,
    },
    /// Bytes after the end given in the header.
    #[error("the object has bytes after its end at {expected} bytes")]
    Trailing {
        /// Length that the header names.
        expected: u64,
    },
    /// Stored and computed CRC32C differ.
    #[error("{part}: checksum is {actual:08x}, stored is {expected:08x}; the bytes are corrupt")]
    Checksum {
        /// Part.
        part: Part,
        /// CRC stored.
        expected: u32,
        /// CRC of the bytes.
        actual: u32,
    },
    /// A field with a value that the format forbids.
    #[error("offset {offset}: {field} is {actual}, but {rule}")]
    Field {
        /// Byte offset of the field (in a builder: where it would be written).
        offset: u64,
        /// Name of the field in FORMAT.md.
        field: &'static str,
        /// The rule that the value must satisfy.
        rule: &'static str,
        /// Value found.
        actual: u64,
    },
    /// Sections out of fetch order, or two with the same identity.
    #[error("section {section}: {rule}")]
    SectionOrder {
        /// Index in the directory.
        section: usize,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// An extension of a kind that this build does not know, and must not skip.
    #[error(
        "extension {kind} is not supported, and the object cannot be read without it; upgrade the reader"
    )]
    Extension {
        /// Its kind.
        kind: u16,
    },
    /// Extensions of a builder that do not ascend by kind.
    #[error("extension {kind}: kinds must ascend")]
    ExtensionOrder {
        /// The kind that is out of order.
        kind: u16,
    },
    /// The length of a piece differs from its directory entry.
    #[error("{part}: has {actual} bytes, but {expected} according to the directory")]
    Length {
        /// The part.
        part: Part,
        /// Bytes by the directory.
        expected: u64,
        /// Bytes given.
        actual: u64,
    },
    /// The (section, span) is not in this chunk, or has no piece.
    #[error("{part} does not exist in this chunk")]
    NoSuchPiece {
        /// The requested part.
        part: Part,
    },
    /// A builder was given pieces for another number of spans.
    #[error("section {section}: {actual} pieces for {expected} spans")]
    PieceCount {
        /// Index in the directory.
        section: usize,
        /// Spans of the chunk.
        expected: usize,
        /// Pieces given.
        actual: usize,
    },
    /// The tokens are not a zstd frame of exactly four bytes per token.
    #[error("tokens: not a zstd frame of {expected} bytes")]
    Tokens {
        /// Bytes of the uncompressed tokens.
        expected: u64,
    },
    /// zstd refused to compress the tokens (out of memory).
    #[error("tokens: zstd could not compress them")]
    Compress,
    /// The tokens do not hash to the block hash or to the `seq_hash` that the object names.
    #[error("block {block}: the hash of the tokens differs from the one in the object")]
    Chain {
        /// Index of the first block that differs.
        block: usize,
    },
}
