//! x86-64: AVX2, AVX-512, AVX-512 with VBMI2.

mod avx2;
mod avx512;

use super::kernel::decode_group;
use crate::rans::{
    bank::TableBank,
    stream::{StreamFault, StreamJob},
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
                // SAFETY: `self` exists, so `new` saw every feature.
                let [verdict] = unsafe { Self::group(bank, tokens, [job]) };
                verdict
            }

            /// Decodes two streams, interleaved.
            pub(crate) fn decode_pair(
                self,
                bank: &TableBank,
                tokens: usize,
                jobs: [StreamJob<'_>; 2],
            ) -> [Result<(), StreamFault>; 2] {
                // SAFETY: `self` exists, so `new` saw every feature.
                unsafe { Self::group(bank, tokens, jobs) }
            }

            /// # Safety
            /// The CPU has every feature.
            $(#[target_feature(enable = $feature)])+
            unsafe fn group<const N: usize>(
                bank: &TableBank,
                tokens: usize,
                jobs: [StreamJob<'_>; N],
            ) -> [Result<(), StreamFault>; N] {
                // SAFETY: the caller's promise.
                unsafe { decode_group::<$kernel, N>(bank, tokens, jobs) }
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
    Avx512, avx512::Kernel16<false>, "avx512f", "avx512bw", "popcnt"
}
decoder! {
    /// 2 × 16 lanes, refilled at once.
    Avx512Vbmi2, avx512::Kernel16<true>, "avx512f", "avx512bw", "avx512vbmi2", "popcnt"
}
