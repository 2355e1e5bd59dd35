//! Mean KV by token, shrunken and of low rank: the tables of the token predictor.

use std::collections::BTreeMap;

use super::{
    data::Corpus,
    linear::{leading_subspace, product},
    weights::best_unit,
};
use kvasir_codec::{
    authoring::{Matrix, Scope},
    limits::VOCABULARY_MAX,
};

/// Most table rows per distinct token in training; ids below the largest one that did not occur have rows of
/// zeros. Ids that are further apart (hashes, or the positions that represent tokens in thinned caches) have
/// no rows and are predicted by the mean.
const ROWS_A_TOKEN: usize = 16;

/// Which token a table is indexed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenPosition {
    Current,
    Previous,
}

/// Shrunken mean residual by token that training saw, `[token][element]`.
pub(super) struct TokenMeans<'a> {
    /// The tokens, increasing.
    ids: &'a [u32],
    means: Vec<f32>,
    counts: Vec<u32>,
}

/// The distinct tokens that occur in `texts_min` texts, up to the largest one below which a table has at most [`ROWS_A_TOKEN`]
/// rows for each, increasing.
pub(super) fn ids_with_rows<'a>(texts: impl Iterator<Item = &'a [u32]>, texts_min: usize) -> Vec<u32> {
    let mut in_texts = BTreeMap::<u32, usize>::new();
    for text in texts {
        let mut of_text: Vec<u32> =
            text.iter().copied().filter(|token| (*token as usize) < VOCABULARY_MAX).collect();
        of_text.sort_unstable();
        of_text.dedup();
        of_text.into_iter().for_each(|token| *in_texts.entry(token).or_default() += 1);
    }
    let common = in_texts.into_iter().filter(|(_, texts)| *texts >= texts_min);
    let mut ids: Vec<u32> = common.map(|(token, _)| token).collect();
    let warranted = |index: &usize| (ids[*index] as usize) < ROWS_A_TOKEN * (index + 1);
    let count = (0..ids.len()).rev().find(warranted).map_or(0, |last| last + 1);
    ids.truncate(count);
    ids
}

impl<'a> TokenMeans<'a> {
    pub(super) fn fit(
        corpus: &Corpus<'_>,
        scope: &Scope,
        basis: Option<(&Matrix, usize)>,
        ids: &'a [u32],
        which: TokenPosition,
        known: Option<(TokenPosition, &Self)>,
    ) -> Self {
        let elements = basis.map_or(scope.elements(), |(_, rank)| rank);
        let mut means = vec![0f32; ids.len() * elements];
        let mut counts = vec![0u32; ids.len()];
        let mut square = 0f64;
        corpus.stream(scope, &corpus.fit, |mut block| {
            if let Some((matrix, rank)) = basis {
                block.elements = matrix.coefficients(block.current.len(), rank, &block.elements);
            }
            for (index, row) in block.elements.chunks_exact(elements).enumerate() {
                let token_of = |which| match which {
                    TokenPosition::Current => Some(block.current[index]),
                    TokenPosition::Previous => block.previous[index],
                };
                let Some(seen) = token_of(which).and_then(|token| ids.binary_search(&token).ok()) else {
                    continue;
                };
                let sums = &mut means[seen * elements..(seen + 1) * elements];
                let explained = known.and_then(|(other, table)| table.row(token_of(other)?, elements));
                counts[seen] += 1;
                for (element, (sum, x)) in sums.iter_mut().zip(row).enumerate() {
                    let rest = x - explained.map_or(0.0, |row| row[element]);
                    *sum += rest;
                    square += f64::from(rest) * f64::from(rest);
                }
            }
        });
        let mut table = Self { ids, means, counts };
        table.shrink(elements, square);
        table
    }

    fn row(&self, token: u32, elements: usize) -> Option<&[f32]> {
        let seen = self.ids.binary_search(&token).ok()?;
        self.means.get(seen * elements..(seen + 1) * elements)
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
    pub(super) fn factorise(&self, elements: usize, factors: usize, bits: u8) -> (Vec<i8>, Vec<f32>) {
        let tokens = self.counts.len();
        let mut weighted = self.means.clone();
        for (row, n) in weighted.chunks_exact_mut(elements).zip(&self.counts) {
            let weight = (*n as f32).sqrt();
            row.iter_mut().for_each(|v| *v *= weight);
        }
        let mut directions = leading_subspace(&weighted, tokens, elements, factors);
        drop(weighted);
        let count = directions.len() / elements;
        let mut transposed = vec![0.0; directions.len()];
        for (factor, row) in directions.chunks_exact(elements).enumerate() {
            row.iter().enumerate().for_each(|(element, v)| transposed[element * count + factor] = *v);
        }
        let values = product(tokens, elements, count, &self.means, &transposed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_no_more_rows_than_the_tokens_seen_warrant() {
        let rows = |tokens: &[u32]| ids_with_rows([tokens].into_iter(), 1).last().map_or(0, |id| id + 1);
        assert_eq!(rows(&(0..2_048).collect::<Vec<_>>()), 2_048);
        assert_eq!(rows(&[3, 15, 3]), 16, "two ids may have 32 rows");
        // A thousand ids spread over 2^20, like hashes: only a few are near zero, by chance.
        let hashes: Vec<u32> = (1..=1_000u32).map(|i| i.wrapping_mul(2_654_435_761) >> 12).collect();
        assert!(rows(&hashes) <= 16_000, "{}", rows(&hashes));
        // A vocabulary with a stray id far above it keeps its rows.
        let stray: Vec<u32> = (0..500).chain([1_000_000]).collect();
        assert_eq!(rows(&stray), 500);
        assert_eq!((rows(&[]), rows(&[u32::MAX]), rows(&[16])), (0, 0, 0));
    }

    #[test]
    fn a_token_of_few_texts_has_no_row() {
        let texts: [&[u32]; 3] = [&[1, 2, 2, 2], &[1, 3], &[1, 2]];
        let ids = |texts_min| ids_with_rows(texts.into_iter(), texts_min);
        assert_eq!((ids(1), ids(2), ids(3), ids(4)), (vec![1, 2, 3], vec![1, 2], vec![1], vec![]));
    }
}
