//! The timed data: four layers of a Llama-3-8B with Laplacian elements and a direct profile trained on similar data,
//! and the KV of a text under the profile that ships with kvasir-tiny, which is of the default kind.

use std::{ops::Range, sync::Arc};

use kvasir_cli::demo::TALE;
use kvasir_codec::{
    ChunkEncoder as _, ChunkInput, CpuDecoder, CpuEncoder, KvBuffer, Profile,
    authoring::{Basis, Scope},
    rans::{Coding, PieceDecoder, PiecePlan},
};
use kvasir_container::Head;
use kvasir_engine::{Model, TINY_PROFILE};
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{
    ChainLink, KvDtype, KvLayout, LayerKv, Level, Loss, ModelSpec, Pairing, Rope, SPAN_TOKENS,
};

use crate::BenchError;

/// Three spans: as much as stays in the third-level cache with its output.
const TOKENS: usize = 768;
/// Tokens of each of the training contexts.
const TRAINING_TOKENS: usize = 256;

/// A chunk, and all that its coding needs.
pub(super) struct Chunk {
    /// As [`SpeedRow::profile`](super::SpeedRow::profile).
    pub(super) kind: &'static str,
    pub(super) spec: Arc<ModelSpec>,
    pub(super) profile: Arc<Profile>,
    /// Those of the profile.
    pub(super) scopes: Vec<Scope>,
    pub(super) tokens: Vec<u32>,
    pub(super) kv: KvBuffer,
    pub(super) object: Vec<u8>,
    pub(super) head: Head,
}

/// A chunk of a direct profile, and its symbols.
pub(super) struct Workload {
    pub(super) chunk: Chunk,
    /// The level that codes stages, not trits.
    pub(super) base: Level,
    /// The symbols of that level, 0–15, `[piece][coefficient][token]`.
    pub(super) symbols: Vec<Vec<u8>>,
}

/// Four layers of a Llama-3-8B.
pub(super) fn spec() -> ModelSpec {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 8, head_dim: 128 }, rope: Some(0) };
    ModelSpec {
        weights: "synthetic".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::Bf16,
        ropes: vec![Rope::plain(Pairing::Half, 128, 500_000.0)],
        layers: vec![layer; 4],
        thinning: None,
        reuse: Default::default(),
    }
}

fn context(spec: &ModelSpec, seed: u64, tokens: usize) -> TrainingContext {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f32 / (1u64 << 53) as f32 - 0.5
    };
    let mut kv = KvBuffer::new(spec, tokens);
    kv.as_mut_slice().iter_mut().for_each(|x| {
        let u = uniform();
        *x = -u.signum() * (1.0 - 2.0 * u.abs()).max(1e-6).ln();
    });
    TrainingContext { first_position: 0, tokens: (0..tokens as u32).collect(), kv }
}

impl Chunk {
    pub(super) fn new(
        kind: &'static str,
        spec: Arc<ModelSpec>,
        profile: Arc<Profile>,
        tokens: Vec<u32>,
        kv: KvBuffer,
    ) -> Result<Self, BenchError> {
        let encoder = CpuEncoder::new(Arc::clone(&spec), Arc::clone(&profile))?;
        let object = encoder.encode(&input(&tokens, &kv))?;
        let head = Head::parse(&object)?;
        let scopes = profile.parts().scopes;
        Ok(Self { kind, spec, profile, scopes, tokens, kv, object, head })
    }

    /// What a user of the model and profile that ship gets.
    pub(super) fn shipped() -> Result<Self, BenchError> {
        let model = Model::kvasir_tiny()?;
        let mut tokens = model.tokenizer().encode(TALE)?;
        tokens.truncate(TOKENS);
        let kv = KvBuffer::from_source(model.spec(), tokens.len(), &model.calculate_kv(&tokens)?);
        let profile = Arc::new(Profile::from_bytes(TINY_PROFILE)?);
        Self::new("basis", Arc::clone(model.spec()), profile, tokens, kv)
    }

    pub(super) fn elements(&self) -> usize {
        self.tokens.len() * self.spec.elements_per_token()
    }

