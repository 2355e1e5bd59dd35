//! Models and caches to time: GQA shapes with profiles trained on synthetic KV.

use kvasir_codec::Profile;
use kvasir_train::{BasisRecipe, Recipe, train};
use kvasir_types::{KvDtype, KvLayout, LayerKv, ModelSpec, Pairing, Reuse, Rope};

use crate::common::contexts;

/// A shape to time.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) spec: ModelSpec,
    pub(crate) profile: Profile,
    /// Tokens per chunk.
    pub(crate) tokens: Vec<usize>,
    /// Chunks in one launch.
    pub(crate) chunks: Vec<usize>,
}

fn spec(name: &str, layers: usize, kv_heads: u32, head_dim: u32, base: f64) -> ModelSpec {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads, head_dim }, rope: Some(0) };
    ModelSpec {
        weights: format!("synthetic/{name}"),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::Bf16,
        ropes: vec![Rope::plain(Pairing::Half, head_dim as usize, base)],
        layers: vec![layer; layers],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

fn shape(name: &'static str, spec: ModelSpec, tokens: &[usize], chunks: &[usize]) -> Shape {
    // A few tokens suffice: only rates are needed from the profile, and its tables have symbols of the usual
    // entropy anyway.
    let profile =
        train(&spec, &contexts(&spec, 4, 256), &Recipe::Direct, 0.01, &mut |_, _| {}).expect("it trains");
    Shape { name, spec, profile, tokens: tokens.to_vec(), chunks: chunks.to_vec() }
}

/// The shapes of the targets.
pub(crate) fn real() -> Vec<Shape> {
    let real = |name, weights, layers, base| {
        shape(name, spec(weights, layers, 8, 128, base), &[256, 1_536], &[1, 4, 16])
    };
    vec![
        real("Llama-3-8B", "llama-3-8b", 32, 500_000.0),
        real("Mistral-7B", "mistral-7b", 32, 1_000_000.0),
        real("Llama-3-70B", "llama-3-70b", 80, 500_000.0),
    ]
}

/// A shape with one basis per `layers` layers, K and V together. Training takes longer with more tokens than
/// ranks.
fn basis(name: &'static str, spec: ModelSpec, layers: usize, rank: usize, tokens: usize) -> Shape {
    let recipe = BasisRecipe {
        rank_max: Some(rank),
        scope_layers: Some(layers),
        joint: true,
        token_factors: [0; 2],
        exact_tokens: Some(0),
        ..BasisRecipe::default()
    };
    let contexts = contexts(&spec, rank.div_ceil(tokens) + 1, tokens);
    let profile = train(&spec, &contexts, &Recipe::Basis(recipe), 0.01, &mut |_, _| {}).expect("it trains");
    Shape { name, spec, profile, tokens: vec![tokens], chunks: vec![1, 4, 16] }
}

/// Whole chunks of basis profiles, at the sizes of the targets.
pub(crate) fn bases() -> Vec<Shape> {
    let llama = || spec("llama-3-8b", 32, 8, 128, 500_000.0);
    vec![
        basis("Llama-3-8B, bases of 8 layers, r <= 2,048", llama(), 8, 2_048, 1_536),
        basis("Llama-3-8B, one basis, r <= 4,096", llama(), 32, 4_096, 1_536),
    ]
}

/// Tiny shapes, one of each kind.
pub(crate) fn small() -> Vec<Shape> {
    vec![
        shape("tiny", spec("tiny", 2, 2, 16, 10_000.0), &[70], &[1, 2]),
        basis("tiny basis", spec("tiny", 4, 2, 16, 10_000.0), 2, 32, 70),
    ]
}
