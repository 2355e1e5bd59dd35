//! Alias tables: 16 buckets of 256 slots, 128 bytes, no construction to re-derive at load time.

#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
use super::u16_lanes::{BucketSide, U16Lanes};
use super::{
    buckets::{Buckets, UPPER_SHIFT},
    constants::{ALPHABET, ESCAPE, PROBABILITY_BITS, PROBABILITY_ONE},
    error::TableError,
    frequencies::normalise,
    scalar_lookup::{BUCKET_SLOTS, DecodedSlot, ScalarLookup},
};

/// A stage symbol, 0 to 15: `value + 7`, or [`ESCAPE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageSymbol(u8);

impl StageSymbol {
    /// The symbol that codes `value`.
    #[inline]
    pub fn of(value: i32) -> Self {
        Self(if (-7..=7).contains(&value) { (value + 7) as u8 } else { ESCAPE as u8 })
    }

    /// As an index into counts and frequencies.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Frequencies of the 16 stage symbols in 12 bits, as an alias table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AliasTable {
    buckets: Buckets,
    sides: ScalarLookup,
    frequencies: [u16; ALPHABET],
}

impl AliasTable {
    /// Serialised size.
    pub const BYTES: usize = 128;

    /// Builds the table of frequencies that sum to 4,096. Zeros and a single certain symbol are legal.
    ///
    /// # Errors
    /// [`TableError::Sum`].
    pub fn from_frequencies(frequencies: &[u16; ALPHABET]) -> Result<Self, TableError> {
        let sum = frequencies.iter().map(|&f| u32::from(f)).sum();
        if sum != PROBABILITY_ONE {
            return Err(TableError::Sum { sum });
        }
        Ok(Self::of(fill_buckets(frequencies), *frequencies))
    }

    /// The table that fits `counts[`[`StageSymbol::index`]`]` best. The escape stays codable, and through it every
    /// value whose own symbol never occurred.
    pub fn from_counts(counts: &[u64; ALPHABET]) -> Self {
        let mut floor = [0; ALPHABET];
        floor[ESCAPE] = 1;
        let frequencies = normalise(counts, &floor).map(|f| f as u16); // at most 4096
        Self::of(fill_buckets(&frequencies), frequencies)
    }

    /// Reads a serialised table: 16 × (`u32 a`, `u32 b`).
    ///
    /// # Errors
    /// [`TableError`] unless the 4,096 slots are a bijection onto (symbol, offset) and unused bits are zero.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, TableError> {
        let words = bytes.as_chunks::<4>().0;
        let word = |i: usize| u32::from_le_bytes(words[i]);
        let (a, b) = (|i| word(2 * i), |i| word(2 * i + 1));
        let (a, b) = (std::array::from_fn(a), std::array::from_fn(b));
        check_reserved(&a, &b)?;
        let buckets = Buckets::of_words(a, b);
        let frequencies = check_bijection(&buckets)?;
        Ok(Self::of(buckets, frequencies))
    }

    fn of(buckets: Buckets, frequencies: [u16; ALPHABET]) -> Self {
        let side = |word: u32, offset: u32| DecodedSlot {
            symbol: (word >> PROBABILITY_BITS & 15) as usize,
            frequency: (word & 0xfff) + 1,
            offset,
        };
        let sides = ScalarLookup::new(|bucket| {
            let (own, other) = (buckets.own[bucket], buckets.other[bucket]);
            (own >> UPPER_SHIFT, [side(own, 0), side(other, other >> UPPER_SHIFT)])
        });
        Self { buckets, sides, frequencies }
    }

    /// The serialised table.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let words = (0..ALPHABET).flat_map(|i| self.buckets.words(i));
        for (chunk, word) in out.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Frequencies by symbol; they sum to 4,096.
    pub fn frequencies(&self) -> &[u16; ALPHABET] {
        &self.frequencies
    }

    /// The words of the buckets, for decoders that hold them in registers.
    pub(crate) fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// The table in the form for decoders with 16-bit lanes.
    #[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
    pub(super) fn u16_lanes(&self) -> U16Lanes {
        U16Lanes::of_stage(|bucket| {
            let (own, other) = (self.buckets.own[bucket], self.buckets.other[bucket]);
            let side = |word: u32, offset: u32| BucketSide {
                value: (word >> PROBABILITY_BITS & 15) as i16 - 7,
                frequency: (word & 0xfff) + 1,
                offset: offset as u16,
            };
            ((own >> UPPER_SHIFT) as u16, [side(own, 0), side(other, other >> UPPER_SHIFT)])
        })
    }

    /// The decoded symbol of slot `0..4096`.
    #[inline(always)]
    pub(super) fn slot(&self, slot: u32) -> DecodedSlot {
        self.sides.slot(slot)
    }

    /// Code length of `value` in bits, including the escape's payload; infinite if it cannot be coded.
    pub fn cost_bits(&self, value: i32) -> f32 {
        let bits = |f: u16| PROBABILITY_BITS as f32 - f32::from(f).log2();
        let own = self.frequencies[StageSymbol::of(value).index()];
        if (-7..=7).contains(&value) && own > 0 {
            return bits(own);
        }
        bits(self.frequencies[ESCAPE]) + if value.unsigned_abs() <= 126 { 8.0 } else { 24.0 }
    }
}

