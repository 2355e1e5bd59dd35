//! Header, block hashes, directory, extensions and tokens: all that a reader needs before it fetches a piece.

use std::ops::Range;

use kvasir_types::Level;

use crate::{
    directory::{self, SectionId, StoredPiece},
    error::{ContainerError, Part},
    extensions::{self, Extension},
    fields::wide,
    header::ChunkHeader,
    limits::{BLOCK_HASH_BYTES, HEADER_BYTES},
    measured::Measured,
    opaque::Opaque,
    tokens,
};

/// A piece's place in the object and its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceEntry {
    /// Byte range in the object; never empty.
    pub range: Range<u64>,
    /// CRC32C of those bytes.
    pub crc32c: u32,
}

/// The parsed and verified first [`head_bytes`](ChunkHeader::head_bytes) bytes of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// The header.
    pub header: ChunkHeader,
    /// First 8 bytes of the `seq_hash` of every block, the last one included.
    pub block_hashes: Vec<[u8; BLOCK_HASH_BYTES]>,
    /// Extensions in the object, by ascending kind.
    pub extensions: Vec<Extension>,
    /// The chunk's tokens.
    pub tokens: Vec<u32>,
    sections: Vec<SectionId>,
    pieces: Vec<StoredPiece>,
    measured: Option<Measured>,
    opaque: Option<Opaque>,
}

impl Head {
    /// Reads and verifies a head from the start of `bytes`; it does not read the pieces that follow.
    ///
    /// # Errors
    /// As [`ChunkHeader::parse`]; [`ContainerError::Truncated`] where the head is not all there; checksums, limits and
    /// order of directory and extensions; an extension that must not be skipped; tokens that do not decompress to `token_count`.
    pub fn parse(bytes: &[u8]) -> Result<Self, ContainerError> {
        let header = ChunkHeader::parse(bytes)?;
        let cut = |part, end: usize| {
            let whole = bytes.get(..end);
            whole.ok_or(ContainerError::Truncated { part, expected: wide(end), actual: wide(bytes.len()) })
        };
        let tokens_at = header.tokens_offset();
        let directory_at = HEADER_BYTES.saturating_add(header.block_hash_bytes());
        let directory = cut(Part::Directory, tokens_at)?;
        check_crc(Part::Directory, header.directory_crc, directory.get(HEADER_BYTES..))?;
        let end = usize::try_from(header.head_bytes()).unwrap_or(usize::MAX);
        let packed = cut(Part::Tokens, end)?.get(tokens_at..).unwrap_or_default();
        check_crc(Part::Tokens, header.tokens_crc, Some(packed))?;
        let hashes = directory.get(HEADER_BYTES..directory_at).unwrap_or_default();
        let extensions_at = header.extensions_offset();
        let entries = directory.get(directory_at..extensions_at).unwrap_or_default();
        let (sections, pieces) = directory::read(&header, entries, directory_at)?;
        let extensions = directory.get(extensions_at..).unwrap_or_default();
        let extensions = extensions::read(extensions, extensions_at)?;
        let measured = extensions.iter().find(|extension| extension.kind == Measured::KIND);
        let measured = measured
            .map(|extension| Measured::read(&extension.data, header.level_count, wide(extensions_at)));
        let measured = measured.transpose()?;
        let opaque = Opaque::of(&header, &extensions, wide(extensions_at))?;
        let tokens = match &opaque {
            Some(_) => Vec::new(),
            None => tokens::decompress(packed, usize::try_from(header.token_count).unwrap_or(usize::MAX))?,
        };
        let block_hashes = hashes.as_chunks().0.to_vec();
        Ok(Self { block_hashes, extensions, tokens, sections, pieces, measured, opaque, header })
    }

    /// The description of an opaque object; `None` for a chunk.
    pub fn opaque(&self) -> Option<&Opaque> {
        self.opaque.as_ref()
    }

    /// The errors that the encoder measured; `None` if it did not.
    pub fn measured(&self) -> Option<&Measured> {
        self.measured.as_ref()
    }

    /// The sections in fetch order.
    pub fn sections(&self) -> &[SectionId] {
        &self.sections
    }

    /// Number of spans of every section.
    pub fn span_count(&self) -> usize {
        usize::from(self.header.span_count)
    }

