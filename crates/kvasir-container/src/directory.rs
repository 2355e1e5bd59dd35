//! The directory: the sections in fetch order, and the position of each of their pieces.
//!
//! `section_count` × {`u16 scope`, `u8 band`, `u8 level`, `u8 flags`, `u8 reserved`}, then
//! `section_count` × `span_count` × {`u32 bytes` (0 = absent), `u32 crc32c`}, section by section.

use std::collections::BTreeSet;

use kvasir_types::Level;

use crate::{
    error::ContainerError,
    fields::{array, u16_at, u32_at, wide},
    header::ChunkHeader,
    limits::{PIECE_BYTES_MAX, PIECE_ENTRY_BYTES, SECTION_ENTRY_BYTES},
};

/// Identifies a section: a scope of the profile, a band of its coefficients, one level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectionId {
    /// Scope number in the profile.
    pub scope: u16,
    /// Band of the scope's coefficients; 0 if the profile has no bands.
    pub band: u8,
    /// The level to which this section refines its scope.
    pub level: Level,
    /// Bits whose meaning the profile's format defines; the container only carries them.
    pub flags: u8,
}

/// Position of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredPiece {
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
    pub(crate) crc: u32,
}

/// Reads the directory, whose length was checked. Offsets are prefix sums from `head_bytes`.
pub(crate) fn read(
    header: &ChunkHeader,
    bytes: &[u8],
    at: usize,
) -> Result<(Vec<SectionId>, Vec<StoredPiece>), ContainerError> {
    let split = usize::from(header.section_count).saturating_mul(SECTION_ENTRY_BYTES);
    let (ids, pieces) = bytes.split_at_checked(split).unwrap_or((bytes, &[]));
    let mut sections = Vec::with_capacity(usize::from(header.section_count));
    for (index, entry) in ids.chunks_exact(SECTION_ENTRY_BYTES).enumerate() {
        let [band, level, flags, reserved] = array(entry, 2);
        if reserved != 0 {
            let offset = wide(at.saturating_add(index.saturating_mul(SECTION_ENTRY_BYTES)).saturating_add(5));
            return Err(field(offset, "section.reserved", "must be 0", reserved));
        }
        sections.push(SectionId { scope: u16_at(entry, 0), band, level: Level(level), flags });
    }
    check_order(&sections, header.level_count)?;
    let mut stored = Vec::with_capacity(pieces.len().div_euclid(PIECE_ENTRY_BYTES));
    let mut offset = header.head_bytes();
    for (index, entry) in pieces.chunks_exact(PIECE_ENTRY_BYTES).enumerate() {
        let piece = StoredPiece { offset, bytes: u32_at(entry, 0), crc: u32_at(entry, 4) };
        let entry_at = at.saturating_add(split).saturating_add(index.saturating_mul(PIECE_ENTRY_BYTES));
        if piece.bytes > PIECE_BYTES_MAX {
            return Err(field(wide(entry_at), "piece.bytes", "must be at most 64 MiB", piece.bytes));
        }
        if piece.bytes == 0 && piece.crc != 0 {
            let crc_at = wide(entry_at).saturating_add(4);
            return Err(field(crc_at, "piece.crc32c", "must be 0 for an absent piece", piece.crc));
        }
        offset = offset.saturating_add(u64::from(piece.bytes));
        stored.push(piece);
    }
    if offset != header.object_bytes {
        return Err(field(
            176,
            "object_bytes",
            "must equal the head and the sum of the pieces",
            header.object_bytes,
        ));
    }
    Ok((sections, stored))
}

/// Level-major, every level below `level_count`, no identity twice: then every level is a byte prefix.
pub(crate) fn check_order(sections: &[SectionId], level_count: u8) -> Result<(), ContainerError> {
    let mut seen = BTreeSet::new();
    let mut level = Level::BASE;
    for (section, id) in sections.iter().enumerate() {
        let rule = if id.level.0 >= level_count {
            "its level is not below level_count"
        } else if id.level < level {
            "levels must not decrease in fetch order"
        } else if !seen.insert((id.scope, id.band, id.level)) {
            "the same scope, band and level occurred before"
        } else {
            level = id.level;
            continue;
        };
        return Err(ContainerError::SectionOrder { section, rule });
    }
    Ok(())
}

fn field(offset: u64, field: &'static str, rule: &'static str, actual: impl Into<u64>) -> ContainerError {
    ContainerError::Field { offset, field, rule, actual: actual.into() }
}
