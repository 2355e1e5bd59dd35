//! Synthetic models and caches for the tests: small, reproducible, shaped like the real thing.
#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part")]

use std::sync::{Arc, OnceLock};

use half::{bf16, f16};
use kvasir_codec::{
    ChunkDecoder, ChunkInput, CpuDecoder, CpuEncoder, DecodeError, KvBuffer, KvSource, Profile,
};
use kvasir_container::Head;
use kvasir_train::{BasisRecipe, Recipe, TrainingContext, train};
use kvasir_types::{
    ChainLink, KvDtype, KvLayout, LayerKv, Level, Loss, ModelSpec, Pairing, Plane, Reuse, Rope,
};

mod noise;

pub use noise::Noise;

/// Every layout there is: GQA under both pairings, a sliding window, MLA, a layer without KV.
pub fn mixed_spec(dtype: KvDtype) -> ModelSpec {
    let gqa = |kv_heads, head_dim| KvLayout::Gqa { kv_heads, head_dim };
    let layer = |layout, rope| LayerKv { layout, rope };
    ModelSpec {
        weights: "synthetic/mixed".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: dtype,
        ropes: vec![
            Rope::plain(Pairing::Half, 8, 10_000.0),
            Rope { offset: 2, attention_factor: 1.25, ..Rope::plain(Pairing::Interleaved, 4, 500.0) },
        ],
        layers: vec![
            layer(gqa(2, 8), Some(0)),
            layer(KvLayout::SlidingWindow { kv_heads: 1, head_dim: 10, window: 64 }, Some(1)),
            layer(KvLayout::None, None),
            layer(KvLayout::Mla { latent: 12, rope_dims: 8 }, Some(0)),
            layer(gqa(3, 5), None),
        ],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

/// KV that depends on the token and on few hidden directions, plus noise: what a residual stream gives.
pub fn cache(spec: &ModelSpec, tokens: &[u32], seed: u64) -> KvBuffer {
    const HIDDEN: usize = 6;
    let (mut noise, mut kv) = (Noise::new(seed), KvBuffer::new(spec, tokens.len()));
    let hidden: Vec<f32> = tokens
        .iter()
        .flat_map(|token| {
            let mut own = Noise::new(u64::from(*token) + 999);
            let state: Vec<f32> = (0..HIDDEN).map(|_| own.normal() * 1.5 + noise.normal()).collect();
            state
        })
        .collect();
    for layer in 0..spec.layers.len() {
        for plane in Plane::ALL {
            let (heads, dim) = spec.layers[layer].layout.planes()[plane as usize];
            for head in 0..heads {
                let id = ((layer * 2 + plane as usize) * 64 + head) as u64;
                let mut weights = Noise::new(7_000 + id);
                let mixing: Vec<f32> = (0..HIDDEN * dim).map(|_| weights.normal()).collect();
                let rows = kv.rows_mut(layer, plane, head);
                for (token, row) in rows.chunks_exact_mut(dim).enumerate() {
                    for (element, value) in row.iter_mut().enumerate() {
                        let mixed: f32 =
                            (0..HIDDEN).map(|h| mixing[h * dim + element] * hidden[token * HIDDEN + h]).sum();
                        *value = mixed + 0.3 * noise.normal() + element as f32 * 0.2;
                    }
                }
            }
        }
    }
    kv
}

/// As [`cache`], with values of the model's own type. A profile with an exact level stores no others.
pub fn typed(spec: &ModelSpec, tokens: &[u32], seed: u64) -> KvBuffer {
    let mut kv = cache(spec, tokens, seed);
    round_to(spec.kv_dtype, &mut kv);
    kv
}

/// Rounds every value to a type; e4m3 holds those below 464.
pub fn round_to(dtype: KvDtype, kv: &mut KvBuffer) {
    kv.as_mut_slice().iter_mut().for_each(|x| {
        *x = match dtype {
            KvDtype::Bf16 => bf16::from_f32(*x).to_f32(),
            KvDtype::F16 => f16::from_f32(*x).to_f32(),
            KvDtype::Fp8E4m3 => e4m3(*x),
            KvDtype::F32 | KvDtype::Int8 => *x,
        }
    });
}

/// The nearest of a grid of 8 steps a binade, which e4m3 holds.
fn e4m3(value: f32) -> f32 {
    let step = 2f32.powi(value.abs().max(2f32.powi(-6)).log2().floor() as i32 - 3);
    (value / step).round_ties_even() * step
}

pub fn contexts(spec: &ModelSpec, count: usize, tokens: usize) -> Vec<TrainingContext> {
    (0..count)
        .map(|i| {
            let tokens = Noise::new(i as u64).tokens(tokens);
            let kv = cache(spec, &tokens, 50 + i as u64);
            TrainingContext { first_position: 0, tokens, kv }
        })
        .collect()
}

pub fn recipes() -> Vec<Recipe> {
    let small = BasisRecipe { token_factors: [8, 4], exact_tokens: Some(4), ..BasisRecipe::default() };
    let truncated = BasisRecipe {
        rank_max: Some(20),
        scope_layers: Some(2),
        joint: false,
        token_factors: [4, 0],
        ..BasisRecipe::default()
    };
    let packed = BasisRecipe {
        token_factors: [6, 3],
        table_bits: 5,
        budget_bytes: Some(32_000),
        ..BasisRecipe::default()
    };
    let basis = [small, truncated, packed].map(Recipe::Basis);
    [Recipe::Direct, Recipe::CacheGen].into_iter().chain(basis).collect()
}

/// A model, a profile and its coder.
pub struct Setup {
    pub spec: Arc<ModelSpec>,
    pub profile: Arc<Profile>,
    pub encoder: CpuEncoder,
    pub decoder: CpuDecoder,
}

impl Setup {
    pub fn new(spec: ModelSpec, recipe: &Recipe) -> Self {
        let data = contexts(&spec, 6, 400);
        let profile = train(&spec, &data, recipe, 0.01, &mut |_, _| {}).expect("trains");
        Self::of(spec, profile)
    }

    pub fn of(spec: ModelSpec, profile: Profile) -> Self {
        let (spec, profile) = (Arc::new(spec), Arc::new(profile));
        let encoder = CpuEncoder::new(Arc::clone(&spec), Arc::clone(&profile)).expect("fits");
        let decoder = CpuDecoder::new(Arc::clone(&spec), Arc::clone(&profile)).expect("fits");
        Self { spec, profile, encoder, decoder }
    }

    pub fn encode(&self, tokens: &[u32], first_position: u64, kv: &dyn KvSource) -> Vec<u8> {
        let preceding = (first_position > 0).then_some(3);
        let input = ChunkInput {
            tokens,
            preceding_token: preceding,
            first_position,
            link: ChainLink::first([9; 32].into()),
            beneath: Loss::NONE,
            kv,
        };
        kvasir_codec::ChunkEncoder::encode(&self.encoder, &input).expect("encodes")
    }

    pub fn decode(&self, object: &[u8], level: usize) -> Result<KvBuffer, DecodeError> {
        let head = Head::parse(object)?;
        let tokens = head.header.token_count as usize;
        let mut kv = KvBuffer::new(&self.spec, tokens);
        self.decoder.decode(&head, object, Level(level as u8), 0..tokens, &mut kv)?;
        Ok(kv)
    }
}

/// One trained setup per recipe over the mixed model, made once. Its profiles say no powers: encoders on the device do not
/// measure, and their objects are compared with the CPU's byte for byte.
pub fn setups() -> &'static [Setup] {
    static SETUPS: OnceLock<Vec<Setup>> = OnceLock::new();
    let unmeasured = |recipe: &Recipe| {
        let setup = Setup::new(mixed_spec(KvDtype::Bf16), recipe);
        let mut parts = setup.profile.parts();
        parts.scopes.iter_mut().flat_map(|scope| &mut scope.members).for_each(|member| member.power = 0.0);
        Setup::of((*setup.spec).clone(), Profile::assemble(parts).expect("as it was"))
    };
    SETUPS.get_or_init(|| recipes().iter().map(unmeasured).collect())
}

/// A bf16 model, and a profile with an exact level above others.
pub fn exact_setup() -> Setup {
    exact_setup_of(mixed_spec(KvDtype::Bf16), &Recipe::DirectExact)
}

/// A model, and a profile of a recipe with an exact level.
pub fn exact_setup_of(spec: ModelSpec, recipe: &Recipe) -> Setup {
    let mut contexts = contexts(&spec, 6, 400);
    contexts.iter_mut().for_each(|context| round_to(spec.kv_dtype, &mut context.kv));
    let profile = train(&spec, &contexts, recipe, 0.01, &mut |_, _| ()).expect("trains");
    Setup::of(spec, profile)
}

/// Power of the difference over the power of `truth`.
pub fn error(truth: &KvBuffer, other: &KvBuffer) -> f64 {
    let power = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let difference = power(&mut truth.as_slice().iter().zip(other.as_slice()).map(|(x, y)| x - y));
    difference / power(&mut truth.as_slice().iter().copied()).max(1e-300)
}
