#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod basis;
mod bit_allocation;
mod calibrated;
mod check;
mod cluster;
mod data;
mod direct;
mod draft;
mod error;
mod linear;
mod lossless_level;
mod moments;
mod non_finite;
mod pack;
mod rates;
mod search;
mod sensitivity;
mod sinks;
mod sketch;
mod study;
mod sweep;
mod token_means;
mod tokens;
mod transparent;
mod weights;

use kvasir_types::{ModelSpec, Plane};

pub use self::{
    data::non_finite,
    error::TrainError,
    non_finite::NonFinite,
    pack::pack,
    search::{Trial, search},
    study::Study,
    sweep::train_at_scale,
    transparent::train_transparent,
};

use self::{data::Corpus, draft::Draft, sensitivity::Sensitivity};
use kvasir_codec::{KvBuffer, Profile, TrainingNote, authoring::ProfileParts, rans::STAGE_TABLES_MAX};

#[cfg(test)]
extern crate self as kvasir_train;
#[cfg(test)]
#[path = "../../kvasir-codec/tests/common/mod.rs"]
mod common;

/// A text and its KV.
#[derive(Debug, Clone)]
pub struct TrainingContext {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Position of the first token; 0 for a whole text.
    pub first_position: u64,
    /// Their KV, as the engine caches it (keys after RoPE).
    pub kv: KvBuffer,
}

/// The kind of profile to train.
#[derive(Debug, Clone, PartialEq)]
pub enum Recipe {
    /// Static mean, identity basis: bit-exact and cheap to decode, for clients without the means for a product.
    Direct,
    /// The cache bit for bit, as one level.
    Exact,
    /// [`Recipe::Direct`] with the cache bit for bit on top.
    DirectExact,
    /// The configuration of the CacheGen paper: anchor-first deltas, bins 0.5 / 1 / 1.5 by layer third.
    CacheGen,
    /// A trained basis with a token predictor: the smallest.
    Basis(BasisRecipe),
}

impl Default for Recipe {
    fn default() -> Self {
        Self::Basis(BasisRecipe::default())
    }
}

/// Parameters of [`Recipe::Basis`].
#[derive(Debug, Clone, PartialEq)]
pub struct BasisRecipe {
    /// Most coefficients of a scope; `None` for as many as the scope has elements.
    pub rank_max: Option<usize>,
    /// Layers of a scope. `None`: all; for [`train_transparent`] as many as have a basis of full rank.
    pub scope_layers: Option<usize>,
    /// Whether K and V share a scope.
    pub joint: bool,
    /// Most factors of the current-token predictor, and of the previous-token predictor; 0 for none.
    pub token_factors: [usize; 2],
    /// Bits of a factor of the token predictor, 2 to 8.
    pub table_bits: u8,
    /// A token gets a row in the predictor's tables only if it occurs in at least this many contexts. A
    /// profile reveals to its readers which tokens have rows: if it is trained on users' text, a rare name
    /// must have none.
    pub token_texts: usize,
    /// Tokens stored exactly at the start of a context. `None`: as many as an oracle finds significant, or
    /// without an oracle the number of outliers among the first tokens.
    pub exact_tokens: Option<usize>,
    /// Most bytes of the profile: bases are packed to fit. `None`: f16 bases of `rank_max`.
    pub budget_bytes: Option<usize>,
    /// Most multiply-adds per decoded token; bounds the rank.
    pub budget_macs: Option<usize>,
    /// Whether keys are rotated back to position 0.
    pub unrope: bool,
    /// Levels, 1 to 8.
    pub levels: usize,
    /// Most tables of the stage, 1 to 128, shared by all coefficients.
    pub stage_tables: usize,
    /// Whether wide coefficients enter below level 0 and narrow ones at a later level; else all enter at
    /// level 0.
    pub entry_levels: bool,
    /// Whether values are reconstructed at the centroids of their cells; else in their middles.
    pub centroids: bool,
}

impl Default for BasisRecipe {
    fn default() -> Self {
        Self {
            rank_max: None,
            scope_layers: None,
            joint: true,
            token_factors: [256, 128],
            table_bits: 8,
            token_texts: 1,
            exact_tokens: None,
            budget_bytes: None,
            budget_macs: None,
            unrope: true,
            levels: BASIS_LEVELS,
            stage_tables: STAGE_TABLES_MAX,
            entry_levels: true,
            centroids: true,
        }
    }
}

