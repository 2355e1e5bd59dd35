//! How many bits each row of a basis gets: reverse water-filling under a budget of bytes.

use half::f16;

use super::TrainError;
use kvasir_codec::{
    authoring::{Basis, PackedRows, packed_bytes},
    limits::ROW_BITS_MAX,
};

/// Share of a unit Gaussian's power that uniform quantisers of 0, 1, 2, … bits lose (Max 1960).
const LOST: [f64; ROW_BITS_MAX as usize + 1] =
    [1.0, 0.3634, 0.1188, 0.03744, 0.01154, 0.003495, 0.00104, 3.04e-4, 8.77e-5, 2.49e-5, 7e-6, 1.9e-6];
/// Largest share of a scope's power that a budget may lose: a quarter is the loss of levels too coarse to be
/// used.
const LOST_MAX: f64 = 0.25;
/// Bytes of a coefficient without its row: coding, unit, bits, shift, bits of the predictor's weights.
const COEFFICIENT_BYTES: usize = 12 + 4 + 1 + 1 + 1;
/// Most bits per weight of the predictor: the actual number is known only after the basis.
const WEIGHT_BITS: usize = 8;

/// The result of a budget.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Allocation {
    /// Bits of every row, leading ones first; empty if not even one row fits.
    pub(super) bits: Vec<u8>,
    /// Share of the spectrum's power that is lost: in rows that do not fit, and by rounding the others.
    pub(super) lost: f64,
}

/// Bits of every row within `bytes`: while there is room, the next bit goes to the row where it removes the
/// most power per byte. The loss of a row leaks out of the subspace that the basis spans, at every level.
pub(super) fn allocate(
    spectrum: &[f32],
    elements: usize,
    factors: usize,
    bytes: usize,
    rank_max: usize,
) -> Allocation {
    let mut bits = vec![0u8; spectrum.len().min(rank_max)];
    let price = |from: u8| {
        let row = packed_bytes(elements, from + 1) - packed_bytes(elements, from);
        row + if from == 0 { COEFFICIENT_BYTES + (factors * WEIGHT_BITS).div_ceil(8) } else { 0 }
    };
    let gain = |row: usize, from: u8| {
        let fall = LOST[usize::from(from)] - LOST[usize::from(from) + 1];
        f64::from(spectrum[row]) * fall / price(from) as f64
    };
    let mut queue: std::collections::BinaryHeap<(PowerGain, std::cmp::Reverse<usize>)> =
        (0..bits.len()).map(|row| (PowerGain(gain(row, 0)), std::cmp::Reverse(row))).collect();
    let mut left = bytes;
    while let Some((_, std::cmp::Reverse(row))) = queue.pop() {
        let Some(rest) = left.checked_sub(price(bits[row])) else { break };
        left = rest;
        bits[row] += 1;
        if bits[row] < ROW_BITS_MAX {
            queue.push((PowerGain(gain(row, bits[row])), std::cmp::Reverse(row)));
        }
    }
    let rank = bits.iter().take_while(|bits| **bits > 0).count();
    bits.truncate(rank);
    let kept: f64 =
        spectrum.iter().zip(&bits).map(|(s, bits)| f64::from(*s) * (1.0 - LOST[usize::from(*bits)])).sum();
    let power: f64 = spectrum.iter().map(|s| f64::from(*s)).sum();
    let lost = if power > 0.0 { 1.0 - kept / power } else { 0.0 };
    Allocation { bits, lost }
}

/// Refuses an allocation that would ruin the profile.
///
/// # Errors
/// [`TrainError::Budget`].
pub(super) fn within(bytes: usize, allocation: Allocation) -> Result<Allocation, TrainError> {
    let is_ruin = allocation.bits.is_empty() || allocation.lost > LOST_MAX;
    let lost = if allocation.bits.is_empty() { 1.0 } else { allocation.lost };
    if is_ruin { Err(TrainError::Budget { bytes, lost: lost as f32 }) } else { Ok(allocation) }
}

/// Refuses a rank that is limited by multiply-adds and would ruin the profile. `power` is that along all directions.
///
/// # Errors
/// [`TrainError::MultiplyAdds`].
pub(super) fn within_macs(macs: usize, spectrum: &[f32], power: f64) -> Result<(), TrainError> {
    let kept: f64 = spectrum.iter().map(|s| f64::from(*s)).sum();
    let lost = if power > 0.0 { 1.0 - kept / power } else { 0.0 };
    if lost > LOST_MAX { Err(TrainError::MultiplyAdds { macs, lost: lost as f32 }) } else { Ok(()) }
}

/// The basis of the given rows, packed if bits are given.
pub(super) fn basis(rows: &[f32], elements: usize, bits: Option<&[u8]>) -> Basis {
    let Some(bits) = bits else {
        let synthesis = rows.iter().map(|v| f16::from_f32(*v)).collect();
        return Basis::Trained { synthesis, analysis: None, packed: None };
    };
    let packed = PackedRows::quantise(rows, elements, bits);
    Basis::Trained { synthesis: packed.rows(elements), analysis: None, packed: Some(packed) }
}

/// Orders by `total_cmp`.
#[derive(PartialEq)]
struct PowerGain(f64);

impl Eq for PowerGain {}

impl PartialOrd for PowerGain {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PowerGain {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_kept_and_leading_rows_get_more() {
        let spectrum: Vec<f32> = (0..200).map(|i| 1000.0 / (1.0 + i as f32).powi(2)).collect();
        for budget in [2_000, 10_000, 40_000] {
            let Allocation { bits, lost } = allocate(&spectrum, 512, 0, budget, 150);
            assert!((0.0..0.3).contains(&lost), "{lost}");
            let bytes: usize = bits.iter().map(|b| packed_bytes(512, *b) + COEFFICIENT_BYTES).sum();
            assert!(bytes <= budget && bytes + 200 > budget.min(150 * 64), "{bytes} of {budget}");
            assert!(bits.is_sorted_by(|a, b| a >= b), "{bits:?}");
            assert!(bits[0] >= 3 && bits.len() <= 150);
        }
    }
}
