//! Models to time: GQA shapes with profiles trained on noise, a few layers of it, so that a large model takes no longer.

use std::{error::Error, mem, sync::Arc};

use kvasir_codec::{ChunkEncoder, ChunkInput, CpuEncoder, KvBuffer, Profile, authoring::CoefficientCoding};
use kvasir_train::{BasisRecipe, Recipe, TrainingContext, train};
use kvasir_types::{
    ChainLink, KvDtype, KvLayout, LEVELS_MAX, LayerKv, Level, Loss, ModelSpec, Pairing, Reuse, Rope,
};

use crate::common::{Noise, contexts, round_to};

/// Layers that a direct profile is trained on: those of a scope.
const TRAINED_LAYERS: usize = 4;
/// Contexts of a training, and their tokens: tables and means are good for noise after that.
const TRAINING: (u64, usize) = (4, 256);

/// A shape to time.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) profile: Arc<Profile>,
    /// The level at which most coefficients enter: those beneath hold next to nothing.
    pub(crate) base: Level,
}

/// A model whose layers are as in all Llama-3, or tiny.
fn spec(name: &'static str, layers: usize, small: bool) -> (&'static str, ModelSpec) {
    let (name, layers, kv_heads, head_dim) = if small { ("tiny", 8, 2, 16) } else { (name, layers, 8, 128) };
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads, head_dim }, rope: Some(0) };
    let spec = ModelSpec {
        weights: format!("synthetic/{name}"),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::Bf16,
        ropes: vec![Rope::plain(Pairing::Half, head_dim as usize, 500_000.0)],
        layers: vec![layer; layers],
        thinning: None,
        reuse: Reuse::Prefix,
    };
    (name, spec)
}

/// A value of the noise. What profiles are trained on and what is encoded must be alike: else streams are longer than any real
/// one, or raw, and other kernels run.
pub(crate) fn value(noise: &mut Noise) -> f32 {
    2.0 * noise.normal()
}

fn noise(spec: &ModelSpec, tokens: usize, seed: u64) -> KvBuffer {
    let (mut kv, mut noise) = (KvBuffer::new(spec, tokens), Noise::new(seed));
    kv.as_mut_slice().iter_mut().for_each(|x| *x = value(&mut noise));
    round_to(spec.kv_dtype, &mut kv);
    kv
}

/// A profile of a model whose first layers it is trained on; the scopes of the others are copies.
fn trained(spec: &ModelSpec, recipe: &Recipe) -> Result<Profile, Box<dyn Error>> {
    let layers = spec.layers.len().min(TRAINED_LAYERS);
    let few = ModelSpec { layers: spec.layers[..layers].to_vec(), ..spec.clone() };
    let (count, tokens) = TRAINING;
    let context = |seed| TrainingContext {
        first_position: 0,
        tokens: Noise::new(seed).tokens(tokens),
        kv: noise(&few, tokens, 50 + seed),
    };
    let contexts: Vec<_> = (0..count).map(context).collect();
    let mut parts = train(&few, &contexts, recipe, 0.01, &mut |_, _| {})?.parts();
    let scopes = mem::take(&mut parts.scopes);
    for first in (0..spec.layers.len()).step_by(layers) {
        let mut copies = scopes.clone();
        let members = copies.iter_mut().flat_map(|scope| &mut scope.members);
        members.for_each(|member| member.layer += first);
        parts.scopes.extend(copies);
    }
    parts.model_id = spec.model_id();
    Ok(Profile::assemble(parts)?)
}

fn base_level(profile: &Profile) -> Level {
    let (parts, mut entering) = (profile.parts(), [0; LEVELS_MAX]);
    let entries = parts.scopes.iter().flat_map(|scope| &scope.coding).map(|coding| coding.entry);
    for entry in entries.filter(|entry| *entry != CoefficientCoding::NEVER) {
        entering[usize::from(entry.max(0).cast_unsigned())] += 1;
    }
    let levels = 0..profile.lossy_levels();
    Level(levels.max_by_key(|level| entering[*level]).unwrap_or(0) as u8)
}

impl Shape {
    fn new(name: &'static str, spec: ModelSpec, profile: Profile) -> Self {
        let base = base_level(&profile);
        Self { name, spec: Arc::new(spec), profile: Arc::new(profile), base }
    }

    /// With a direct profile, or one with an exact level on top.
    pub(crate) fn trained(
        name: &'static str,
        layers: usize,
        recipe: &Recipe,
        small: bool,
    ) -> Result<Self, Box<dyn Error>> {
        let (name, spec) = spec(name, layers, small);
        let profile = trained(&spec, recipe)?;
        Ok(Self::new(name, spec, profile))
    }

    /// With one basis per `layers` layers, K and V together. Trained on all layers, and on more tokens than ranks.
    pub(crate) fn basis(
        (name, layers, rank): (&'static str, usize, usize),
        tokens: usize,
        small: bool,
    ) -> Result<Self, Box<dyn Error>> {
        let recipe = BasisRecipe {
            rank_max: Some(rank),
            scope_layers: Some(layers),
            joint: true,
            token_factors: [0; 2],
            exact_tokens: Some(0),
            ..BasisRecipe::default()
        };
        let (_, spec) = spec(name, 32, small);
        let contexts = contexts(&spec, rank.div_ceil(tokens) + 1, tokens);
        let profile = train(&spec, &contexts, &Recipe::Basis(recipe), 0.01, &mut |_, _| {})?;
        Ok(Self::new(name, spec, profile))
    }

    /// A chunk with all levels, by the CPU: no kernel encodes the exact one.
    pub(crate) fn encode_on_cpu(&self, tokens: usize) -> Result<Vec<u8>, Box<dyn Error>> {
        let encoder = CpuEncoder::new(Arc::clone(&self.spec), Arc::clone(&self.profile))?;
        let input = ChunkInput {
            tokens: &Noise::new(1).tokens(tokens),
            preceding_token: None,
            first_position: 0,
            link: ChainLink::first([9; 32].into()),
            beneath: Loss::NONE,
            kv: &noise(&self.spec, tokens, 2),
        };
        Ok(encoder.encode(&input)?)
    }
}
