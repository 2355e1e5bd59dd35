//! The memory types of decoded values.

use super::super::constants::ESCAPE_MAX;

/// A value in memory. Narrow cells need half the memory and half the work, and hold nearly every value that
/// occurs. A stream with a larger value reports this and is decoded again into wide ones.
pub(crate) trait Cell: Copy + Default + std::fmt::Debug + Send {
    /// The cell of `value`, if it is of magnitude `most` at the most.
    fn of(value: i32, most: i32) -> Option<Self>;

    /// The cell of a value that is known to fit.
    fn truncated(value: i32) -> Self;

    /// The value.
    fn get(self) -> i32;

    /// The value times `ratio`, less `off` of its magnitude: steps of the finest level, which fit a cell.
    fn finest(self, ratio: i32, off: i32) -> i32;
}

/// Wide: holds everything.
impl Cell for i32 {
    #[inline(always)]
    fn of(value: i32, _: i32) -> Option<Self> {
        Some(value)
    }

    #[inline(always)]
    fn truncated(value: i32) -> Self {
        value
    }

    #[inline(always)]
    fn get(self) -> i32 {
        self
    }

    #[inline(always)]
    fn finest(self, ratio: i32, off: i32) -> i32 {
        self.wrapping_mul(ratio).wrapping_sub(self.signum() * off)
    }
}

/// Narrow.
impl Cell for i16 {
    #[inline(always)]
    fn of(value: i32, most: i32) -> Option<Self> {
        if value.unsigned_abs() <= most.unsigned_abs() { Self::try_from(value).ok() } else { None }
    }

    #[inline(always)]
    fn truncated(value: i32) -> Self {
        value as Self
    }

    #[inline(always)]
    fn get(self) -> i32 {
        self.into()
    }

    #[inline(always)]
    fn finest(self, ratio: i32, off: i32) -> i32 {
        // in 16 bits: twice as many at once; a sign by two bounds, for `signum` is taken one by one
        self.wrapping_mul(ratio as Self).wrapping_sub(self.clamp(-1, 1).wrapping_mul(off as Self)).into()
    }
}

/// Largest magnitude of a stage value that stays within a narrow cell after `trits` trits; `None` if even
/// short escapes are too much, and streams should be decoded directly into wide cells.
pub(crate) fn narrow_most(trits: u32) -> Option<i32> {
    // a trit makes 3 v ± 1 of v, so |v| + 1/2 grows threefold
    let most = (i32::from(i16::MAX) / 3i32.checked_pow(trits)?).saturating_sub(1);
    (most >= SHORT_ESCAPE_MAX).then_some(most.min(ESCAPE_MAX))
}

/// Largest magnitude of an escape of eight bits.
const SHORT_ESCAPE_MAX: i32 = 126;

/// Whether the cells held all values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// They did.
    Held,
    /// One value was too large: the values are unspecified.
    TooWide,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rans::refine;

    #[test]
    fn trits_stay_within_narrow_cells() {
        for trits in 0..8 {
            let Some(most) = narrow_most(trits) else {
                assert!(trits > 5);
                continue;
            };
            for (start, digit) in [(most, 1), (-most, -1)] {
                let end = (0..trits).fold(start, |v, _| refine(v, digit));
                assert!(i16::try_from(end).is_ok(), "{trits} trits of {start}: {end}");
            }
        }
    }
}