    /// Coefficients of a scope, if it has a basis.
    pub(super) fn rank(&self) -> Option<usize> {
        self.scopes.first().filter(|scope| scope.basis != Basis::Identity).map(Scope::rank)
    }

    /// Its spans as ranges of tokens.
    pub(super) fn spans(&self) -> impl Iterator<Item = Range<usize>> {
        let tokens = self.tokens.len();
        (0..tokens).step_by(SPAN_TOKENS).map(move |start| start..tokens.min(start + SPAN_TOKENS))
    }

    pub(super) fn input(&self) -> ChunkInput<'_> {
        input(&self.tokens, &self.kv)
    }

    /// Bytes of the prefix that decodes to a level.
    pub(super) fn bytes_at(&self, level: Level) -> usize {
        self.head.level_bytes(level).unwrap_or_default() as usize
    }

    /// Bits an element of so many bytes.
    pub(super) fn bits(&self, bytes: usize) -> f64 {
        bytes as f64 * 8.0 / self.elements() as f64
    }
}

impl Workload {
    pub(super) fn new() -> Result<Self, BenchError> {
        let spec = Arc::new(spec());
        let contexts: Vec<_> = (1..4).map(|seed| context(&spec, seed, TRAINING_TOKENS)).collect();
        let profile = Arc::new(train(&spec, &contexts, &Recipe::Direct, 0.01, &mut |_, _| ())?);
        let TrainingContext { tokens, kv, .. } = context(&spec, 9, TOKENS);
        let chunk = Chunk::new("direct", spec, profile, tokens, kv)?;
        let decoder = CpuDecoder::new(Arc::clone(&chunk.spec), Arc::clone(&chunk.profile))?;
        let base = base_level(&decoder);
        let symbols = symbols(&decoder, &chunk.head, &chunk.object, base)?;
        Ok(Self { chunk, base, symbols })
    }
}

fn input<'a>(tokens: &'a [u32], kv: &'a KvBuffer) -> ChunkInput<'a> {
    ChunkInput {
        tokens,
        preceding_token: None,
        first_position: 0,
        link: ChainLink::first([0; 32].into()),
        beneath: Loss::NONE,
        kv,
    }
}

/// The level at which most coefficients enter.
fn base_level(decoder: &CpuDecoder) -> Level {
    let views: Vec<_> = (0..decoder.scope_count()).filter_map(|scope| decoder.scope_view(scope)).collect();
    let entering = |level: &usize| {
        let codings = views.iter().flat_map(|view| view.levels[*level].1);
        codings.filter(|coding| matches!(coding, Coding::Stage { .. })).count()
    };
    let levels = 0..decoder.profile().level_count().saturating_sub(1);
    Level(levels.max_by_key(entering).unwrap_or(0) as u8)
}

/// The stage symbols of a level, an escape as 15.
fn symbols(
    decoder: &CpuDecoder,
    head: &Head,
    object: &[u8],
    base: Level,
) -> Result<Vec<Vec<u8>>, BenchError> {
    let scopes: Vec<_> = (0..decoder.scope_count()).map(|scope| (scope, base)).collect();
    let mut out = Vec::new();
    for span in decoder.scope_spans(head, object, &scopes, 0..head.tokens.len())? {
        let Some(view) = decoder.scope_view(span.scope) else { continue };
        let count = span.tokens.len();
        let mut rows = vec![0i32; view.rank * count];
        for ((coefficients, codings), piece) in view.levels.iter().zip(&span.levels) {
            let mut ordered: Vec<i32> = Vec::new();
            coefficients.iter().for_each(|c| ordered.extend(&rows[c * count..(c + 1) * count]));
            let plan = PiecePlan { coefficients: codings, tokens: count };
            let bytes = piece.map_or(&[][..], |(_, bytes)| bytes);
            PieceDecoder::best().decode_piece(decoder.profile().bank(), &plan, bytes, &mut ordered)?;
            for (c, row) in coefficients.iter().zip(ordered.chunks_exact(count)) {
                rows[c * count..(c + 1) * count].copy_from_slice(row);
            }
        }
        out.push(rows.iter().map(|q| u8::try_from(q + 7).map_or(15, |s| s.min(15))).collect());
    }
    Ok(out)
}
