//! The stored words of an alias table, bucket by bucket.

use super::constants::{ALPHABET, PROBABILITY_BITS};

/// The two words of every bucket: its own symbol below the divide, a donor's symbol above.
///
/// `own = 0:3 | div:9 | 0:4 | symbol:4 | f − 1:12`, `other = off:12 | 0:4 | symbol:4 | f − 1:12`, most significant bits first:
/// the stored words, but that `own` has its symbol, so that both are read alike. Apart, because a SIMD decoder holds each array
/// in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C, align(64))]
pub(crate) struct Buckets {
    pub(crate) own: [u32; ALPHABET],
    pub(crate) other: [u32; ALPHABET],
}

/// Position of the upper field in both words: the divide, the offset.
pub(crate) const UPPER_SHIFT: u32 = 20;

impl Buckets {
    /// From the words of FORMAT.md §5.2: `a = 0:11 | div:9 | f − 1:12`, and `b`, which is `other`.
    pub(super) fn of_words(a: [u32; ALPHABET], b: [u32; ALPHABET]) -> Self {
        let own = |i: usize| {
            (a[i] >> PROBABILITY_BITS) << UPPER_SHIFT | (i as u32) << PROBABILITY_BITS | a[i] & 0xfff
        };
        Self { own: std::array::from_fn(own), other: b }
    }

    /// A table that nothing is decoded with.
    pub(crate) const NONE: Self = Self { own: [0; ALPHABET], other: [0; ALPHABET] };

    /// The stored words of bucket `i`.
    pub(super) fn words(&self, i: usize) -> [u32; 2] {
        let own = self.own[i];
        [(own >> UPPER_SHIFT) << PROBABILITY_BITS | own & 0xfff, self.other[i]]
    }
}