/// The interpretation of a bucket defined by FORMAT.md §5.2.
fn decode_slot(buckets: &Buckets, slot: u32) -> DecodedSlot {
    let (bucket, r) = ((slot / BUCKET_SLOTS) as usize, slot % BUCKET_SLOTS);
    let (own, other) = (buckets.own[bucket], buckets.other[bucket]);
    let (word, offset) = if r < own >> UPPER_SHIFT { (own, r) } else { (other, r + (other >> UPPER_SHIFT)) };
    let symbol = (word >> PROBABILITY_BITS & 15) as usize;
    DecodedSlot { symbol, frequency: (word & 0xfff) + 1, offset }
}

/// Fills the bucket of the smallest symbol first, from any symbol with more than a bucket.
///
/// Why offsets never go negative: a donor of `f > 256` gives `256 − div` and keeps more than `div`; so a donor that
/// becomes a receiver joins above the receiver just served, receivers are served by increasing divide, and what a
/// donor keeps at the end (its own piece, offsets `0..keep`) exceeds the divide of every bucket it gave to.
fn fill_buckets(frequencies: &[u16; ALPHABET]) -> Buckets {
    let mut left = frequencies.map(u32::from);
    let mut donor_of = [None; ALPHABET];
    let mut served = Vec::with_capacity(ALPHABET);
    let mut open = [true; ALPHABET];
    loop {
        let small =
            (0..ALPHABET).filter(|&s| open[s] && left[s] < BUCKET_SLOTS).min_by_key(|&s| (left[s], s));
        let Some(small) = small else { break };
        let donor =
            (0..ALPHABET).max_by_key(|&s| (left[s], ALPHABET - s)).filter(|&s| left[s] > BUCKET_SLOTS);
        let Some(donor) = donor else { break };
        left[donor] -= BUCKET_SLOTS - left[small];
        donor_of[small] = Some(donor);
        open[small] = false;
        served.push(small);
    }
    let word = |f: u16| u32::from(f).saturating_sub(1);
    let own = |s: usize| left[s] << PROBABILITY_BITS | word(frequencies[s]);
    let (a, mut b) = (std::array::from_fn(own), [0; ALPHABET]);
    let mut base = left; // next offset of each donor: what it kept comes first
    for small in served {
        let Some(donor) = donor_of[small] else { continue };
        let offset = base[donor] - left[small]; // not negative: see above
        b[small] = offset << UPPER_SHIFT | (donor as u32) << PROBABILITY_BITS | word(frequencies[donor]);
        base[donor] += BUCKET_SLOTS - left[small];
    }
    Buckets::of_words(a, b)
}

/// Checks that bits without a meaning are zero in stored words.
fn check_reserved(a: &[u32; ALPHABET], b: &[u32; ALPHABET]) -> Result<(), TableError> {
    for (bucket, (&a, &b)) in a.iter().zip(b).enumerate() {
        let divide = a >> PROBABILITY_BITS;
        let a_unused = divide > BUCKET_SLOTS || (divide == 0 && a != 0);
        if a_unused || b & 0xf_0000 != 0 || (divide == BUCKET_SLOTS && b != 0) {
            return Err(TableError::Reserved { bucket });
        }
    }
    Ok(())
}

/// Checks that the slots are a bijection, and returns the frequencies.
fn check_bijection(buckets: &Buckets) -> Result<[u16; ALPHABET], TableError> {
    let mut frequencies = [0u32; ALPHABET];
    let mut hits = [0u64; PROBABILITY_ONE as usize];
    for slot in 0..PROBABILITY_ONE {
        let DecodedSlot { symbol, frequency, offset } = decode_slot(buckets, slot);
        let known = &mut frequencies[symbol];
        let broken = TableError::Bijection { slot, symbol, offset };
        if (*known != 0 && *known != frequency) || offset >= frequency {
            return Err(broken);
        }
        *known = frequency;
        // `offset < frequency <= 4096`, one bit a symbol
        let seen = &mut hits[offset as usize];
        if *seen >> symbol & 1 == 1 {
            return Err(broken);
        }
        *seen |= 1 << symbol;
    }
    // 4,096 distinct (symbol, offset < frequency): a bijection if and only if the frequencies sum to 4,096.
    match frequencies.iter().sum() {
        PROBABILITY_ONE => Ok(frequencies.map(|f| f as u16)),
        sum => Err(TableError::Sum { sum }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_looked_up_is_what_the_words_say(counts in any::<[u16; ALPHABET]>(), zeros in any::<u16>()) {
            let counts: [u64; ALPHABET] = std::array::from_fn(|s| u64::from(counts[s]) * u64::from(zeros >> s & 1));
            let table = AliasTable::from_counts(&counts);
            for slot in 0..PROBABILITY_ONE {
                prop_assert_eq!(table.slot(slot), decode_slot(&table.buckets, slot), "{}", slot);
            }
        }
    }
}
