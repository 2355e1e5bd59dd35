//! The tables of a profile.

use std::sync::OnceLock;

use super::{
    alias::AliasTable,
    constants::{ALPHABET, PROBABILITY_ONE, STAGE_TABLES_MAX, TRIT_TABLES_MAX},
    error::TableError,
    stream::{
        inverted_stage::InvertedStage,
        simd_tables::{StageEncoding, TritEncoding},
    },
    trit::TritTable,
};
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
use super::{
    buckets::Buckets,
    u16_lanes::{StepTable, U16Lanes},
};

/// All tables that a profile's pieces name by number.
#[derive(Debug, Clone)]
pub struct TableBank {
    stage: Vec<AliasTable>,
    trit: Vec<TritTable>,
    /// Inverted stage tables, 8 KiB each; decoders never pay for them.
    encode: OnceLock<Vec<InvertedStage>>,
    /// Both kinds as SIMD encoders need them.
    wide: OnceLock<(Vec<StageEncoding>, Vec<TritEncoding>)>,
    /// The look-up tables for decoders of streams.
    #[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
    steps: OnceLock<StepTables>,
}

/// The look-up tables for decoders of streams.
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
#[derive(Debug, Clone)]
pub(crate) struct StepTables {
    /// Of stages, and of trits.
    pub(crate) of_kind: [Vec<StepTable>; 2],
    /// Whether one has a symbol with all slots.
    pub(crate) certain: bool,
}

impl TableBank {
    /// A bank of at most [`STAGE_TABLES_MAX`] and [`TRIT_TABLES_MAX`] tables.
    ///
    /// # Errors
    /// [`TableError::Count`].
    pub fn new(stage: Vec<AliasTable>, trit: Vec<TritTable>) -> Result<Self, TableError> {
        if stage.len() > STAGE_TABLES_MAX || trit.len() > TRIT_TABLES_MAX {
            return Err(TableError::Count { stage: stage.len(), trit: trit.len() });
        }
        Ok(Self::of(stage, trit))
    }

    fn of(stage: Vec<AliasTable>, trit: Vec<TritTable>) -> Self {
        Self {
            stage,
            trit,
            encode: OnceLock::new(),
            wide: OnceLock::new(),
            #[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
            steps: OnceLock::new(),
        }
    }

    /// The stage tables.
    pub fn stage_tables(&self) -> &[AliasTable] {
        &self.stage
    }

    /// The trit tables.
    pub fn trit_tables(&self) -> &[TritTable] {
        &self.trit
    }

    /// Stage tables and trit tables in the form for decoders of streams.
    #[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
    pub(crate) fn steps(&self) -> &StepTables {
        let stage = |table: &AliasTable| StepTable {
            u16_lanes: table.u16_lanes(),
            buckets: *table.buckets(),
            trit: TritTable::NONE,
        };
        let trit = |table: &TritTable| {
            let u16_lanes = U16Lanes::of_trit(|context, folded| table.range(context, folded));
            StepTable { u16_lanes, buckets: Buckets::NONE, trit: *table }
        };
        self.steps.get_or_init(|| {
            let of_kind: [Vec<_>; 2] =
                [self.stage.iter().map(stage).collect(), self.trit.iter().map(trit).collect()];
            let certain = of_kind.iter().flatten().any(|table| table.u16_lanes.certain);
            StepTables { of_kind, certain }
        })
    }

    /// The stage tables as encoders need them.
    pub(crate) fn inverted_stages(&self) -> &[InvertedStage] {
        self.encode.get_or_init(|| self.stage.iter().map(InvertedStage::new).collect())
    }

    fn wide(&self) -> &(Vec<StageEncoding>, Vec<TritEncoding>) {
        self.wide.get_or_init(|| {
            let stages = self.inverted_stages().iter().map(StageEncoding::new);
            (stages.collect(), self.trit.iter().map(TritEncoding::new).collect())
        })
    }

    /// The stage tables as SIMD encoders need them.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the portable encoder has others"))]
    pub(crate) fn stage_encodings(&self) -> &[StageEncoding] {
        &self.wide().0
    }

    /// The trit tables as SIMD encoders need them.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the portable encoder has others"))]
    pub(crate) fn trit_encodings(&self) -> &[TritEncoding] {
        &self.wide().1
    }

    /// A stage table inverted, for encoders that run elsewhere: the start of each symbol's frequencies, and
    /// the slot of every `start + offset`. `None` if the bank has no such table.
    pub fn inverted_stage(&self, table: usize) -> Option<(&[u32; ALPHABET], &[u16])> {
        let table = self.inverted_stages().get(table)?;
        Some((&table.starts, &table.slots[..PROBABILITY_ONE as usize]))
    }

    /// Serialised size: 4 bytes, 128 a stage table, 8 a trit table.
    pub fn byte_len(&self) -> usize {
        4 + self.stage.len() * AliasTable::BYTES + self.trit.len() * TritTable::BYTES
    }

    /// `u16 stage count · u16 trit count · stage tables · trit tables`.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.byte_len());
        out.extend_from_slice(&(self.stage.len() as u16).to_le_bytes());
        out.extend_from_slice(&(self.trit.len() as u16).to_le_bytes());
        self.stage.iter().for_each(|table| out.extend_from_slice(&table.to_bytes()));
        self.trit.iter().for_each(|table| out.extend_from_slice(&table.to_bytes()));
        out
    }

    /// Reads a bank from the start of `bytes` and returns it with the bytes after it. Total.
    ///
    /// # Errors
    /// [`TableError`]: too short, too many tables, or a table that is not a bijection.
    pub fn from_bytes(bytes: &[u8]) -> Result<(Self, &[u8]), TableError> {
        let short = |expected| TableError::Length { expected, actual: bytes.len() };
        let (counts, rest) = bytes.split_first_chunk::<4>().ok_or(short(4))?;
        let stage = usize::from(u16::from_le_bytes([counts[0], counts[1]]));
        let trit = usize::from(u16::from_le_bytes([counts[2], counts[3]]));
        if stage > STAGE_TABLES_MAX || trit > TRIT_TABLES_MAX {
            return Err(TableError::Count { stage, trit });
        }
        let (stage_bytes, trit_bytes) = (stage * AliasTable::BYTES, trit * TritTable::BYTES);
        let too_short = short(4 + stage_bytes + trit_bytes);
        let (stage_part, rest) = rest.split_at_checked(stage_bytes).ok_or(too_short)?;
        let (trit_part, rest) = rest.split_at_checked(trit_bytes).ok_or(too_short)?;
        let stage = stage_part.as_chunks().0.iter().map(AliasTable::from_bytes).collect::<Result<_, _>>()?;
        let trit = trit_part.as_chunks().0.iter().map(TritTable::from_bytes).collect::<Result<_, _>>()?;
        Ok((Self::of(stage, trit), rest))
    }
}
