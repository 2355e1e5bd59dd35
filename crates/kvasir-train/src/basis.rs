//! Trained bases: PCA of the token predictor's residuals.

use kvasir_types::LEVELS_MAX;

use super::{
    BasisRecipe, TrainError, bit_allocation,
    data::Corpus,
    draft::{Draft, ScopeDraft},
    linear::Covariance,
    moments::set_mean_and_scale,
    sketch::Sketch,
    tokens::TokenModel,
};
use kvasir_codec::{
    authoring::{Matrix, Scope, packed_bytes, scopes},
    limits::{EXACT_TOKENS_MAX, TOKEN_FACTORS_MAX},
    rans::{COEFFICIENTS_MAX, STAGE_TABLES_MAX, TRIT_TABLES_MAX},
};

/// Weight of the predictions' covariance relative to that of the residuals: a truncated basis must also span
/// the predictions, or it could not express them.
const PREDICTION_WEIGHT: f32 = 0.1;

/// Checks a recipe, before it is used to divide the contexts.
pub(super) fn check(recipe: &BasisRecipe) -> Result<(), TrainError> {
    let impossible = |field, why: &str| Err(TrainError::Recipe { field, why: why.to_owned() });
    if recipe.scope_layers == Some(0) {
        return impossible("scope_layers", "a scope has at least one layer");
    }
    if recipe.rank_max == Some(0) {
        return impossible("rank_max", "a basis has at least one vector");
    }
    if !(1..=LEVELS_MAX).contains(&recipe.levels) {
        return impossible("levels", "a profile has 1 to 8 levels");
    }
    if !(1..=STAGE_TABLES_MAX).contains(&recipe.stage_tables) {
        return impossible("stage_tables", "a bank has 1 to 128 tables");
    }
    if recipe.token_factors.iter().sum::<usize>() > TOKEN_FACTORS_MAX {
        return impossible("token_factors", "both tokens together have at most 512");
    }
    if recipe.exact_tokens.is_some_and(|count| count > EXACT_TOKENS_MAX) {
        return impossible("exact_tokens", "at most 16 tokens are stored exactly");
    }
    Ok(())
}

/// Fits means, scales, predictors and bases of all scopes.
pub(super) fn draft(
    corpus: &Corpus<'_>,
    recipe: &BasisRecipe,
    progress: &mut dyn FnMut(&str, f32),
) -> Result<Draft, TrainError> {
    let layers = recipe.scope_layers.unwrap_or(corpus.spec.layers.len());
    let mut drafts = Vec::new();
    let scopes = scopes(corpus.spec, layers, recipe.joint, recipe.unrope);
    let count = scopes.len();
    for (index, scope) in scopes.into_iter().enumerate() {
        let mut tell = |what: &str, share: f32| {
            progress(what, 0.6 * (index as f32 + share) / count as f32);
        };
        drafts.push(fit_scope(corpus, recipe, scope, index, &mut tell)?);
    }
    Ok(Draft {
        scopes: drafts,
        level_count: recipe.levels,
        tables: recipe.stage_tables,
        entry_levels: recipe.entry_levels,
        centroids: recipe.centroids,
    })
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
    // For all scopes together: each scope may have as many multiply-adds per element as the whole.
    let share = elements as f64 / corpus.spec.elements_per_token() as f64;
    let bytes = recipe.budget_bytes.map(|bytes| {
        let room = (bytes.saturating_sub(FIXED_BYTES) as f64 * share) as usize;
        (bytes, room.saturating_sub(scope_bytes(&scope)))
    });
    let recipe = &BasisRecipe { token_factors: affordable(corpus, recipe, bytes), ..recipe.clone() };
    let factors = recipe.token_factors.iter().sum::<usize>();
    let affordable_rank =
        recipe.budget_macs.map(|macs| (macs, (macs as f64 * share) as usize / (elements + factors)));
    if let Some((macs, 0)) = affordable_rank {
        return Err(TrainError::MultiplyAdds { macs, lost: 1.0 });
    }
    let rank = recipe.rank_max.unwrap_or(elements).min(elements).min(COEFFICIENTS_MAX);
    let rank = affordable_rank.map_or(rank, |(_, affordable)| affordable.min(rank));
    let fitted = if elements > DENSE_ELEMENTS_MAX {
        fit_wide(corpus, recipe, &scope, rank, tell)
    } else {
        fit_dense(corpus, recipe, &scope, rank, tell)
    };
    let Fitted { tokens, rows, spectrum, power } =
        fitted.ok_or(TrainError::Decomposition { scope: index })?;
    if let Some((macs, affordable)) = affordable_rank
        && spectrum.len() == affordable
    {
        bit_allocation::within_macs(macs, &spectrum, power)?;
    }
    let bits = bytes.map(|(bytes, room)| {
        let room = room.saturating_sub(tokens.as_ref().map_or(0, TokenModel::table_bytes));
        let allocation = bit_allocation::allocate(&spectrum, elements, factors, room, rank);
        bit_allocation::within(bytes, allocation).map(|allocation| allocation.bits)
    });
    let bits = bits.transpose()?;
    scope.basis = bit_allocation::basis(&rows, elements, bits.as_deref());
    Ok(ScopeDraft { scope, tokens })
}

