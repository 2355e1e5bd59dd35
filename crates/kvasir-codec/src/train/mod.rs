//! Profile training from KV dumps.

mod basis;
mod check;
mod cluster;
mod data;
mod direct;
mod draft;
mod layout;
mod linear;
mod moments;
mod rates;
mod sinks;
mod tokens;

use kvasir_types::ModelSpec;

use self::{data::Corpus, draft::Draft};
use crate::{KvBuffer, Profile, TrainError, TrainingNote, profile::ProfileParts};

/// A text and its KV, from position 0.
#[derive(Debug, Clone)]
pub struct TrainingContext {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Their KV, as the engine caches it (keys after RoPE).
    pub kv: KvBuffer,
}

/// What kind of profile to train.
#[derive(Debug, Clone, PartialEq)]
pub enum Recipe {
    /// Static mean, identity basis: bit-exact and cheap to decode, for clients without the means for a product.
    Direct,
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
    /// Layers of a scope; `None` for all.
    pub scope_layers: Option<usize>,
    /// Whether K and V share a scope.
    pub joint: bool,
    /// Most factors of the current-token predictor, and of the previous-token predictor; 0 for none.
    pub token_factors: [usize; 2],
    /// Tokens stored exactly at the start of a context; `None`: as many as there are attention sinks, which
    /// is measured.
    pub exact_tokens: Option<usize>,
}

impl Default for BasisRecipe {
    fn default() -> Self {
        Self {
            rank_max: None,
            scope_layers: None,
            joint: true,
            token_factors: [256, 128],
            exact_tokens: None,
        }
    }
}

/// What a quality oracle (an engine) can tell the trainer: how much a profile's levels cost.
pub trait QualityOracle {
    /// Mean logit KL in nats a token of decoding held-out contexts at each level, coarsest first, against the
    /// uncompressed cache.
    fn kl_by_level(&mut self, profile: &Profile) -> Vec<f32>;
}

/// Levels of a profile with a trained basis.
const BASIS_LEVELS: usize = 4;
/// Levels of a direct profile.
const DIRECT_LEVELS: usize = 3;
/// Power of the finest level's error over the signal's, where no oracle says better.
const FINEST_NMSE: f64 = 0.01;

/// Trains a profile; its finest step is chosen by a fixed target of the error's power.
///
/// `progress` is told what is going on and how far it is, 0 to 1.
///
/// # Errors
/// [`TrainError`]: too little or mismatched data, an impossible recipe.
pub fn train(
    spec: &ModelSpec,
    contexts: &[TrainingContext],
    recipe: &Recipe,
    progress: &mut dyn FnMut(&str, f32),
) -> Result<Profile, TrainError> {
    let session = Session::new(spec, contexts, recipe, progress)?;
    progress("choosing entry levels and tables", 0.8);
    let step = session.default_step();
    session.finish(step, progress)
}

/// As [`train`], with the finest step calibrated so that its KL is about `finest_kl` (3e-4 by design), and the
/// measured KL of every level written into the profile. [`Recipe::CacheGen`] keeps the paper's bins.
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
    let session = Session::new(spec, contexts, recipe, progress)?;
    let mut step = session.default_step();
    if *recipe != Recipe::CacheGen {
        step = session.calibrate(step, oracle, finest_kl, progress)?;
    }
    let profile = session.finish(step, progress)?;
    progress("measuring the quality of every level", 0.98);
    let kl = oracle.kl_by_level(&profile);
    Ok(profile.with_predicted_kl(&kl)?)
}

/// A training run after its transforms were fitted.
struct Session<'a> {
    spec: &'a ModelSpec,
    corpus: Corpus<'a>,
    draft: Draft,
    recipe: &'a Recipe,
    exact_tokens: usize,
}

