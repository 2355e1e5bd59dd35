//! The value of every feature of a profile: the paper's Fig. 15 for our codec.

use std::sync::Arc;

use kvasir_engine::Model;
use kvasir_train::{BasisRecipe, QualityOracle, Study, TrainingContext};
use serde::{Deserialize, Serialize};

use super::{Options, QUALITIES, QualityRow, Text, crossings, measure};
use crate::{BenchError, KvCodec, codecs::ProfileCodec};

/// One change to the recipe.
#[derive(Debug, Clone)]
pub struct Case {
    /// Which feature it is about.
    pub feature: &'static str,
    /// The replacement; unique.
    pub name: String,
    /// The recipe with it.
    pub recipe: BasisRecipe,
    /// Whether an error has the same cost in every plane.
    pub planes_alike: bool,
}

/// A case and its size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ablation {
    /// The feature.
    pub feature: String,
    /// The value it was set to.
    pub name: String,
    /// Size of the profile.
    pub profile_bytes: u64,
    /// Rank over all scopes.
    pub rank: usize,
    /// Bits per element at each of [`QUALITIES`]; `None` if no two levels enclose it.
    pub bits: Vec<Option<f64>>,
    /// Bits of the finest level, all levels stored.
    pub finest_bits: f64,
    /// Its KL.
    pub finest_kl: f64,
    /// Every level.
    pub rows: Vec<QualityRow>,
}

/// The first case is the unchanged recipe.
pub fn cases(base: &BasisRecipe, layers: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |feature, name: &str, planes_alike, change: &dyn Fn(&mut BasisRecipe)| {
        let mut recipe = base.clone();
        change(&mut recipe);
        cases.push(Case { feature, name: name.to_owned(), recipe, planes_alike });
    };
    let [current, _] = base.token_factors;
    let half = layers.div_ceil(2);
    add("base", "base", false, &|_| ());
    add("table banks", "1 table", false, &|r| r.stage_tables = 1);
    add("table banks", "4 tables", false, &|r| r.stage_tables = 4);
    add("table banks", "16 tables", false, &|r| r.stage_tables = 16);
    add("centroid shifts", "cell middles", false, &|r| r.centroids = false);
    add("entry levels", "all enter at level 0", false, &|r| r.entry_levels = false);
    add("nested levels", "the finest alone", false, &|r| r.levels = 1);
    add("predictor", "none", false, &|r| r.token_factors = [0, 0]);
    add("predictor", "current token only", false, &|r| r.token_factors = [current, 0]);
    add("planes", "apart", false, &|r| r.joint = false);
    add("scope", &format!("{half} layers"), false, &|r| r.scope_layers = Some(half));
    add("scope", "1 layer", false, &|r| r.scope_layers = Some(1));
    add("RoPE", "left on the keys", false, &|r| r.unrope = false);
    add("cost by plane", "all planes alike", true, &|_| ());
    add("budget", "none: f16 bases of full rank", false, &|r| {
        r.budget_bytes = None;
        r.budget_macs = None;
    });
    add("budget", "half", false, &|r| r.budget_bytes = r.budget_bytes.map(|b| b / 2));
    add("exact tokens", "4", false, &|r| r.exact_tokens = Some(4));
    cases
}

/// Data and judge of an ablation.
#[derive(Debug)]
pub struct Ground<'a> {
    /// The model.
    pub model: &'a Model,
    /// To train on.
    pub contexts: &'a [TrainingContext],
    /// To measure on: seen by no profile.
    pub text: &'a Text,
}

/// Trains and measures every case at the same finest step, the one at which the first has a KL of about `finest_kl` on
/// the judge's texts. `found` gets what there is after every case: a long run that is stopped leaves what it found.
///
/// # Errors
/// [`BenchError`]: a recipe that cannot be trained, windows that do not fit.
pub fn ablate(
    ground: &Ground<'_>,
    oracle: &mut dyn QualityOracle,
    cases: &[Case],
    (finest_kl, options): (f32, &Options),
    progress: &mut dyn FnMut(&str, f32),
    found: &mut dyn FnMut(&[Ablation]),
) -> Result<Vec<Ablation>, BenchError> {
    let Some(base) = cases.first() else { return Ok(Vec::new()) };
    let model = ground.model;
    let study = Study::new(model.spec(), ground.contexts, oracle, &mut |what, _| progress(what, 0.0));
    let step = study.step(&base.recipe, oracle, finest_kl, &mut |what, _| progress(what, 0.02))?;
    let mut out = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let at = 0.05 + 0.95 * index as f32 / cases.len() as f32;
        progress(&case.name, at);
        let profile = Arc::new(study.profile(&case.recipe, step, case.planes_alike, &mut |_, _| ())?);
        let codec = ProfileCodec::new("kvasir", &*case.name, model.spec(), Arc::clone(&profile))?;
        let rows = measure(model, &[&codec as &dyn KvCodec], ground.text, options, &mut |_| ())?;
        out.push(row(case, &profile.summary().scopes.iter().map(|s| s.rank).collect::<Vec<_>>(), rows));
        found(&out);
    }
    Ok(out)
}

fn row(case: &Case, ranks: &[usize], rows: Vec<QualityRow>) -> Ablation {
    let crossings = crossings(&rows);
    let bits = |kl: &f64| crossings.iter().find(|c| c.kl == *kl).and_then(|c| c.bits_per_element);
    let finest = rows.last();
    Ablation {
        feature: case.feature.to_owned(),
        name: case.name.clone(),
        profile_bytes: finest.map_or(0, |row| row.profile_bytes),
        rank: ranks.iter().sum(),
        bits: QUALITIES.iter().map(bits).collect(),
        finest_bits: finest.map_or(0.0, |row| row.bits_per_element),
        finest_kl: finest.map_or(0.0, |row| row.kl),
        rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_differs_from_the_base_and_has_a_name_of_its_own() {
        let base = BasisRecipe { budget_bytes: Some(1_000_000), ..BasisRecipe::default() };
        let cases = cases(&base, 8);
        for (index, case) in cases.iter().enumerate() {
            assert!(cases[..index].iter().all(|other| other.name != case.name), "{}", case.name);
            assert_eq!(index == 0, case.recipe == base && !case.planes_alike, "{}", case.name);
        }
    }
}
