//! The token predictor: KV given the current and the previous token, additive, shrunken, low-rank.

use super::{
    BasisRecipe,
    data::{Block, Corpus},
    linear::product,
    token_means::{TokenMeans, TokenPosition, ids_with_rows},
    weights::set_weights,
};
use kvasir_codec::authoring::{Matrix, Scope, TokenPredictor, packed_bytes};

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
    /// `[factor][element]`: the meaning of one unit of a factor.
    directions: Vec<f32>,
}

impl TokenModel {
    /// Fits both tables by back-fitting: each explains the residuals of the other. The tables predict the
    /// scope's elements, or their coefficients in a basis of this many rows if given: then memory grows only
    /// with the rank.
    pub(super) fn fit(
        corpus: &Corpus<'_>,
        scope: &Scope,
        recipe: &BasisRecipe,
        basis: Option<(&Matrix, usize)>,
    ) -> Self {
        let BasisRecipe { token_factors: factors, table_bits: bits, token_texts, .. } = *recipe;
        let elements = basis.map_or(scope.elements(), |(_, rank)| rank);
        let ids = ids_with_rows(corpus.texts(), token_texts);
        let vocabulary = ids.last().map_or(0, |id| *id as usize + 1);
        let mut tables: [Option<TokenMeans<'_>>; 2] = [None, None];
        for (which, other, wanted) in [
            (TokenPosition::Current, TokenPosition::Previous, factors[0] > 0),
            (TokenPosition::Previous, TokenPosition::Current, factors[1] > 0),
            // Once more, now that the previous token's share is known.
            (TokenPosition::Current, TokenPosition::Previous, factors[0] > 0 && factors[1] > 0),
        ] {
            if wanted && !ids.is_empty() {
                let known = tables[other as usize].as_ref().map(|means| (other, means));
                let means = TokenMeans::fit(corpus, scope, basis, &ids, which, known);
                tables[which as usize] = Some(means);
            }
        }
        let mut model = Self { vocabulary, bits, in_basis: basis.is_some(), ..Self::default() };
        for (which, table) in tables.iter().enumerate() {
            let Some(table) = table else { continue };
            let (seen, directions) = table.factorise(elements, factors[which], bits);
            let count = directions.len() / elements;
            let mut codes = vec![0i8; vocabulary * count];
            for (id, row) in ids.iter().zip(seen.chunks_exact(count.max(1))) {
                codes[*id as usize * count..][..count].copy_from_slice(row);
            }
            model.factors[which] = count;
            model.directions.extend(directions);
            *(if which == 0 { &mut model.current } else { &mut model.previous }) = codes;
        }
        model
    }

    /// Rows of a table: up to the largest token that has one.
    pub(super) fn vocabulary(corpus: &Corpus<'_>, token_texts: usize) -> usize {
        let ids = ids_with_rows(corpus.texts(), token_texts);
        ids.last().map_or(0, |id| *id as usize + 1)
    }

    /// Bytes of both tables in a profile.
    pub(super) fn table_bytes(&self) -> usize {
        self.factors.iter().map(|count| self.vocabulary * packed_bytes(*count, self.bits)).sum()
    }

    /// Predictions of a block, `[token][element]`, as the integer predictor will make them except for
    /// rounding.
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

/// A token's factors; zeros if it has none.
fn fill(row: &mut [f32], codes: &[i8], token: Option<u32>) {
    let Some(token) = token else { return };
    let start = (token as usize).saturating_mul(row.len());
    if let Some(codes) = codes.get(start..start.saturating_add(row.len())) {
        row.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(*code));
    }
}
