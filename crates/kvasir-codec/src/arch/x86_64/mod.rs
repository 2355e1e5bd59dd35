//! x86-64: AVX2 and AVX-512.

mod avx2;
mod avx512;
mod avx512_encode;
mod avx512_rows;
mod lookup_rows;
mod product;
mod registers;
mod rotated_rows;
mod transposes;
mod unrotated_rows;
mod wide;

use kvasir_types::Rope;

use super::{
    kernel::{Kernel, KernelCell},
    lockstep::decode,
};
use crate::{
    direct_rows::{
        QuantisedRows, Scaling,
        bf16_tiles::{Bf16Rows, Lane, RotationTable, RowScratch},
        quantise_tiles::{QuantiseTarget, QuantiserSteps},
    },
    rans::{
        LevelRows, RowBits,
        bank::TableBank,
        stream::{
            StreamFault, StreamJob,
            cell::Fit,
            encode::{BlockJob, EncodedStream, ReverseWords, Uncodable},
        },
    },
    synthesis::{MemberTile, TileList, TileRows},
};

/// Defines a proof that the CPU has the features, with the entry points compiled for them.
macro_rules! decoder {
    ($(#[$doc:meta])* $name:ident, $kernel:ty, $($feature:tt),+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) struct $name(());

        impl $name {
            /// `None` if the CPU lacks a feature.
            pub(crate) fn new() -> Option<Self> {
                ($(std::arch::is_x86_feature_detected!($feature))&&+).then_some(Self(()))
            }

            /// Number of streams to decode in parallel for the best speed.
            pub(crate) const STREAMS: usize = <$kernel as Kernel>::STREAMS;

            /// Decodes streams in lockstep.
            pub(crate) fn decode<V: KernelCell, const N: usize>(
                self,
                bank: &TableBank,
                tokens: usize,
                jobs: [StreamJob<'_, V>; N],
            ) -> [Result<Fit, StreamFault>; N] {
                /// # Safety
                /// The CPU has every feature.
                $(#[target_feature(enable = $feature)])+
                unsafe fn entry<V: KernelCell, const N: usize>(
                    bank: &TableBank,
                    tokens: usize,
                    jobs: [StreamJob<'_, V>; N],
                ) -> [Result<Fit, StreamFault>; N] {
                    // SAFETY: the caller's promise.
                    unsafe { decode::<$kernel, V, N>(bank, tokens, jobs) }
                }
                // SAFETY: `self` exists, so `new` saw every feature.
                unsafe { entry(bank, tokens, jobs) }
            }
        }
    };
}

decoder! {
    /// 4 × 8 lanes.
    Avx2, avx2::Kernel8, "avx2", "fma", "popcnt"
}
decoder! {
    /// 2 × 16 lanes; Ice Lake and Zen 4 on.
    Avx512, avx512::Kernel16, "avx512f", "avx512bw", "avx512vl", "avx512vbmi2", "bmi2", "fma", "popcnt"
}

/// Entry points of rows, compiled for the features of a token.
macro_rules! rows {
    ($name:ident, $registers:ty, $($feature:tt),+) => {
        impl $name {
            /// Sines and cosines of a rope.
            pub(crate) fn rotation_table(self, rope: &Rope, first: u64, tokens: usize) -> RotationTable {
                /// # Safety
                /// The CPU has every feature.
                $(#[target_feature(enable = $feature)])+
                unsafe fn entry(rope: &Rope, first: u64, tokens: usize) -> RotationTable {
                    RotationTable::portable(rope, first, tokens)
                }
                // SAFETY: `self` exists, so `new` saw every feature.
                unsafe { entry(rope, first, tokens) }
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
                /// # Safety
                /// The CPU has every feature.
                $(#[target_feature(enable = $feature)])+
                unsafe fn entry(
                    steps: &QuantiserSteps<'_>,
                    rotation: Option<&RotationTable>,
                    tokens: usize,
                    rows: &[f32],
                    to: &mut QuantiseTarget<'_>,
                    scratch: &mut RowScratch,
                ) -> bool {
                    // SAFETY: the caller's promise.
                    unsafe { wide::quantise_rows::<$registers>(steps, rotation, tokens, rows, to, scratch) }
                }
                // SAFETY: `self` exists, so `new` saw every feature.
                unsafe { entry(steps, rotation, tokens, rows, to, scratch) }
            }

            /// Elements of a tile: sums over panels of words, times their units.
            pub(crate) fn pair_sums(
                self,
                of: TileList<'_, u32>,
                panels: (&[i32], &[f32]),
                elements: &mut [Lane<f32>],
            ) {
                /// # Safety
                /// The CPU has every feature.
                $(#[target_feature(enable = $feature)])+
                unsafe fn entry(
                    of: TileList<'_, u32>,
                    panels: (&[i32], &[f32]),
                    elements: &mut [Lane<f32>],
                ) {
                    // SAFETY: the caller's promise.
                    unsafe { product::pair_sums::<$registers>(of, panels, elements) }
                }
                // SAFETY: `self` exists, so `new` saw every feature.
                unsafe { entry(of, panels, elements) }
            }

            /// Makes a member's rows of one tile of tokens.
            pub(crate) fn member_tile(
                self,
                tile: &MemberTile<'_>,
                rows: TileRows<'_>,
                scratch: &mut RowScratch,
            ) {
                /// # Safety
                /// The CPU has every feature.
                $(#[target_feature(enable = $feature)])+
                unsafe fn entry(tile: &MemberTile<'_>, rows: TileRows<'_>, scratch: &mut RowScratch) {
                    // SAFETY: the caller's promise.
                    unsafe { product::member_tile::<$registers>(tile, rows, scratch) }
                }
                // SAFETY: `self` exists, so `new` saw every feature.
                unsafe { entry(tile, rows, scratch) }
            }

            /// Makes bf16 rows of a direct scope; the caller checked the lengths.
            pub(crate) fn bf16_rows(
                self,
                scaling: &Scaling<'_>,
                rotation: Option<&RotationTable>,
                values: QuantisedRows<'_, i16>,
                rows: Bf16Rows<'_>,
                scratch: &mut RowScratch,
            ) {
                /// # Safety
                /// The CPU has every feature.
                $(#[target_feature(enable = $feature)])+
                unsafe fn entry(
                    scaling: &Scaling<'_>,
                    rotation: Option<&RotationTable>,
                    values: QuantisedRows<'_, i16>,
                    rows: Bf16Rows<'_>,
                    scratch: &mut RowScratch,
                ) {
                    // SAFETY: the caller's promise.
                    unsafe { wide::bf16_rows::<$registers>(scaling, rotation, values, rows, scratch) }
                }
                // SAFETY: `self` exists, so `new` saw every feature.
                unsafe { entry(scaling, rotation, values, rows, scratch) }
            }
        }
    };
}

rows! { Avx2, registers::Eight, "avx2", "fma" }
rows! { Avx512, registers::Sixteen, "avx512f", "avx512bw", "avx512vl", "fma" }

impl Avx512 {
    /// Encodes two streams in turns.
    pub(crate) fn encode(
        self,
        jobs: [BlockJob<'_>; 2],
        words: &mut [ReverseWords; 2],
    ) -> Result<[EncodedStream; 2], Uncodable> {
        // SAFETY: `self` exists, so `new` saw every feature.
        unsafe { avx512_encode::encode(jobs, words) }
    }

    /// Writes a coefficient's row, as [`LevelRows::write`].
    pub(crate) fn row(
        self,
        rows: &LevelRows<'_>,
        coefficient: usize,
        refines: bool,
        out: &mut [i32],
    ) -> RowBits {
        /// # Safety
        /// The CPU has the features.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        unsafe fn entry(rows: &LevelRows<'_>, coefficient: usize, refines: bool, out: &mut [i32]) -> RowBits {
            rows.write(coefficient, refines, out)
        }
        // SAFETY: `self` exists, so `new` saw every feature.
        unsafe { entry(rows, coefficient, refines, out) }
    }

    /// Makes rows of a direct scope.
    pub(crate) fn scale_rows(self, scaling: &Scaling<'_>, tokens: usize, values: &[i32], rows: &mut [f32]) {
        let count = scaling.elements() * tokens;
        assert!(values.len() == count && rows.len() == count, "values and rows of every element and token");
        // SAFETY: `self` exists, so `new` saw every feature; the lengths were checked.
        unsafe { avx512_rows::scale_rows(scaling, tokens, values, rows) }
    }
}
