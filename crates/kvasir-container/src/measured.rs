//! The errors of a chunk's levels as measured by the encoder. Extension of kind 1 (FORMAT.md §3.4).

use kvasir_types::{Level, LevelError};

use crate::{error::ContainerError, extensions::Extension, fields::wide};

/// Bytes before the errors.
const PREFIX_BYTES: usize = 4;

/// The errors of a chunk's lossy levels, and the error of the context that the chunk was computed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// The worst error of the KV that the chunk was computed over.
    pub beneath: LevelError,
    /// How many times KV beneath the chunk was computed over lossy KV, the chunk itself included.
    pub hops: u8,
    /// `[lossy level][2 · layer + plane]`, coarsest first: the worst head of each plane.
    pub levels: Vec<Vec<LevelError>>,
}

impl Measured {
    /// The kind of the extension.
    pub const KIND: u16 = 1;

    /// The error of a level: that of its worst plane. Levels above the lossy ones are exact.
    pub fn error(&self, level: Level) -> LevelError {
        self.levels
            .get(level.index())
            .map_or(LevelError::NONE, |planes| planes.iter().copied().max().unwrap_or(LevelError::UNKNOWN))
    }

    /// The extension that holds it.
    pub fn to_extension(&self) -> Extension {
        let levels = u8::try_from(self.levels.len()).unwrap_or(u8::MAX);
        let mut data = vec![self.beneath.to_byte(), self.hops, levels, 0];
        data.extend(self.levels.iter().flatten().map(|error| error.to_byte()));
        Extension { kind: Self::KIND, required: false, data }
    }

    /// Reads the extension of an object with `level_count` levels; its data begins at `offset` of the object.
    pub(crate) fn read(data: &[u8], level_count: u8, offset: u64) -> Result<Self, ContainerError> {
        let field = |into, field, rule, actual| {
            Err(ContainerError::Field { offset: offset.saturating_add(into), field, rule, actual })
        };
        let Some((&[beneath, hops, levels, reserved], errors)) = data.split_first_chunk::<PREFIX_BYTES>()
        else {
            return field(0, "measured", "must have 4 bytes before the errors", wide(data.len()));
        };
        // The finest level alone may be exact: of any other, an error that is not said would pass for none.
        if !(level_count.saturating_sub(1)..=level_count).contains(&levels) {
            return field(2, "measured.levels", "must be level_count, or one less", levels.into());
        }
        if reserved != 0 {
            return field(3, "measured.reserved", "must be 0", reserved.into());
        }
        let planes = errors.len().checked_div(levels.into()).unwrap_or(0);
        if planes.saturating_mul(levels.into()) != errors.len() || (planes == 0) != (levels == 0) {
            return field(4, "measured.errors", "must be as many for each level", wide(errors.len()));
        }
        let row = |row: &[u8]| row.iter().copied().map(LevelError::from_byte).collect();
        let levels = errors.chunks_exact(planes.max(1)).map(row).collect();
        Ok(Self { beneath: LevelError::from_byte(beneath), hops, levels })
    }
}
