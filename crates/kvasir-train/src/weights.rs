//! The token predictor in a profile's integers: codes of tables, weights of coefficients.

use kvasir_codec::{authoring::TokenPredictor, limits::TOKEN_SHIFT_MAX};

/// Error of a prediction by the rounding of its matrix, in squared finest steps: added to the quantiser's own
/// 1/12 it costs under 0.02 bits.
const MATRIX_ERROR_MAX: f64 = 0.02;

/// Sets the weights of a predictor with tables, `[coefficient][factor]` in finest steps. Each coefficient's
/// weights get the fewest bits that keep the error of its prediction small against a step.
pub(super) fn set_weights(mut predictor: TokenPredictor, weights: &[f32], rank: usize) -> TokenPredictor {
    let (count, powers) = (predictor.factor_count(), factor_powers(&predictor));
    predictor.matrix = vec![0; count * rank];
    predictor.shifts = vec![0; rank];
    predictor.matrix_bits = vec![0; rank];
    for (coefficient, row) in weights.chunks_exact(count.max(1)).enumerate().take(rank) {
        let (bits, shift) = weight_bits(row, &powers);
        let (limit, unit) = (weight_limit(bits), f32::from(shift).exp2());
        for (factor, weight) in row.iter().enumerate() {
            predictor.matrix[factor * rank + coefficient] =
                (weight * unit).round().clamp(-limit, limit) as i8;
        }
        predictor.shifts[coefficient] = shift;
        predictor.matrix_bits[coefficient] = bits;
    }
    predictor
}

/// The predictor of an existing profile with tables of fewer bits, and the power of every coefficient's
/// prediction in squared finest steps. All tokens have the same weight: a profile does not record how often
/// they occur.
pub(super) fn repack(token: &TokenPredictor, bits: u8) -> (TokenPredictor, Vec<f64>) {
    let (rank, alike) = (token.shifts.len(), vec![1; token.vocabulary]);
    let limit = weight_limit(bits);
    let mut units = Vec::with_capacity(token.factor_count());
    let mut tables = [token.current.clone(), token.previous.clone()];
    for (table, count) in tables.iter_mut().zip(token.factors) {
        for factor in 0..count {
            let column: Vec<f32> = table.iter().skip(factor).step_by(count).map(|v| f32::from(*v)).collect();
            let unit = best_unit(&column, &alike, limit);
            let codes = table.iter_mut().skip(factor).step_by(count);
            codes.zip(&column).for_each(|(c, v)| *c = (v / unit).round().clamp(-limit, limit) as i8);
            units.push(unit);
        }
    }
    let [current, previous] = tables;
    let repacked = TokenPredictor { current, previous, table_bits: [bits; 2], ..token.clone() };
    let mut weights = Vec::with_capacity(rank * units.len());
    for coefficient in 0..rank {
        let scale = f32::from(token.shifts[coefficient]).exp2().recip();
        let column = token.matrix.iter().skip(coefficient).step_by(rank);
        weights.extend(column.zip(&units).map(|(w, unit)| f32::from(*w) * scale * unit));
    }
    let powers = factor_powers(&repacked);
    let power = |row: &[f32]| row.iter().zip(&powers).map(|(w, p)| f64::from(*w).powi(2) * p).sum();
    let predicted = weights.chunks_exact(units.len().max(1)).map(power).collect();
    (set_weights(repacked, &weights, rank), predicted)
}

/// Mean square of every factor over the vocabulary.
fn factor_powers(predictor: &TokenPredictor) -> Vec<f64> {
    let tables = [(&predictor.current, predictor.factors[0]), (&predictor.previous, predictor.factors[1])];
    let mut powers = Vec::new();
    for (codes, count) in tables {
        let mut sums = vec![0f64; count];
        for row in codes.chunks_exact(count.max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, code)| *sum += f64::from(*code).powi(2));
        }
        powers.extend(sums.iter().map(|sum| sum / predictor.vocabulary.max(1) as f64));
    }
    powers
}

/// Largest magnitude of a weight with this many bits.
fn weight_limit(bits: u8) -> f32 {
    ((1i32 << bits.max(1) >> 1) - 1) as f32
}

/// Bits and shift of one coefficient's weights: the fewest bits whose rounding error stays below
/// [`MATRIX_ERROR_MAX`].
fn weight_bits(row: &[f32], powers: &[f64]) -> (u8, u8) {
    let largest = row.iter().fold(0f32, |m, v| m.max(v.abs()));
    let power = |scale: f64| powers.iter().sum::<f64>() * scale;
    let predicted: f64 = row.iter().zip(powers).map(|(w, p)| f64::from(*w).powi(2) * p).sum();
    if largest == 0.0 || predicted <= MATRIX_ERROR_MAX {
        return (0, 0);
    }
    let shift_of = |bits: u8| (weight_limit(bits) / largest).log2().floor();
    let fine = |bits: &u8| {
        let shift = shift_of(*bits);
        shift >= 0.0 && power((f64::from(-shift)).exp2().powi(2) / 12.0) <= MATRIX_ERROR_MAX
    };
    let bits = (2..=8).find(fine).unwrap_or(8);
    (bits, shift_of(bits).clamp(0.0, f32::from(TOKEN_SHIFT_MAX)) as u8)
}

/// The unit of least squared error over the tokens as often as they occur, for codes of up to `limit` units.
pub(super) fn best_unit(column: &[f32], counts: &[u32], limit: f32) -> f32 {
    let largest = column.iter().fold(0f32, |m, v| m.max(v.abs()));
    if largest == 0.0 {
        return 1.0;
    }
    let error = |unit: f32| {
        let difference = |v: &f32| (v / unit).round().clamp(-limit, limit) * unit - v;
        column.iter().zip(counts).map(|(v, n)| f64::from(*n) * f64::from(difference(v)).powi(2)).sum::<f64>()
    };
    let units = (0..12).map(|n| largest / limit * (-0.25 * n as f32).exp2());
    units.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(largest / limit)
}
