//! x86-64: AVX2 and AVX-512. (Refilling all 32 lanes with one VBMI2 `vpexpandw` measured 3 % slower than two `vpexpandd`.)

mod avx2;
mod avx512;
mod avx512_encode;
mod avx512_rows;
mod registers;
mod rows16;
mod wide;

use half::bf16;

use super::kernel::{decode_one, decode_pair};
use crate::{
    rans::{
        bank::TableBank,
        stream::{
            StreamFault, StreamJob,
            encode::{Backward, EncodeJob, EncodedStream, Uncodable},
        },
    },
    rows::{
        Scaling,
        fine::Steps,
        half::{RowScratch, Turns},
    },
};

/// A token that can only be had on a CPU with the features, and the entry points compiled for them.
macro_rules! decoder {
    ($(#[$doc:meta])* $name:ident, $kernel:ty, $($feature:tt),+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) struct $name(());

        impl $name {
            /// `None` where the CPU lacks a feature.
            pub(crate) fn new() -> Option<Self> {
                ($(std::arch::is_x86_feature_detected!($feature))&&+).then_some(Self(()))
            }

            /// Decodes one stream.
            pub(crate) fn decode_one(
                self,
                bank: &TableBank,
                tokens: usize,
                job: StreamJob<'_>,
            ) -> Result<(), StreamFault> {
                /// # Safety
                /// The CPU has every feature.
                $(#[target_feature(enable = $feature)])+
                unsafe fn entry(bank: &TableBank, tokens: usize, job: StreamJob<'_>) -> Result<(), StreamFault> {
                    // SAFETY: the caller's promise.
                    unsafe { decode_one::<$kernel>(bank, tokens, job) }
                }
                // SAFETY: `self` exists, so `new` saw every feature.
                unsafe { entry(bank, tokens, job) }
            }

            /// Decodes two streams, interleaved.
            pub(crate) fn decode_pair(
                self,
                bank: &TableBank,
                tokens: usize,
                jobs: [StreamJob<'_>; 2],
            ) -> [Result<(), StreamFault>; 2] {
                /// # Safety
                /// The CPU has every feature.
                $(#[target_feature(enable = $feature)])+
                unsafe fn entry(
                    bank: &TableBank,
                    tokens: usize,
                    jobs: [StreamJob<'_>; 2],
                ) -> [Result<(), StreamFault>; 2] {
                    // SAFETY: the caller's promise.
                    unsafe { decode_pair::<$kernel>(bank, tokens, jobs) }
                }
                // SAFETY: `self` exists, so `new` saw every feature.
                unsafe { entry(bank, tokens, jobs) }
            }
        }
    };
}

decoder! {
    /// 4 × 8 lanes.
    Avx2, avx2::Kernel8, "avx2", "popcnt"
}
decoder! {
    /// 2 × 16 lanes.
    Avx512, avx512::Kernel16, "avx512f", "avx512bw", "avx512vl", "popcnt"
}

impl Avx2 {
    /// Quantised values of rows.
    pub(crate) fn quantise_rows(
        self,
        steps: &Steps<'_>,
        turns: Option<&Turns>,
        tokens: usize,
        rows: &[f32],
        values: &mut [i32],
        scratch: &mut RowScratch,
    ) -> bool {
        // SAFETY: `self` exists, so `new` saw every feature.
        unsafe { rows16::quantise_rows_256(steps, turns, tokens, rows, values, scratch) }
    }

    /// Makes bf16 rows of a direct scope.
    pub(crate) fn half_rows(
        self,
        scaling: &Scaling<'_>,
        turns: Option<&Turns>,
        tokens: usize,
        values: &[i32],
        rows: &mut [bf16],
        scratch: &mut RowScratch,
    ) {
        // SAFETY: `self` exists, so `new` saw every feature.
        unsafe { rows16::half_rows_256(scaling, turns, tokens, values, rows, scratch) }
    }
}

impl Avx512 {
    /// Quantised values of rows.
    pub(crate) fn quantise_rows(
        self,
        steps: &Steps<'_>,
        turns: Option<&Turns>,
        tokens: usize,
        rows: &[f32],
        values: &mut [i32],
        scratch: &mut RowScratch,
    ) -> bool {
        // SAFETY: `self` exists, so `new` saw every feature.
        unsafe { rows16::quantise_rows_512(steps, turns, tokens, rows, values, scratch) }
    }

    /// Makes bf16 rows of a direct scope.
    pub(crate) fn half_rows(
        self,
        scaling: &Scaling<'_>,
        turns: Option<&Turns>,
        tokens: usize,
        values: &[i32],
        rows: &mut [bf16],
        scratch: &mut RowScratch,
    ) {
        // SAFETY: `self` exists, so `new` saw every feature.
        unsafe { rows16::half_rows_512(scaling, turns, tokens, values, rows, scratch) }
    }

    /// Encodes one stream.
    pub(crate) fn encode(self, job: EncodeJob<'_>, words: &mut Backward) -> Result<EncodedStream, Uncodable> {
        // SAFETY: `self` exists, so `new` saw every feature.
        unsafe { avx512_encode::encode(job, words) }
    }

    /// Makes rows of a direct scope.
    pub(crate) fn scale_rows(self, scaling: &Scaling<'_>, tokens: usize, values: &[i32], rows: &mut [f32]) {
        let count = scaling.elements() * tokens;
        assert!(values.len() == count && rows.len() == count, "values and rows of every element and token");
        // SAFETY: `self` exists, so `new` saw every feature; the lengths were checked.
        unsafe { avx512_rows::scale_rows(scaling, tokens, values, rows) }
    }
}
