//! The token predictor: KV given the current and the previous token, additive, shrunken, low-rank.

use super::{
    data::{Block, Corpus},
    linear::{leading_subspace, product},
};
use crate::{
    bound::Matrix,
    limits::{TOKEN_SHIFT_MAX, VOCABULARY_MAX},
    profile::{Scope, TokenPredictor, packed_bytes},
};

/// A predictor in the scope's normalised units, not yet bound to a basis and a step.
#[derive(Debug, Clone, Default)]
pub(super) struct TokenModel {
    vocabulary: usize,
    factors: [usize; 2],
    current: Vec<i8>,
    previous: Vec<i8>,
    /// Bits of a factor.
    bits: u8,
    /// Whether directions are of coefficients of the basis, not of elements.
    in_basis: bool,
    /// `[factor][element]`: what one unit of a factor means.
    directions: Vec<f32>,
}

/// Error of a prediction by the rounding of its matrix, in squared finest steps: beside the quantiser's own 1/12 it
/// costs under 0.02 bits.
const MATRIX_ERROR_MAX: f64 = 0.02;

/// Which token a table is indexed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Current,
    Previous,
}

/// Shrunken mean residual by token, `[token][element]`.
struct TokenMeans {
    means: Vec<f32>,
    counts: Vec<u32>,
}

impl TokenModel {
    /// Fits both tables by back-fitting: each explains what the other leaves.
    /// Of the scope's elements, or of their coefficients in a basis of so many rows where that is given: then memory grows
    /// with the rank only.
    pub(super) fn fit(
        corpus: &Corpus<'_>,
        scope: &Scope,
        factors: [usize; 2],
        bits: u8,
        basis: Option<(&Matrix, usize)>,
    ) -> Self {
        let elements = basis.map_or(scope.elements(), |(_, rank)| rank);
        let tokens = corpus.contexts.iter().flat_map(|c| &c.tokens);
        let vocabulary = tokens.map(|t| *t as usize + 1).filter(|v| *v <= VOCABULARY_MAX).max().unwrap_or(0);
        let mut tables: [Option<TokenMeans>; 2] = [None, None];
        for (which, other, wanted) in [
            (Which::Current, Which::Previous, factors[0] > 0),
            (Which::Previous, Which::Current, factors[1] > 0),
            // Once more, now that the previous token's share is known.
            (Which::Current, Which::Previous, factors[0] > 0 && factors[1] > 0),
        ] {
            if wanted {
                let known = tables[other as usize].as_ref().map(|means| (other, means));
                let means = TokenMeans::fit(corpus, scope, basis, vocabulary, which, known);
                tables[which as usize] = Some(means);
            }
        }
        let mut model = Self { vocabulary, bits, in_basis: basis.is_some(), ..Self::default() };
        for (which, table) in tables.iter().enumerate() {
            let Some(table) = table else { continue };
            let (codes, directions) = table.factorise(elements, factors[which], bits);
            model.factors[which] = directions.len() / elements;
            model.directions.extend(directions);
            *(if which == 0 { &mut model.current } else { &mut model.previous }) = codes;
        }
        model
    }

    /// Bytes of both tables in a profile.
    pub(super) fn table_bytes(&self) -> usize {
        self.factors.iter().map(|count| self.vocabulary * packed_bytes(*count, self.bits)).sum()
    }

    /// Predictions of a block, `[token][element]`, as the integer predictor will make them but for rounding.
    pub(super) fn predict(&self, block: &Block, elements: usize) -> Vec<f32> {
        let count = self.factors[0] + self.factors[1];
        let mut codes = vec![0f32; block.current.len() * count];
        if count == 0 {
            return vec![0.0; block.elements.len()];
        }
        for (row, (current, previous)) in
            codes.chunks_exact_mut(count).zip(block.current.iter().zip(&block.previous))
        {
            let (now, before) = row.split_at_mut(self.factors[0]);
            fill(now, &self.current, Some(*current));
            fill(before, &self.previous, *previous);
        }
        product(block.current.len(), count, elements, &codes, &self.directions)
    }

    /// Binds the model to the analysis matrix of a basis, `[coefficient][element]`, or to none, and the finest step in
    /// normalised units.
    pub(super) fn bind(&self, analysis: Option<&[f32]>, elements: usize, step: f32) -> TokenPredictor {
        let rank = analysis.map_or(elements, |matrix| matrix.len() / elements);
        let count = self.factors[0] + self.factors[1];
        // [element][factor], or [coefficient][factor]
        let width = if self.in_basis { self.directions.len() / count.max(1) } else { elements };
        let mut transposed = vec![0.0; count * width];
        for (factor, row) in self.directions.chunks_exact(width.max(1)).enumerate() {
            row.iter().enumerate().for_each(|(element, v)| transposed[element * count + factor] = *v);
        }
        transposed.truncate(if self.in_basis { rank * count } else { transposed.len() });
        let mut weights = match analysis {
            Some(matrix) if !self.in_basis => product(rank, elements, count, matrix, &transposed),
            _ => transposed,
        };
        weights.iter_mut().for_each(|weight| *weight /= step);
        let predictor = TokenPredictor {
            vocabulary: self.vocabulary,
            factors: self.factors,
            current: self.current.clone(),
            previous: self.previous.clone(),
            table_bits: [self.bits; 2],
            ..TokenPredictor::default()
        };
        set_weights(predictor, &weights, rank)
    }
}

