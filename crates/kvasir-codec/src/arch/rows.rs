//! Choosing a row kernel at run time.

use kvasir_types::Rope;

#[cfg(target_arch = "x86_64")]
use super::x86_64::{Avx2, Avx512};
use crate::rows::{
    Quantised, Scaling, TILE,
    fine::{Quantising, Steps, fine_tile},
    half::{HalfRows, RowScratch, Turns},
    half_rows_portable, scale_rows_portable,
};

/// Makes rows of direct scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowKernel(Path);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl RowKernel {
    /// The portable one.
    pub(crate) fn portable() -> Self {
        Self(Path::Portable)
    }

    /// The fastest.
    pub(crate) fn best() -> Self {
        Self::available().pop().unwrap_or(Self::portable())
    }

    /// All, slowest first.
    pub(crate) fn available() -> Vec<Self> {
        let mut paths = vec![Some(Path::Portable)];
        #[cfg(target_arch = "x86_64")]
        paths.extend([Avx2::new().map(Path::Avx2), Avx512::new().map(Path::Avx512)]);
        paths.into_iter().flatten().map(Self).collect()
    }

    /// For reports; the same names as those of stream decoders.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            Path::Portable => "scalar",
            #[cfg(target_arch = "x86_64")]
            Path::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Path::Avx512(_) => "avx512",
        }
    }

    /// `rows[token][element]` from `values[element][token]`; the caller checked the lengths.
    pub(crate) fn scale_rows(self, scaling: &Scaling<'_>, tokens: usize, values: &[i32], rows: &mut [f32]) {
        match self.0 {
            Path::Portable => {
                let all = (0..scaling.elements(), 0..tokens);
                scale_rows_portable(scaling, tokens, values, rows, all);
            }
            #[cfg(target_arch = "x86_64")]
            Path::Avx2(_) => {
                let all = (0..scaling.elements(), 0..tokens);
                scale_rows_portable(scaling, tokens, values, rows, all);
            }
            #[cfg(target_arch = "x86_64")]
            Path::Avx512(cpu) => cpu.scale_rows(scaling, tokens, values, rows),
        }
    }

    /// Sines and cosines of a rope.
    pub(crate) fn turns(self, rope: &Rope, first: u64, tokens: usize) -> Turns {
        match self.0 {
            Path::Portable => Turns::portable(rope, first, tokens),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2(cpu) => cpu.turns(rope, first, tokens),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512(cpu) => cpu.turns(rope, first, tokens),
        }
    }

    /// The same turned and rounded; the caller checked the lengths.
    pub(crate) fn half_rows(
        self,
        scaling: &Scaling<'_>,
        turns: Option<&Turns>,
        values: Quantised<'_, i16>,
        rows: HalfRows<'_>,
        scratch: &mut RowScratch,
    ) {
        match self.0 {
            Path::Portable => half_rows_portable(scaling, turns, values, rows, scratch),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2(cpu) => cpu.half_rows(scaling, turns, values, rows, scratch),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512(cpu) => cpu.half_rows(scaling, turns, values, rows, scratch),
        }
    }

    /// Quantised values of rows; the caller checked the lengths.
    pub(crate) fn quantise_rows(
        self,
        steps: &Steps<'_>,
        turns: Option<&Turns>,
        tokens: usize,
        rows: &[f32],
        to: &mut Quantising<'_>,
        scratch: &mut RowScratch,
    ) -> bool {
        match self.0 {
            Path::Portable => {
                let tiles = rows.chunks(TILE * steps.mean.len()).enumerate();
                tiles.fold(true, |within, (tile, rows)| {
                    within & fine_tile(steps, turns, (tokens, tile), rows, to, scratch)
                })
            }
            #[cfg(target_arch = "x86_64")]
            Path::Avx2(cpu) => cpu.quantise_rows(steps, turns, tokens, rows, to, scratch),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512(cpu) => cpu.quantise_rows(steps, turns, tokens, rows, to, scratch),
        }
    }
}
