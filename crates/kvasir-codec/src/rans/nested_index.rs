//! Ratio-3 nested mid-tread quantisers (Lastras–Berger successive refinement with no rate penalty): the index at
//! every level is the index of the plain uniform quantiser of that level's step.

/// Index at the next coarser level: `floor((q + 1) / 3)`.
#[inline(always)]
pub fn coarsen(q: i32) -> i32 {
    // `q + 1` cannot wrap for |q| <= VALUE_MAX; for other values the result is still defined.
    q.wrapping_add(1).div_euclid(3)
}

/// Refinement digit `q - 3 coarsen(q)`, in `-1..=1`.
#[inline(always)]
pub fn digit(q: i32) -> i32 {
    q.wrapping_sub(coarsen(q).wrapping_mul(3))
}

/// Index at the next finer level, `3 q + d`, modulo `2^32`.
#[inline]
pub fn refine(q: i32, d: i32) -> i32 {
    q.wrapping_mul(3).wrapping_add(d)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn digits_are_trits_and_refining_undoes_coarsening(q in -(1 << 24)..(1 << 24)) {
            prop_assert!((-1..=1).contains(&digit(q)));
            prop_assert_eq!(refine(coarsen(q), digit(q)), q);
            prop_assert_eq!(coarsen(-q), -coarsen(q));
        }
    }
}
