//! The token predictor: KV given the current and the previous token, additive, shrunken, low-rank.

use super::{
    data::{Block, Corpus},
    linear::{leading_subspace, product},
};
use crate::{
    limits::VOCABULARY_MAX,
    profile::{Scope, TokenPredictor},
};

/// A predictor in the scope's normalised units, not yet bound to a basis and a step.
#[derive(Debug, Clone, Default)]
pub(super) struct TokenModel {
    vocabulary: usize,
    factors: [usize; 2],
    current: Vec<i8>,
    previous: Vec<i8>,
    /// `[factor][element]`: what one unit of an int8 factor means.
    directions: Vec<f32>,
}

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
    pub(super) fn fit(corpus: &Corpus<'_>, scope: &Scope, factors: [usize; 2]) -> Self {
        let elements = scope.elements();
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
                let means = TokenMeans::fit(corpus, scope, vocabulary, which, known);
                tables[which as usize] = Some(means);
            }
        }
        let mut model = Self { vocabulary, ..Self::default() };
        for (which, table) in tables.iter().enumerate() {
            let Some(table) = table else { continue };
            let (codes, directions) = table.factorise(elements, factors[which]);
            model.factors[which] = directions.len() / elements;
            model.directions.extend(directions);
            *(if which == 0 { &mut model.current } else { &mut model.previous }) = codes;
        }
        model
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

    /// Binds the model to a basis, `[coefficient][element]`, and the finest step in normalised units.
    pub(super) fn bind(&self, basis: &[f32], elements: usize, step: f32) -> TokenPredictor {
        let (rank, count) = (basis.len() / elements, self.factors[0] + self.factors[1]);
        // [coefficient][factor]
        let mut transposed = vec![0.0; count * elements];
        for (factor, row) in self.directions.chunks_exact(elements).enumerate() {
            row.iter().enumerate().for_each(|(element, v)| transposed[element * count + factor] = *v);
        }
        let weights = product(rank, elements, count, basis, &transposed);
        let mut matrix = vec![0i8; count * rank];
        let mut shifts = vec![0u8; rank];
        for (coefficient, row) in weights.chunks_exact(count.max(1)).enumerate().take(rank) {
            let largest = row.iter().fold(0f32, |m, v| m.max(v.abs())) / step;
            let shift = if largest > 0.0 { (127.0 / largest).log2().floor().clamp(0.0, 24.0) } else { 0.0 };
            let unit = shift.exp2() / step;
            for (factor, weight) in row.iter().enumerate() {
                matrix[factor * rank + coefficient] = (weight * unit).round().clamp(-127.0, 127.0) as i8;
            }
            shifts[coefficient] = shift as u8;
        }
        TokenPredictor {
            vocabulary: self.vocabulary,
            factors: self.factors,
            current: self.current.clone(),
            previous: self.previous.clone(),
            matrix,
            shifts,
        }
    }
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
        vocabulary: usize,
        which: Which,
        known: Option<(Which, &Self)>,
    ) -> Self {
        let elements = scope.elements();
        let mut means = vec![0f32; vocabulary * elements];
        let mut counts = vec![0u32; vocabulary];
        let mut square = 0f64;
        corpus.stream(scope, &corpus.fit, |block| {
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

    /// int8 codes `[token][factor]` and the directions they multiply, `[factor][element]`, of the best
    /// low-rank approximation weighted by how often tokens occur.
    fn factorise(&self, elements: usize, factors: usize) -> (Vec<i8>, Vec<f32>) {
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
            let column = values.iter().skip(factor).step_by(count);
            let largest = column.clone().fold(0f32, |m, v| m.max(v.abs()));
            let unit = if largest > 0.0 { largest / 127.0 } else { 1.0 };
            for (code, value) in codes.iter_mut().skip(factor).step_by(count).zip(column) {
                *code = (value / unit).round() as i8; // at most 127 in magnitude
            }
            direction.iter_mut().for_each(|v| *v *= unit);
        }
        (codes, directions)
    }
}
