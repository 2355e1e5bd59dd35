//! Steps for decoders with lanes of 16 bits: one form of table for stages and trits.

use super::{
    buckets::Buckets,
    constants::{ALPHABET, PROBABILITY_ONE},
    trit::TritTable,
};

/// All readings of a stage's table or a trit's that a decoder of streams may choose from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepTable {
    pub(crate) u16_lanes: U16Lanes,
    /// Of a stage.
    pub(crate) buckets: Buckets,
    /// Of a trit.
    pub(crate) trit: TritTable,
}

impl StepTable {
    /// Whether it is a stage's.
    pub(crate) fn is_stage(&self) -> bool {
        self.u16_lanes.kind.refines == 0
    }
}

/// Entries per look-up.
pub(crate) const ENTRIES: usize = 32;

/// A step whose every symbol has a class by what is known (a slot's bucket, what is refined), and within the class a place by
/// thresholds: for every entry its frequency, what takes a slot to its symbol's offset, and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C, align(64))]
pub(crate) struct U16Lanes {
    /// By class: the thresholds for a slot's second place, and for its third.
    pub(crate) least: [[u16; ENTRIES]; 2],
    /// By entry: 16 times the frequency, so that a product's upper half begins where a state's does.
    pub(crate) frequency: [u16; ENTRIES],
    /// By entry: the addend to the compared value.
    pub(crate) offset: [u16; ENTRIES],
    /// By entry: the value, or the addend to three times the coarser one.
    pub(crate) value: [i16; ENTRIES],
    pub(crate) kind: StepKind,
    /// Whether a symbol has all slots: the state does not change then, and 16 times the frequency does not
    /// fit.
    pub(crate) certain: bool,
}

/// The differences between stages and trits; each in both halves of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StepKind {
    /// All ones if the class is that of the coarser value, not the bucket.
    pub(crate) refines: u32,
    /// Bits of a slot that are compared.
    pub(crate) compared: u32,
    /// Bits of a class that lead to an entry.
    pub(crate) class: u32,
    /// Entries from one place to the next.
    pub(crate) place: u32,
    /// The factor of a coarser value.
    pub(crate) times: u32,
}

const fn twice(x: u16) -> u32 {
    (x as u32) << 16 | x as u32
}

impl StepKind {
    const STAGE: Self =
        Self { refines: 0, compared: twice(255), class: twice(15), place: twice(ALPHABET as u16), times: 0 };
    const TRIT: Self = Self {
        refines: twice(0xffff),
        compared: twice(PROBABILITY_ONE as u16 - 1),
        class: twice(0xffff),
        place: twice(8),
        times: twice(3),
    };
}

impl U16Lanes {
    /// A step that nothing is decoded with.
    pub(crate) const NONE: Self = Self {
        least: [[0; ENTRIES]; 2],
        frequency: [0; ENTRIES],
        offset: [0; ENTRIES],
        value: [0; ENTRIES],
        kind: StepKind::STAGE,
        certain: false,
    };

    /// A stage whose bucket `i` has `[divide, [value, frequency], [value, frequency, offset]]`: its own
    /// symbol and the other one.
    pub(super) fn of_stage(bucket: impl Fn(usize) -> (u16, [BucketSide; 2])) -> Self {
        let mut lanes = Self { least: [[0; ENTRIES], [u16::MAX; ENTRIES]], ..Self::NONE };
        for i in 0..ENTRIES {
            let (divide, sides) = bucket(i % ALPHABET);
            lanes.least[0][i] = divide; // the fifth bit of a class is of the next field
            let side = sides[i / ALPHABET];
            (lanes.offset[i], lanes.value[i]) = (side.offset, side.value);
            lanes.set_frequency(i, side.frequency);
        }
        lanes
    }

    /// A trit: `range(context, folded)` is start and frequency.
    pub(super) fn of_trit(range: impl Fn(usize, i32) -> (u32, u32)) -> Self {
        let mut lanes = Self { kind: StepKind::TRIT, ..Self::NONE };
        for sign in -1..=1i32 {
            // classes are signs, modulo the entries
            let class = sign.rem_euclid(ENTRIES as i32) as usize;
            let context = usize::from(sign != 0);
            for place in 0..3usize {
                let folded = place as i32 - 1;
                let (start, frequency) = range(context, folded);
                if let Some(least) = place.checked_sub(1) {
                    lanes.least[least][class] = start as u16;
                }
                let entry = (class + 8 * place) % ENTRIES;
                lanes.set_frequency(entry, frequency);
                lanes.offset[entry] = (start as u16).wrapping_neg();
                lanes.value[entry] = (if sign < 0 { -folded } else { folded }) as i16;
            }
        }
        lanes
    }

    fn set_frequency(&mut self, entry: usize, frequency: u32) {
        self.certain |= frequency == PROBABILITY_ONE;
        self.frequency[entry] = (16 * frequency) as u16;
    }
}

/// One symbol of a bucket.
#[derive(Clone, Copy)]
pub(super) struct BucketSide {
    pub(super) value: i16,
    pub(super) frequency: u32,
    pub(super) offset: u16,
}
