//! Chooses a row kernel at run time.

use kvasir_types::Rope;

#[cfg(target_arch = "x86_64")]
use super::x86_64::{Avx2, Avx512};
use crate::{
    direct_rows::{
        QuantisedRows, Scaling, TILE, bf16_rows_portable,
        bf16_tiles::{Bf16Rows, Lane, RotationTable, RowScratch},
        quantise_tiles::{QuantiseTarget, QuantiserSteps, quantise_tile},
        scale_rows_portable,
    },
    synthesis::{MemberTile, TileList, TileRows},
};

/// Makes rows of direct scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowKernel(RowPath);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowPath {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl RowKernel {
    /// The portable one.
    pub(crate) fn portable() -> Self {
        Self(RowPath::Portable)
    }

    /// The fastest.
    pub(crate) fn best() -> Self {
        Self::available().pop().unwrap_or(Self::portable())
    }

    /// All, slowest first.
    pub(crate) fn available() -> Vec<Self> {
        let mut paths = vec![Some(RowPath::Portable)];
        #[cfg(target_arch = "x86_64")]
        paths.extend([Avx2::new().map(RowPath::Avx2), Avx512::new().map(RowPath::Avx512)]);
        paths.into_iter().flatten().map(Self).collect()
    }

    /// For reports; the same names as those of stream decoders.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            RowPath::Portable => "scalar",
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx512(_) => "avx512",
        }
    }

    /// `rows[token][element]` from `values[element][token]`; the caller checked the lengths.
    pub(crate) fn scale_rows(self, scaling: &Scaling<'_>, tokens: usize, values: &[i32], rows: &mut [f32]) {
        match self.0 {
            RowPath::Portable => {
                let all = (0..scaling.elements(), 0..tokens);
                scale_rows_portable(scaling, tokens, values, rows, all);
            }
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx2(_) => {
                let all = (0..scaling.elements(), 0..tokens);
                scale_rows_portable(scaling, tokens, values, rows, all);
            }
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx512(cpu) => cpu.scale_rows(scaling, tokens, values, rows),
        }
    }

    /// Sines and cosines of a rope.
    pub(crate) fn rotation_table(self, rope: &Rope, first: u64, tokens: usize) -> RotationTable {
        match self.0 {
            RowPath::Portable => RotationTable::portable(rope, first, tokens),
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx2(cpu) => cpu.rotation_table(rope, first, tokens),
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx512(cpu) => cpu.rotation_table(rope, first, tokens),
        }
    }

    /// The same turned and rounded; the caller checked the lengths.
    pub(crate) fn bf16_rows(
        self,
        scaling: &Scaling<'_>,
        rotation: Option<&RotationTable>,
        values: QuantisedRows<'_, i16>,
        rows: Bf16Rows<'_>,
        scratch: &mut RowScratch,
    ) {
        match self.0 {
            RowPath::Portable => bf16_rows_portable(scaling, rotation, values, rows, scratch),
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx2(cpu) => cpu.bf16_rows(scaling, rotation, values, rows, scratch),
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx512(cpu) => cpu.bf16_rows(scaling, rotation, values, rows, scratch),
        }
    }

    /// Whether products of words are faster than those of floats.
    pub(crate) fn multiplies_words(self) -> bool {
        self.0 != RowPath::Portable
    }

    /// Elements of a tile: sums over panels of words, times their units.
    pub(crate) fn pair_sums(
        self,
        of: TileList<'_, u32>,
        panels: (&[i32], &[f32]),
        elements: &mut [Lane<f32>],
    ) {
        match self.0 {
            RowPath::Portable => of.sums_portable(panels, elements),
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx2(cpu) => cpu.pair_sums(of, panels, elements),
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx512(cpu) => cpu.pair_sums(of, panels, elements),
        }
    }

    /// A member's rows of one tile of tokens.
    pub(crate) fn member_tile(self, tile: &MemberTile<'_>, rows: TileRows<'_>, scratch: &mut RowScratch) {
        match self.0 {
            RowPath::Portable => tile.rows_portable(rows, scratch),
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx2(cpu) => cpu.member_tile(tile, rows, scratch),
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx512(cpu) => cpu.member_tile(tile, rows, scratch),
        }
    }

    /// Quantised values of rows; the caller checked the lengths.
    pub(crate) fn quantise_rows(
        self,
        steps: &QuantiserSteps<'_>,
        rotation: Option<&RotationTable>,
        tokens: usize,
        rows: &[f32],
        to: &mut QuantiseTarget<'_>,
        scratch: &mut RowScratch,
    ) -> bool {
        match self.0 {
            RowPath::Portable => {
                let tiles = rows.chunks(TILE * steps.mean.len()).enumerate();
                tiles.fold(true, |within, (tile, rows)| {
                    within & quantise_tile(steps, rotation, (tokens, tile), rows, to, scratch)
                })
            }
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx2(cpu) => cpu.quantise_rows(steps, rotation, tokens, rows, to, scratch),
            #[cfg(target_arch = "x86_64")]
            RowPath::Avx512(cpu) => cpu.quantise_rows(steps, rotation, tokens, rows, to, scratch),
        }
    }
}