/// As many of the recipe's factors as have tables in half of a scope's room.
fn affordable(corpus: &Corpus<'_>, recipe: &BasisRecipe, bytes: Option<(usize, usize)>) -> [usize; 2] {
    let Some((_, room)) = bytes else { return recipe.token_factors };
    let vocabulary = TokenModel::vocabulary(corpus, recipe.token_texts);
    let tables = |factors: &[usize; 2]| {
        factors.iter().map(|count| vocabulary * packed_bytes(*count, recipe.table_bits)).sum::<usize>()
    };
    let share = |part: usize| recipe.token_factors.map(|count| count * part / FACTOR_PARTS);
    let parts = (0..=FACTOR_PARTS).rev().map(share);
    parts.into_iter().find(|factors| tables(factors) <= room / 2).unwrap_or([0, 0])
}

/// The fit of a scope's data.
struct Fitted {
    tokens: Option<TokenModel>,
    /// Basis, `[coefficient][element]`.
    rows: Vec<f32>,
    /// Power along its rows, decreasing.
    spectrum: Vec<f32>,
    /// Power along all directions.
    power: f64,
}

/// The predictor first, then the principal components of its residuals. Memory grows with the square of the
/// elements.
fn fit_dense(
    corpus: &Corpus<'_>,
    recipe: &BasisRecipe,
    scope: &Scope,
    rank: usize,
    tell: &mut dyn FnMut(&str, f32),
) -> Option<Fitted> {
    let elements = scope.elements();
    tell("token predictor", 0.1);
    let tokens = (recipe.token_factors != [0, 0]).then(|| TokenModel::fit(corpus, scope, recipe, None));
    tell("covariance of the residuals", 0.4);
    let mut covariance = Covariance::new(elements);
    corpus.stream(scope, &corpus.fit, |mut block| {
        if let Some(tokens) = &tokens {
            let predicted = tokens.predict(&block, elements);
            block.elements.iter_mut().zip(&predicted).for_each(|(x, p)| *x -= p);
            covariance.add(&predicted, PREDICTION_WEIGHT);
        }
        covariance.add(&block.elements, 1.0);
    });
    tell("principal components", 0.7);
    let (rows, spectrum) = covariance.leading(rank)?;
    Some(Fitted { tokens, rows, spectrum, power: covariance.power() })
}

/// The principal components first, by streaming, then the predictor among their coefficients: memory grows with elements
/// × rank and vocabulary × rank only.
fn fit_wide(
    corpus: &Corpus<'_>,
    recipe: &BasisRecipe,
    scope: &Scope,
    rank: usize,
    tell: &mut dyn FnMut(&str, f32),
) -> Option<Fitted> {
    let rank = rank.min(corpus.fit_tokens() / TOKENS_PER_RANK).max(1);
    tell("principal components, first pass", 0.1);
    let (mut sketch, mut power) = (Sketch::new(scope.elements(), rank), 0.0);
    corpus.stream(scope, &corpus.fit, |block| {
        sketch.add(&block.elements);
        power += block.elements.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    });
    tell("principal components, second pass", 0.4);
    let mut inside = sketch.finish();
    corpus.stream(scope, &corpus.fit, |block| inside.add(&block.elements));
    let (rows, spectrum) = inside.finish(rank)?;
    tell("token predictor", 0.7);
    let tokens = (recipe.token_factors != [0, 0]).then(|| {
        let matrix = Matrix::Dense(rows.clone());
        let basis = Some((&matrix, spectrum.len()));
        TokenModel::fit(corpus, scope, recipe, basis)
    });
    Some(Fitted { tokens, rows, spectrum, power })
}

