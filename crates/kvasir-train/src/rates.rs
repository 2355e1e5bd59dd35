//! From residuals to entry levels and statistics of every stage.

use super::cluster::entropy;
use kvasir_codec::{
    authoring::{CoefficientCoding, coarser_by, ratio, reconstruct},
    rans::{ALPHABET, ESCAPE, StageSymbol, TRITS_MAX, coarsen, digit},
};

/// Most escapes of a stage; each costs 8 bits more and a branch.
const ESCAPE_SHARE_MAX: f64 = 0.003;
/// Bits of a short escape.
const ESCAPE_BITS: f64 = 8.0;
/// Most bits of a stage; 16 symbols lose 0.025 bit at 2.97.
const STAGE_BITS_MAX: f64 = 2.9;
/// Smallest reduction of squared error per bit, in squared steps, for which a coefficient is coded at a
/// level. A uniform quantiser at high rate gives `2 ln 2 / 12 = 0.116`.
const GAIN_PER_BIT_MIN: f64 = 0.09;

/// Statistics of one coefficient, coded from its entry level on.
#[derive(Debug, Clone)]
pub(super) struct CoefficientStats {
    /// As [`CoefficientCoding::entry`].
    pub(super) entry: i8,
    /// Of the stage.
    pub(super) stage: [f64; ALPHABET],
    /// Of all trits inside level 0, `[context × 3 + digit + 1]`.
    pub(super) inner: [f64; 6],
    /// By level; zeros at and below the entry level.
    pub(super) trits: Vec<[f64; 6]>,
    /// By level: sum of the distances of values from `|q|` steps towards zero, in steps, and their number.
    pub(super) pull: Vec<(f64, f64)>,
}

/// Measures a coefficient's residuals, in finest steps. `None` if no level gains by coding it. Without
/// `entry_levels` all others enter at level 0.
pub(super) fn measure(residuals: &[f32], levels: usize, entry_levels: bool) -> Option<CoefficientStats> {
    let fine: Vec<i32> = residuals.iter().map(|r| r.round_ties_even() as i32).collect();
    let entry = entry_level(residuals, &fine, levels)?;
    let entry = if entry_levels { entry } else { 0 };
    let first = entry.max(0) as usize;
    let up = (levels - 1 - first) as u32;
    let depth = (-i32::from(entry)).max(0) as u32;
    let mut stats = CoefficientStats {
        entry,
        stage: histogram(&fine, up + depth),
        inner: [0.0; 6],
        trits: vec![[0.0; 6]; levels],
        pull: vec![(0.0, 0.0); levels],
    };
    for step in 0..depth {
        add_trits(&fine, up + step, &mut stats.inner);
    }
    for level in first..levels {
        let up = (levels - 1 - level) as u32;
        if level > first {
            add_trits(&fine, up, &mut stats.trits[level]);
        }
        stats.pull[level] = pull(residuals, &fine, up);
    }
    Some(stats)
}

/// The coarsest level at which coding pays; below 0 if level 0 would be too wide for a stage.
fn entry_level(residuals: &[f32], fine: &[i32], levels: usize) -> Option<i8> {
    let power: f64 = residuals.iter().map(|r| f64::from(*r).powi(2)).sum();
    let pays = |level: &usize| {
        let up = (levels - 1 - level) as u32;
        let step = f64::from(ratio(up));
        let error: f64 = residuals
            .iter()
            .zip(fine)
            .map(|(r, q)| (f64::from(*r) - f64::from(reconstruct(coarser_by(*q, up), up, 0))).powi(2))
            .sum();
        // Values that are all far from zero are one symbol, the escape: its entropy is nothing, its bits are not.
        let counts = histogram(fine, up);
        let bits = entropy(&counts) * fine.len() as f64 + ESCAPE_BITS * counts[ESCAPE];
        error < power && power - error >= GAIN_PER_BIT_MIN * step * step * bits
    };
    let level = (0..levels).find(pays)?;
    let up = (levels - 1 - level) as u32;
    let too_wide = |depth: &u32| {
        let counts = histogram(fine, up + depth);
        counts[ESCAPE] > ESCAPE_SHARE_MAX * fine.len() as f64 || entropy(&counts) > STAGE_BITS_MAX
    };
    // Levels between 0 and the entry are empty, so trits can only be hidden inside level 0.
    let depth = if level == 0 { (0..u32::from(TRITS_MAX)).find(|d| !too_wide(d)) } else { Some(0) };
    let depth = depth.unwrap_or(u32::from(TRITS_MAX)) as i8; // at most 7
    Some(if level == 0 { -depth } else { level as i8 })
}

fn histogram(fine: &[i32], up: u32) -> [f64; ALPHABET] {
    let mut counts = [0.0; ALPHABET];
    fine.iter().for_each(|q| counts[StageSymbol::of(coarser_by(*q, up)).index()] += 1.0);
    counts
}

/// Counts the digits that refine to `up` levels above the finest, folded as in
/// [`TritTable`](kvasir_codec::rans::TritTable). After zero both signs have the same count.
fn add_trits(fine: &[i32], up: u32, counts: &mut [f64; 6]) {
    for q in fine {
        let q = coarser_by(*q, up);
        let (coarse, digit) = (coarsen(q), digit(q));
        if coarse == 0 {
            match digit {
                0 => counts[1] += 1.0,
                _ => [0, 2].iter().for_each(|i| counts[*i] += 0.5),
            }
        } else {
            counts[(4 + digit * coarse.signum()) as usize] += 1.0;
        }
    }
}

fn pull(residuals: &[f32], fine: &[i32], up: u32) -> (f64, f64) {
    let step = f64::from(ratio(up));
    let (mut sum, mut count) = (0.0, 0.0);
    for (r, q) in residuals.iter().zip(fine) {
        let q = coarser_by(*q, up);
        if q != 0 {
            sum += f64::from(q.abs()) - f64::from(*r) * f64::from(q.signum()) / step;
            count += 1.0;
        }
    }
    (sum, count)
}

impl CoefficientStats {
    /// The coding of this coefficient under given table ids.
    pub(super) fn coding(&self, stage: u8, inner: u8, trits: &[u8]) -> CoefficientCoding {
        let mut coding = CoefficientCoding { entry: self.entry, stage, inner, ..CoefficientCoding::ABSENT };
        coding.trits[..trits.len()].copy_from_slice(trits);
        coding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anchors of a channel with a large mean: no entropy at the coarsest level, and everything to lose.
    #[test]
    fn a_coefficient_far_from_zero_is_coded() {
        for value in [3.0f32, 40.0, 900.0] {
            let stats = measure(&[value; 64], 1, true).expect("coded");
            assert!(stats.stage[ESCAPE] == 0.0, "{value}: {stats:?}");
        }
        assert!(measure(&[0.2; 64], 1, true).is_none(), "nothing is gained where all is rounded to zero");
    }
}