/// A quality oracle (an engine), which measures for the trainer how much a profile's levels cost.
pub trait QualityOracle {
    /// Mean logit KL in nats per token of decoding held-out contexts at each level, coarsest first, against
    /// the uncompressed cache.
    fn kl_by_level(&mut self, profile: &Profile) -> Vec<f32>;

    /// Mean logit KL in nats per token of white noise in one plane of one layer, with `nmse` times the power
    /// of the plane about its mean. `None` if the oracle cannot measure it: then all planes have the same
    /// weight.
    fn kl_of_noise(&mut self, layer: usize, plane: Plane, nmse: f32) -> Option<f32> {
        let _ = (layer, plane, nmse);
        None
    }
}

/// Levels of a profile with a trained basis.
const BASIS_LEVELS: usize = 4;
/// Levels of a direct profile.
const DIRECT_LEVELS: usize = 3;
/// Error of the finest level about that of an 8-bit cache: for trials, and for recipes without steps to choose.
pub const FINEST_NMSE: f64 = 2.5e-4;

/// Trains a profile whose finest level has an error of about `finest_nmse`: the power of the error over that
/// of the cache about its mean. A truncated basis may not reach it; [`Profile::levels`] gives the error
/// reached on held-out text. It is a mean: the worst head's is larger, so for chunks that clients load by default
/// there is [`train_transparent`].
///
/// `progress` receives the current step and the share done, 0 to 1.
///
/// # Errors
/// [`TrainError`]: too little or mismatched data, an impossible recipe.
pub fn train(
    spec: &ModelSpec,
    contexts: &[TrainingContext],
    recipe: &Recipe,
    finest_nmse: f64,
    progress: &mut dyn FnMut(&str, f32),
) -> Result<Profile, TrainError> {
    if !(finest_nmse > 0.0 && finest_nmse < 1.0) {
        let why = format!("it is a share of the power, above 0 and below 1, not {finest_nmse}");
        return Err(TrainError::Recipe { field: "finest error", why });
    }
    let session = Session::new(spec, contexts, recipe, Sensitivity::unknown(), progress)?;
    progress("choosing entry levels and tables", 0.8);
    let step = session.step_of(finest_nmse);
    let parts = session.parts(step)?;
    session.finish(parts, step, progress)
}

/// As [`train`], with the finest step calibrated so that its KL is about `finest_kl` (3e-4 by design), and
/// the measured KL of every level written into the profile. The cost of errors by plane is measured too;
/// steps and bases follow these costs if that needs fewer bits than equal weights. [`Recipe::CacheGen`] keeps
/// the paper's bins.
///
/// # Errors
/// As [`train`].
pub fn train_calibrated(
    spec: &ModelSpec,
    contexts: &[TrainingContext],
    recipe: &Recipe,
    oracle: &mut dyn QualityOracle,
    finest_kl: f32,
    progress: &mut dyn FnMut(&str, f32),
) -> Result<Profile, TrainError> {
    calibrated::train(spec, contexts, recipe, (oracle, finest_kl), progress)
}

/// A training run after its transforms were fitted.
struct Session<'a> {
    spec: &'a ModelSpec,
    corpus: Corpus<'a>,
    draft: Draft,
    recipe: &'a Recipe,
    exact_tokens: usize,
    sensitivity: Sensitivity,
}

impl<'a> Session<'a> {
    fn new(
        spec: &'a ModelSpec,
        contexts: &'a [TrainingContext],
        recipe: &'a Recipe,
        sensitivity: Sensitivity,
        progress: &mut dyn FnMut(&str, f32),
    ) -> Result<Self, TrainError> {
        if let Recipe::Basis(recipe) = recipe {
            basis::check(recipe)?;
        }
        progress("checking the contexts", 0.0);
        let exact_tokens = match recipe {
            Recipe::Basis(BasisRecipe { exact_tokens: Some(count), .. }) => *count,
            Recipe::Basis(_) if sensitivity.is_known() => 0,
            Recipe::Basis(_) => sinks::count(spec, contexts),
            Recipe::Direct | Recipe::CacheGen | Recipe::Exact | Recipe::DirectExact => 0,
        };
        let corpus = Corpus::new(spec, contexts, exact_tokens, sensitivity.relative())?;
        let draft = match recipe {
            Recipe::Direct => direct::draft(&corpus, None, DIRECT_LEVELS, STAGE_TABLES_MAX),
            Recipe::Exact | Recipe::DirectExact => {
                let tables = STAGE_TABLES_MAX - lossless_level::LOSSLESS_TABLES;
                direct::draft(&corpus, Some(lossless_level::TOKEN_FACTORS), DIRECT_LEVELS, tables)
            }
            Recipe::CacheGen => direct::cachegen_draft(&corpus, DIRECT_LEVELS),
            Recipe::Basis(recipe) => basis::draft(&corpus, recipe, progress)?,
        };
        Ok(Self { spec, corpus, draft, recipe, exact_tokens, sensitivity })
    }