/// Most elements of a scope whose covariance is held in memory: 256 MB.
const DENSE_ELEMENTS_MAX: usize = 8_192;
/// Tokens that each direction of a basis is estimated from.
const TOKENS_PER_RANK: usize = 10;
/// In how many steps factors are given up to a budget.
const FACTOR_PARTS: usize = 32;
/// Bytes that every profile may need: header, texts and a full table bank.
const FIXED_BYTES: usize = 1_024 + bank_bytes(STAGE_TABLES_MAX, TRIT_TABLES_MAX);

/// Bytes of a bank with these numbers of tables, and of its shifts.
pub(super) const fn bank_bytes(stage_tables: usize, trit_tables: usize) -> usize {
    stage_tables * (128 + 8) + trit_tables * 8
}

/// Bytes of a scope without its coefficients and tables.
pub(super) fn scope_bytes(scope: &Scope) -> usize {
    64 + 20 * scope.members.len() + 4 * scope.elements()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{contexts, mixed_spec};
    use kvasir_codec::{
        Profile,
        authoring::{CoefficientCoding, ProfileParts},
        rans::TableBank,
    };

    /// Both methods for a basis span the data: six hidden directions per token under noise of 0.3².
    #[test]
    fn streaming_and_covariance_find_the_same_subspace() {
        let spec = mixed_spec(kvasir_types::KvDtype::Bf16);
        let data = contexts(&spec, 6, 300);
        let corpus = Corpus::new(&spec, &data, 0, &[]).expect("enough");
        let mut scope = scopes(&spec, spec.layers.len(), true, true).remove(0);
        set_mean_and_scale(&corpus, &mut scope);
        let recipe = BasisRecipe { token_factors: [6, 0], ..BasisRecipe::default() };
        let power = |fitted: Fitted| {
            let (basis, rank) = (Matrix::Dense(fitted.rows), fitted.spectrum.len());
            let (mut kept, mut all) = (0f64, 0f64);
            corpus.stream(&scope, &corpus.held_out, |block| {
                let square = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
                kept += square(&basis.coefficients(block.current.len(), rank, &block.elements));
                all += square(&block.elements);
            });
            kept / all
        };
        let dense = fit_dense(&corpus, &recipe, &scope, 12, &mut |_, _| ()).expect("decomposes");
        let wide = fit_wide(&corpus, &recipe, &scope, 12, &mut |_, _| ()).expect("decomposes");
        assert_eq!(wide.tokens.as_ref().map(TokenModel::table_bytes), Some(6 * 40));
        let (dense, wide) = (power(dense), power(wide));
        assert!(wide > 0.9 && wide > dense - 0.01, "{dense} {wide}");
    }

    #[test]
    fn a_scope_is_charged_what_it_takes_in_a_file() {
        /// Bytes of a coefficient's coding, which a row of the basis is charged with.
        const CODING_BYTES: usize = 12;
        let spec = mixed_spec(kvasir_types::KvDtype::Bf16);
        let mut scope = scopes(&spec, spec.layers.len(), true, true).remove(0);
        scope.members.iter_mut().for_each(|member| member.power = 1.0);
        scope.coding = vec![CoefficientCoding::ABSENT; scope.elements()];
        scope.loss = vec![0.0; LEVELS_MAX];
        let file = |count: usize| {
            let parts = ProfileParts {
                model_id: spec.model_id(),
                exact_tokens: 0,
                scopes: vec![scope.clone(); count],
                bank: TableBank::new(Vec::new(), Vec::new()).expect("no tables"),
                shifts: Vec::new(),
                levels: vec![Default::default(); LEVELS_MAX],
                training: Default::default(),
            };
            Profile::assemble(parts).expect("valid").to_bytes().len()
        };
        // Members enough that none of their bytes hides in the fixed ones.
        assert_eq!(scope.members.len(), 14);
        let bytes = file(2) - file(1) - CODING_BYTES * scope.elements();
        assert!(bytes <= scope_bytes(&scope), "{bytes} of {}", scope_bytes(&scope));
    }
}
