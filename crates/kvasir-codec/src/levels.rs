//! Ratio-3 nested mid-tread quantisers over several levels (FORMAT.md "Levels").
//!
//! A value is quantised once, at the finest step `D`; a quantiser of step `3 D` is nested in it exactly (see
//! [`coarsen`](crate::rans::coarsen)), so every level is the very quantiser one would use alone.

/// Steps of the finest level in one step of a level `up` levels coarser: `3^up`. Exact for `up ≤ 19`.
#[inline]
pub const fn ratio(up: u32) -> i32 {
    3i32.pow(up)
}

/// The value `up` levels coarser: the nearest multiple of `3^up`, which is never a tie.
#[inline(always)]
pub const fn coarser_by(fine: i32, up: u32) -> i32 {
    // Odd ratios compose: floor((floor((q + 1) / 3) + 1) / 3) = floor((q + 4) / 9), and so on.
    let ratio = ratio(up);
    fine.saturating_add((ratio - 1) / 2).div_euclid(ratio)
}

/// A centroid shift, in 256ths of a step `up` levels above the finest, in finest steps.
#[inline]
pub(crate) const fn towards_zero(up: u32, shift: u8) -> i32 {
    (shift as i32 * ratio(up) + 128) >> 8
}

/// A decoder's value, in finest steps, for `q` at a level `up` levels above the finest.
///
/// `shift` is the profile's centroid shift for this table and depth, in 256ths of the level's step, towards
/// zero; `q = 0` has none. At the finest level it is always 0, so that the finest level is symmetric.
#[inline]
pub fn reconstruct(q: i32, up: u32, shift: u8) -> i32 {
    reconstruction(up, shift)(q)
}

/// [`reconstruct`] of a level and a shift: for rows, as powers are not made anew for every value.
#[inline(always)]
pub(crate) fn reconstruction(up: u32, shift: u8) -> impl Fn(i32) -> i32 {
    let (ratio, towards_zero) = (ratio(up), towards_zero(up, shift));
    // Encoders stay below QUANTISED_MAX at the finest step; hostile pieces wrap, which is harmless.
    move |q| q.wrapping_mul(ratio).wrapping_sub(q.signum() * towards_zero)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rans::coarsen;

    proptest! {
        #[test]
        fn levels_nest(fine in -1_000_000_000i32..1_000_000_000, up in 0u32..8) {
            let stepwise = (0..up).fold(fine, |q, _| coarsen(q));
            prop_assert_eq!(coarser_by(fine, up), stepwise);
        }

        /// Each level is the mid-tread quantiser one would use alone: the nearest multiple of its step.
        #[test]
        fn a_level_is_its_own_quantiser(fine in -100_000i32..100_000, up in 0u32..6, shift in 0u8..128) {
            let q = coarser_by(fine, up);
            prop_assert_eq!(f64::from(q), (f64::from(fine) / f64::from(ratio(up))).round());
            let off = (reconstruct(q, up, shift) - fine).abs();
            prop_assert!(off <= ratio(up), "off by {off}");
        }
    }
}