    /// The step of a finest error.
    fn step_of(&self, nmse: f64) -> f32 {
        match self.recipe {
            // The paper's bins are in the gains.
            Recipe::CacheGen => 1.0,
            // Nothing is quantised: predictions are rounded to this step.
            Recipe::Exact => lossless_level::PREDICTION_STEP,
            Recipe::Direct | Recipe::DirectExact | Recipe::Basis(_) => {
                self.draft.step_for_nmse(&self.corpus, nmse)
            }
        }
    }

    /// The profile of a step, without the results of the held-out check.
    fn parts(&self, step: f32) -> Result<ProfileParts, TrainError> {
        let mut parts = match self.recipe {
            Recipe::Exact => self.draft.without_levels(self.spec, step)?,
            _ => self.draft.finish(self.spec, &self.corpus, step)?,
        };
        parts.exact_tokens = self.exact_tokens;
        parts.training = TrainingNote {
            recipe: self.recipe.name().to_owned(),
            note: self.sensitivity.note().to_owned(),
            tokens: self.corpus.fit_tokens() as u64,
            held_out_tokens: self.corpus.held_out_tokens() as u64,
        };
        Ok(parts)
    }

    /// The profile of `parts`, which have the step `step`, with the results of the held-out check. A coarsest
    /// level that is worse than nothing, or no smaller than the next one, is omitted.
    fn finish(
        mut self,
        mut parts: ProfileParts,
        step: f32,
        progress: &mut dyn FnMut(&str, f32),
    ) -> Result<Profile, TrainError> {
        loop {
            let exact_tokens = parts.exact_tokens;
            let all = match self.recipe {
                Recipe::Exact | Recipe::DirectExact => lossless_level::add(&self.corpus, parts)?,
                Recipe::Direct | Recipe::CacheGen | Recipe::Basis(_) => parts,
            };
            progress("coding held-out chunks", 0.9);
            let profile = check::note_levels(self.spec, &self.corpus, all, &self.sensitivity)?;
            if *self.recipe == Recipe::CacheGen || !has_idle_level(&profile) {
                return Ok(profile);
            }
            self.draft.level_count -= 1;
            parts = self.parts(step)?;
            parts.exact_tokens = exact_tokens;
        }
    }

    /// Chooses the number of exactly stored tokens: a token is stored exactly if that removes at least a
    /// tenth of the remaining KL of the finest level, so that its benefit exceeds its cost. `best` has none.
    fn choose_exact_tokens(
        &self,
        parts: &mut ProfileParts,
        mut best: f32,
        oracle: &mut dyn QualityOracle,
        progress: &mut dyn FnMut(&str, f32),
    ) -> Result<(), TrainError> {
        const CANDIDATES: [usize; 2] = [1, 4];
        const WORTH: f32 = 0.9;
        if !matches!(self.recipe, Recipe::Basis(BasisRecipe { exact_tokens: None, .. })) {
            return Ok(());
        }
        progress("measuring attention sinks", 0.86);
        let mut chosen = parts.exact_tokens;
        for count in CANDIDATES {
            parts.exact_tokens = count;
            let profile = Profile::assemble(parts.clone())?;
            let kl = oracle.kl_by_level(&profile).last().copied().unwrap_or(0.0);
            if kl < best * WORTH.powi((count - chosen) as i32) {
                (chosen, best) = (count, kl);
            }
        }
        parts.exact_tokens = chosen;
        Ok(())
    }