/// Gives a predictor with tables its weights, `[coefficient][factor]` in finest steps; each coefficient's get as few
/// bits as leave the error of its prediction small against a step.
fn set_weights(mut predictor: TokenPredictor, weights: &[f32], rank: usize) -> TokenPredictor {
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

/// A predictor of an existing profile with tables of fewer bits, and the power of every coefficient's prediction in
/// squared finest steps. Tokens count alike: how often they occur is not in a profile.
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

/// Largest magnitude of a weight of so many bits.
fn weight_limit(bits: u8) -> f32 {
    ((1i32 << bits.max(1) >> 1) - 1) as f32
}

/// Bits and shift of one coefficient's weights: the fewest bits whose rounding stays below [`MATRIX_ERROR_MAX`].
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
fn best_unit(column: &[f32], counts: &[u32], limit: f32) -> f32 {
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

/// A token's factors; zeros where it has none.
fn fill(row: &mut [f32], codes: &[i8], token: Option<u32>) {
    let Some(token) = token else { return };
    let start = (token as usize).saturating_mul(row.len());
    if let Some(codes) = codes.get(start..start.saturating_add(row.len())) {
        row.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(*code));
    }
}

impl TokenMeans {
    fn fit(
        corpus: &Corpus<'_>,
        scope: &Scope,
        basis: Option<(&Matrix, usize)>,
        vocabulary: usize,
        which: Which,
        known: Option<(Which, &Self)>,
    ) -> Self {
        let elements = basis.map_or(scope.elements(), |(_, rank)| rank);
        let mut means = vec![0f32; vocabulary * elements];
        let mut counts = vec![0u32; vocabulary];
        let mut square = 0f64;
        corpus.stream(scope, &corpus.fit, |mut block| {
            if let Some((matrix, rank)) = basis {
                block.elements = matrix.coefficients(block.current.len(), rank, &block.elements);
            }
            for (index, row) in block.elements.chunks_exact(elements).enumerate() {
                let token_of = |which| match which {
                    Which::Current => Some(block.current[index]),
                    Which::Previous => block.previous[index],
                };
                let Some(token) = token_of(which).map(|t| t as usize).filter(|t| *t < vocabulary) else {
                    continue;
                };
                let sums = &mut means[token * elements..(token + 1) * elements];
                let explained = known.and_then(|(other, table)| table.row(token_of(other)?, elements));
                counts[token] += 1;
                for (element, (sum, x)) in sums.iter_mut().zip(row).enumerate() {
                    let rest = x - explained.map_or(0.0, |row| row[element]);
                    *sum += rest;
                    square += f64::from(rest) * f64::from(rest);
                }
            }
        });
        let mut table = Self { means, counts };
        table.shrink(elements, square);
        table
    }

    fn row(&self, token: u32, elements: usize) -> Option<&[f32]> {
        self.means.get(token as usize * elements..(token as usize + 1) * elements)
    }

    /// Turns sums into best linear unbiased predictions: `sum / (n + λ)`, λ the variance within tokens over
    /// that between them, from a one-way analysis of variance over all elements.
    fn shrink(&mut self, elements: usize, square: f64) {
        let total: f64 = self.counts.iter().map(|n| f64::from(*n)).sum();
        let groups = self.counts.iter().filter(|n| **n > 0).count() as f64;
        let between: f64 = (self.means.chunks_exact(elements).zip(&self.counts))
            .filter(|(_, n)| **n > 0)
            .map(|(row, n)| row.iter().map(|s| f64::from(*s).powi(2)).sum::<f64>() / f64::from(*n))
            .sum();
        let within = (square - between).max(0.0) / (total - groups).max(1.0);
        let same: f64 = self.counts.iter().map(|n| f64::from(*n).powi(2)).sum::<f64>() / total.max(1.0);
        let variance = ((between - groups * within) / (total - same).max(1.0)).max(1e-12);
        let lambda = (within / variance).clamp(0.25, 1e4) as f32;
        for (row, n) in self.means.chunks_exact_mut(elements).zip(&self.counts) {
            let weight = 1.0 / (*n as f32 + lambda);
            row.iter_mut().for_each(|s| *s *= weight);
        }
    }

    /// Codes of `bits` bits, `[token][factor]`, and the directions they multiply, `[factor][element]`, of the best
    /// low-rank approximation weighted by how often tokens occur.
    fn factorise(&self, elements: usize, factors: usize, bits: u8) -> (Vec<i8>, Vec<f32>) {
        let vocabulary = self.counts.len();
        let mut weighted = self.means.clone();
        for (row, n) in weighted.chunks_exact_mut(elements).zip(&self.counts) {
            let weight = (*n as f32).sqrt();
            row.iter_mut().for_each(|v| *v *= weight);
        }
        let mut directions = leading_subspace(&weighted, vocabulary, elements, factors);
        drop(weighted);
        let count = directions.len() / elements;
        let mut transposed = vec![0.0; directions.len()];
        for (factor, row) in directions.chunks_exact(elements).enumerate() {
            row.iter().enumerate().for_each(|(element, v)| transposed[element * count + factor] = *v);
        }
        let values = product(vocabulary, elements, count, &self.means, &transposed);
        let mut codes = vec![0i8; values.len()];
        for (factor, direction) in directions.chunks_exact_mut(elements).enumerate() {
            let column: Vec<f32> = values.iter().skip(factor).step_by(count).copied().collect();
            let limit = ((1i32 << (bits - 1)) - 1) as f32;
            let unit = best_unit(&column, &self.counts, limit);
            for (code, value) in codes.iter_mut().skip(factor).step_by(count).zip(column) {
                *code = (value / unit).round().clamp(-limit, limit) as i8;
            }
            direction.iter_mut().for_each(|v| *v *= unit);
        }
        (codes, directions)
    }
}
