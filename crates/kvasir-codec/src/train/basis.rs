//! Trained bases: PCA of what the token predictor leaves.

use super::{
    BasisRecipe, TrainError,
    data::Corpus,
    draft::{Draft, ScopeDraft},
    layout::scopes,
    linear::Covariance,
    moments::set_mean_and_scale,
    packing,
    tokens::TokenModel,
};
use crate::{
    limits::{EXACT_TOKENS_MAX, TOKEN_FACTORS_MAX},
    profile::Scope,
    rans::{COEFFICIENTS_MAX, STAGE_TABLES_MAX, TRIT_TABLES_MAX},
};

/// Weight of the predictions' covariance beside that of the residuals: a truncated basis must also span what
/// is predicted, or the prediction could not be expressed in it.
const PREDICTION_WEIGHT: f32 = 0.1;

/// Fits means, scales, predictors and bases of all scopes.
pub(super) fn draft(
    corpus: &Corpus<'_>,
    recipe: &BasisRecipe,
    level_count: usize,
    progress: &mut dyn FnMut(&str, f32),
) -> Result<Draft, TrainError> {
    let layers = recipe.scope_layers.unwrap_or(corpus.spec.layers.len());
    let impossible = |field, why: &str| Err(TrainError::Recipe { field, why: why.to_owned() });
    if layers == 0 {
        return impossible("scope_layers", "a scope has at least one layer");
    }
    if recipe.rank_max == Some(0) {
        return impossible("rank_max", "a basis has at least one vector");
    }
    if recipe.token_factors.iter().sum::<usize>() > TOKEN_FACTORS_MAX {
        return impossible("token_factors", "both tokens together have at most 512");
    }
    if recipe.exact_tokens.is_some_and(|count| count > EXACT_TOKENS_MAX) {
        return impossible("exact_tokens", "at most 16 tokens are stored exactly");
    }
    let mut drafts = Vec::new();
    let scopes = scopes(corpus.spec, layers, recipe.joint, true);
    let count = scopes.len();
    for (index, scope) in scopes.into_iter().enumerate() {
        let mut tell = |what: &str, share: f32| {
            progress(what, 0.6 * (index as f32 + share) / count as f32);
        };
        drafts.push(fit_scope(corpus, recipe, scope, index, &mut tell)?);
    }
    Ok(Draft { scopes: drafts, level_count, tables: STAGE_TABLES_MAX })
}

fn fit_scope(
    corpus: &Corpus<'_>,
    recipe: &BasisRecipe,
    mut scope: Scope,
    index: usize,
    tell: &mut dyn FnMut(&str, f32),
) -> Result<ScopeDraft, TrainError> {
    let elements = scope.elements();
    tell("means and scales", 0.0);
    set_mean_and_scale(corpus, &mut scope);
    tell("token predictor", 0.1);
    let tokens = (recipe.token_factors != [0, 0])
        .then(|| TokenModel::fit(corpus, &scope, recipe.token_factors, recipe.table_bits));
    tell("covariance of what is not predicted", 0.4);
    let mut covariance = Covariance::new(elements);
    corpus.stream(&scope, &corpus.fit, |mut block| {
        if let Some(tokens) = &tokens {
            let predicted = tokens.predict(&block, elements);
            block.elements.iter_mut().zip(&predicted).for_each(|(x, p)| *x -= p);
            covariance.add(&predicted, PREDICTION_WEIGHT);
        }
        covariance.add(&block.elements, 1.0);
    });
    tell("principal components", 0.7);
    // All scopes together: each may have as many multiply-adds an element as the whole.
    let factors = tokens.as_ref().map_or(0, TokenModel::factor_count);
    let share = elements as f64 / corpus.spec.elements_per_token() as f64;
    let macs = recipe.budget_macs.map(|macs| (macs as f64 * share) as usize / (elements + factors));
    let rank = recipe.rank_max.unwrap_or(elements).min(macs.unwrap_or(elements).max(1));
    let rank = rank.min(elements).min(COEFFICIENTS_MAX);
    let (rows, spectrum) = covariance.leading(rank).ok_or(TrainError::Decomposition { scope: index })?;
    let bits = recipe.budget_bytes.map(|bytes| {
        let own = tokens.as_ref().map_or(0, TokenModel::table_bytes) + scope_bytes(&scope);
        let bytes = (bytes.saturating_sub(FIXED_BYTES) as f64 * share) as usize;
        packing::allocate(&spectrum, elements, factors, bytes.saturating_sub(own), rank)
    });
    scope.basis = packing::basis(&rows, elements, bits.as_deref());
    Ok(ScopeDraft { scope, tokens })
}

/// Header, texts and a full table bank.
pub(super) const FIXED_BYTES: usize = 1_024 + STAGE_TABLES_MAX * (128 + 8) + TRIT_TABLES_MAX * 8;

/// Bytes of a scope besides its coefficients and tables.
pub(super) fn scope_bytes(scope: &Scope) -> usize {
    64 + 16 * scope.members.len() + 4 * scope.elements()
}