    /// The profile whose finest level has a KL of about `target`, and its step. One measurement gives the KL
    /// of four steps, a factor 3 apart; the next step follows from a line through them in logarithms.
    fn calibrate(
        &self,
        oracle: &mut dyn QualityOracle,
        target: f32,
        progress: &mut dyn FnMut(&str, f32),
    ) -> Result<(ProfileParts, f32), TrainError> {
        /// Rounds of calibration.
        const ROUNDS: usize = 4;
        /// Error at which calibration begins.
        const FIRST_NMSE: f64 = 0.01;
        /// Close enough, in logarithms.
        const TOLERANCE: f32 = 0.15;
        let mut step = self.step_of(FIRST_NMSE);
        for round in 1..=ROUNDS {
            progress("calibrating the finest step", 0.55 + 0.06 * round as f32);
            let mut parts = self.parts(step)?;
            let kl = oracle.kl_by_level(&Profile::assemble(parts.clone())?);
            let finest = kl.last().copied().unwrap_or(0.0);
            progress(&format!("step {step:.4}: KL by level {kl:?}"), 0.58 + 0.06 * round as f32);
            let ratio = if finest == 0.0 {
                Some(8.0) // so fine that every span is out of the integers' range and stored exactly
            } else if !finest.is_finite() || finest < 0.0 || (finest / target).ln().abs() < TOLERANCE {
                None
            } else {
                ratio_to(&kl, target)
            };
            match ratio {
                Some(ratio) if round < ROUNDS => step *= ratio,
                _ => {
                    self.choose_exact_tokens(&mut parts, finest, oracle, progress)?;
                    return Ok((parts, step));
                }
            }
        }
        Ok((self.parts(step)?, step))
    }
}

/// Whether the coarsest of several lossy levels is too coarse to be used.
fn has_idle_level(profile: &Profile) -> bool {
    /// Share of bits below which two levels are one.
    const SAME_BITS: f32 = 0.01;
    match profile.levels().get(..profile.lossy_levels()) {
        Some([coarsest, next, ..]) => {
            let is_same = coarsest.bits_per_element > next.bits_per_element * (1.0 - SAME_BITS);
            coarsest.nmse >= 1.0 || is_same
        }
        _ => false,
    }
}

/// The ratio of the step with a KL of `target` to the finest one, given the KL at 27, 9, 3 and 1 steps (or
/// fewer); `None` if it is finer than the finest and the KL hardly falls any more.
fn ratio_to(kl: &[f32], target: f32) -> Option<f32> {
    /// Below this slope a truncated basis is at its floor. KL grows with the error's power, that is with slope 2.
    const FLOOR_SLOPE: f32 = 0.35;
    let [.., before, finest] = *kl else { return Some((target / kl.first()?).sqrt().clamp(0.2, 5.0)) };
    let slope = |coarse: f32, fine: f32| (coarse / fine).ln() / 3f32.ln();
    if target < finest {
        let last = slope(before, finest);
        return (last > FLOOR_SLOPE).then(|| (target / finest).powf(1.0 / last.min(2.0)).clamp(0.2, 1.0));
    }
    for (up, pair) in kl.windows(2).rev().enumerate() {
        let (coarse, fine) = (pair[0], pair[1]);
        if target <= coarse && coarse > fine {
            return Some(3f32.powf(up as f32 + (target / fine).ln() / (coarse / fine).ln()));
        }
    }
    Some(3f32.powi(kl.len() as i32 - 1))
}

impl Recipe {
    /// Name as the command line and the profile have it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Exact => "exact-only",
            Self::DirectExact => "exact-residual",
            Self::CacheGen => "cachegen",
            Self::Basis(_) => "basis",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_off_the_line_of_the_levels() {
        // KL = step²: from 1 to 2 is a ratio of √2.
        let kl = [729.0, 81.0, 9.0, 1.0];
        for (target, ratio) in [(2.0, 2f32.sqrt()), (9.0, 3.0), (30.0, 30f32.sqrt()), (0.5, 0.5f32.sqrt())] {
            let found = ratio_to(&kl, target).expect("not at a floor");
            assert!((found / ratio - 1.0).abs() < 1e-3, "{target}: {found}");
        }
        assert_eq!(ratio_to(&[4.0, 1.2, 1.05, 1.0], 0.3), None, "the floor");
        assert_eq!(ratio_to(&kl, 1e6), Some(27.0));
    }
}
