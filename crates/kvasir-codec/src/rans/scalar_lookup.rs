//! Alias tables for the scalar decoder: the next state depends on one load, not on a choice between two
//! words.

use super::constants::{ALPHABET, PROBABILITY_ONE};

/// Slots of a bucket.
pub(super) const BUCKET_SLOTS: u32 = PROBABILITY_ONE / ALPHABET as u32;

/// The decoded content of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DecodedSlot {
    pub(super) symbol: usize,
    pub(super) frequency: u32,
    pub(super) offset: u32,
}

/// The two sides of every bucket: below its divide and above.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ScalarLookup {
    divide: [u32; ALPHABET],
    /// `symbol:32 | what is added to the slot's place in the bucket:16 | frequency:16` at `2 bucket + above`.
    side: [u64; 2 * ALPHABET],
}

impl ScalarLookup {
    /// From the divide of every bucket, and its own symbol's side and the other's, with what is added as the offset.
    pub(super) fn new(bucket: impl Fn(usize) -> (u32, [DecodedSlot; 2])) -> Self {
        let word = |slot: DecodedSlot| {
            (slot.symbol as u64) << 32 | u64::from(slot.offset) << 16 | u64::from(slot.frequency)
        };
        Self {
            divide: std::array::from_fn(|i| bucket(i).0),
            side: std::array::from_fn(|i| word(bucket(i / 2).1[i % 2])),
        }
    }

    /// The decoded content of slot `0..4096`, the low 12 bits.
    #[inline(always)]
    pub(super) fn slot(&self, slot: u32) -> DecodedSlot {
        let (bucket, r) = ((slot / BUCKET_SLOTS) as usize % ALPHABET, slot % BUCKET_SLOTS);
        let side = self.side[2 * bucket + usize::from(r >= self.divide[bucket])];
        DecodedSlot {
            symbol: (side >> 32) as usize,
            frequency: u32::from(side as u16),
            offset: r + u32::from((side >> 16) as u16),
        }
    }
}