    fn stored(&self, section: usize, span: usize) -> Option<&StoredPiece> {
        if span >= self.span_count() {
            return None;
        }
        self.pieces.get(section.checked_mul(self.span_count())?.checked_add(span)?)
    }

    /// Position of a piece. `None` if it is absent (all its coefficients are as predicted) or outside the
    /// chunk.
    pub fn piece(&self, section: usize, span: usize) -> Option<PieceEntry> {
        let &StoredPiece { offset, bytes, crc } =
            self.stored(section, span).filter(|piece| piece.bytes > 0)?;
        Some(PieceEntry { range: offset..offset.saturating_add(u64::from(bytes)), crc32c: crc })
    }

    /// All present pieces in the order of their bytes: section, span, entry.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, usize, PieceEntry)> + '_ {
        let spans = 0..self.span_count();
        let all =
            (0..self.sections.len()).flat_map(move |section| spans.clone().map(move |span| (section, span)));
        all.filter_map(|(section, span)| Some((section, span, self.piece(section, span)?)))
    }

    /// Byte range of all pieces of a section; empty if all are absent, `None` outside the chunk.
    pub fn section_range(&self, section: usize) -> Option<Range<u64>> {
        let first = self.stored(section, 0)?;
        let last = self.stored(section, self.span_count().checked_sub(1)?)?;
        Some(first.offset..last.offset.saturating_add(u64::from(last.bytes)))
    }

    /// Length of the object prefix that decodes to `level`; `None` if the chunk has no such level.
    pub fn level_bytes(&self, level: Level) -> Option<u64> {
        if level.0 >= self.header.level_count {
            return None;
        }
        let last = self.sections.partition_point(|id| id.level <= level).checked_sub(1);
        last.and_then(|section| self.section_range(section))
            .map_or(Some(self.header.head_bytes()), |r| Some(r.end))
    }

    /// The best level that the first `prefix_bytes` bytes of the object decode to.
    pub fn best_level(&self, prefix_bytes: u64) -> Option<Level> {
        (0..self.header.level_count)
            .map(Level)
            .rev()
            .find(|&level| self.level_bytes(level).is_some_and(|needed| needed <= prefix_bytes))
    }

    /// Verifies the bytes of one piece.
    ///
    /// # Errors
    /// [`ContainerError::NoSuchPiece`], [`Length`](ContainerError::Length), [`Checksum`](ContainerError::Checksum).
    pub fn check_piece(&self, section: usize, span: usize, bytes: &[u8]) -> Result<(), ContainerError> {
        let part = Part::Piece { section, span };
        let piece = self.stored(section, span).filter(|piece| piece.bytes > 0);
        let piece = piece.ok_or(ContainerError::NoSuchPiece { part })?;
        let (expected, actual) = (u64::from(piece.bytes), wide(bytes.len()));
        if expected != actual {
            return Err(ContainerError::Length { part, expected, actual });
        }
        check_crc(part, piece.crc, Some(bytes))
    }

    /// Recomputes the block hashes from `chain_key` and `parent_hash` over the tokens, and the chunk's `seq_hash`; of an opaque
    /// object, both from `chain_key` and its key.
    ///
    /// # Errors
    /// [`ContainerError::Chain`] with the first block that differs.
    pub fn verify_chain(&self) -> Result<(), ContainerError> {
        let mut last = None;
        let of_key = self.opaque.iter().map(|opaque| self.header.chain_key.object(opaque.key()));
        for (block, hash) in of_key.chain(self.header.link().blocks(&self.tokens)).enumerate() {
            if self.block_hashes.get(block) != hash.as_bytes().first_chunk() {
                return Err(ContainerError::Chain { block });
            }
            last = Some(hash);
        }
        match last {
            Some(hash) if hash == self.header.seq_hash => Ok(()),
            _ => Err(ContainerError::Chain { block: self.header.block_count().saturating_sub(1) }),
        }
    }
}

/// Compares a stored checksum with that of `bytes`.
pub(crate) fn check_crc(part: Part, expected: u32, bytes: Option<&[u8]>) -> Result<(), ContainerError> {
    let actual = crc32c::crc32c(bytes.unwrap_or_default());
    if expected == actual { Ok(()) } else { Err(ContainerError::Checksum { part, expected, actual }) }
}