impl<'a> Session<'a> {
    fn new(
        spec: &'a ModelSpec,
        contexts: &'a [TrainingContext],
        recipe: &'a Recipe,
        progress: &mut dyn FnMut(&str, f32),
    ) -> Result<Self, TrainError> {
        progress("checking the contexts", 0.0);
        let exact_tokens = match recipe {
            Recipe::Basis(BasisRecipe { exact_tokens: Some(count), .. }) => *count,
            Recipe::Basis(_) => sinks::count(spec, contexts),
            Recipe::Direct | Recipe::CacheGen => 0,
        };
        let corpus = Corpus::new(spec, contexts, exact_tokens)?;
        let draft = match recipe {
            Recipe::Direct => direct::draft(&corpus, DIRECT_LEVELS),
            Recipe::CacheGen => direct::cachegen_draft(&corpus, DIRECT_LEVELS),
            Recipe::Basis(recipe) => basis::draft(&corpus, recipe, BASIS_LEVELS, progress)?,
        };
        Ok(Self { spec, corpus, draft, recipe, exact_tokens })
    }

    fn default_step(&self) -> f32 {
        match self.recipe {
            // The paper's bins are in the gains.
            Recipe::CacheGen => 1.0,
            Recipe::Direct | Recipe::Basis(_) => self.draft.step_for_nmse(&self.corpus, FINEST_NMSE),
        }
    }

    /// The profile of a step, without what the held-out check tells.
    fn parts(&self, step: f32) -> Result<ProfileParts, TrainError> {
        let mut parts = self.draft.finish(self.spec, &self.corpus, step)?;
        parts.exact_tokens = self.exact_tokens;
        parts.training = TrainingNote {
            recipe: self.recipe.name().to_owned(),
            note: String::new(),
            tokens: self.corpus.fit_tokens() as u64,
            held_out_tokens: self.corpus.held_out_tokens() as u64,
        };
        Ok(parts)
    }

    fn finish(&self, step: f32, progress: &mut dyn FnMut(&str, f32)) -> Result<Profile, TrainError> {
        let parts = self.parts(step)?;
        progress("coding held-out chunks", 0.9);
        check::note_levels(self.spec, &self.corpus, parts)
    }

    /// Finds the step whose finest level has a KL of `target`, by secants in logarithms.
    fn calibrate(
        &self,
        start: f32,
        oracle: &mut dyn QualityOracle,
        target: f32,
        progress: &mut dyn FnMut(&str, f32),
    ) -> Result<f32, TrainError> {
        /// Rounds of calibration.
        const ROUNDS: usize = 5;
        /// KL grows about with the error's power, the square of the step, at high rate.
        const EXPONENT: f32 = 2.0;
        /// Below this it hardly grows with the step at all: a truncated basis has its floor there.
        const FLOOR_EXPONENT: f32 = 0.6;
        let (mut step, mut before, mut exponent) = (start, None::<(f32, f32)>, EXPONENT);
        for round in 0..ROUNDS {
            progress("calibrating the finest step", 0.6 + 0.06 * round as f32);
            let profile = Profile::assemble(self.parts(step)?)?;
            let kl = oracle.kl_by_level(&profile).last().copied().unwrap_or(0.0);
            if kl == 0.0 {
                step *= 8.0; // so fine that every span is out of the integers' range and stored exactly
                continue;
            }
            if !kl.is_finite() || kl < 0.0 || (kl / target).ln().abs() < 0.08 {
                break;
            }
            if let Some((step_before, kl_before)) = before {
                let slope = (kl / kl_before).ln() / (step / step_before).ln();
                if slope < FLOOR_EXPONENT && step < step_before {
                    // What is left is what the basis cannot express: finer steps cost bits and bring nothing.
                    progress("the basis' floor is reached above the target", 0.89);
                    return Ok(step_before);
                }
                exponent = if slope.is_finite() { slope.clamp(0.7, 4.0) } else { EXPONENT };
            }
            before = Some((step, kl));
            step *= (target / kl).powf(1.0 / exponent).clamp(0.2, 5.0);
        }
        Ok(step)
    }
}

impl Recipe {
    /// Name as the command line and the profile have it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::CacheGen => "cachegen",
            Self::Basis(_) => "basis",
        }
    }
}
