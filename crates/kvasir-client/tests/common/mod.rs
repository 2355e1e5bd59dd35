//! A toy model with a trained profile, and short ways to save and load with it.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod pages;
pub(crate) mod store;
pub(crate) mod warnings;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

#[allow(unused_imports, reason = "each test binary uses its own part")]
pub(crate) use kvasir_client::testing::{Fault, Server};
use kvasir_client::{
    Builder, Kvasir, Loaded, QualityFloor, Session,
    pages::HostPages,
    report::{ChunkOutcome, SaveReport},
    tuning::LoadOptions,
};
use kvasir_codec::{KvBuffer, Profile};
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{
    KvDtype, KvLayout, LayerKv, Level, ModelSpec, ObjectDigest, Pairing, Reuse, Rope, TokenRange,
};

/// Layers of the toy model: a direct profile has scopes of four, so that it decodes in two groups.
pub(crate) const LAYERS: usize = 6;

pub(crate) async fn start() -> Server {
    Server::start().await.unwrap()
}

/// Loads every level of the toy's profile, none of which is `transparent`.
pub(crate) fn builder(server: &Server) -> Builder {
    let builder = Kvasir::builder(server.url()).model(spec()).profile(profile());
    builder.quality(QualityFloor::Adaptive).namespace("test").chunk_tokens(256)
}

pub(crate) async fn connect(server: &Server) -> Kvasir {
    builder(server).connect().await.unwrap()
}

/// Saves the toy's cache of `text`.
pub(crate) async fn save(kvasir: &Kvasir, text: &[u32]) -> SaveReport {
    save_kv(kvasir, text, &kv(text)).await
}

pub(crate) async fn save_kv(kvasir: &Kvasir, text: &[u32], kv: &KvBuffer) -> SaveReport {
    let session = kvasir.session(text).without_lookup().await;
    session.save_now(kv, text.len(), |_| ()).await.unwrap()
}

/// The object of a saved chunk.
pub(crate) fn digest(saved: &SaveReport, chunk: usize) -> ObjectDigest {
    match saved.chunks[chunk].outcome {
        ChunkOutcome::Stored { object_digest, .. } => object_digest,
        other => panic!("{other:?}"),
    }
}

/// A session whose lookup was answered.
pub(crate) async fn find(kvasir: &Kvasir, text: &[u32]) -> Session {
    let session = kvasir.session(text).await;
    assert!(session.lookup_error().is_none(), "{:?}", session.lookup_error());
    session
}

/// Loads all that a session matches into dense memory.
pub(crate) async fn load(session: &Session, options: LoadOptions) -> (Loaded, KvBuffer) {
    let count = session.matched_tokens().max(1) as usize;
    let pages = HostPages::new(&spec(), count, count).unwrap();
    let loaded = session.load([pages.table()], options).unwrap().finish().await;
    (loaded, KvBuffer::from_source(&spec(), count, &*pages))
}

/// Everything at a level, as a load that nothing goes wrong with brings it.
pub(crate) async fn reference(kvasir: &Kvasir, text: &[u32], level: u8) -> KvBuffer {
    let (loaded, kv) = load(&find(kvasir, text).await, LoadOptions::at_level(Level(level))).await;
    assert_eq!(loaded.missing().first().map_or(kv.tokens() as u64, |range| range.start), kv.tokens() as u64);
    kv
}

pub(crate) fn range(start: u64, end: u64) -> TokenRange {
    TokenRange { start, end }
}

pub(crate) fn spec() -> ModelSpec {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 8 }, rope: Some(0) };
    ModelSpec {
        weights: "toy".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::F16,
        ropes: vec![Rope::plain(Pairing::Half, 8, 10_000.0)],
        layers: vec![layer; LAYERS],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

pub(crate) fn tokens(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32).map(|i| (i + seed * 10_007).wrapping_mul(2_654_435_761) >> 7 & 31).collect()
}

/// KV that depends on the token and a little on the position.
pub(crate) fn kv(tokens: &[u32]) -> KvBuffer {
    let mut buffer = KvBuffer::new(&spec(), tokens.len());
    let count = buffer.as_slice().len();
    for (i, value) in buffer.as_mut_slice().iter_mut().enumerate() {
        let token = tokens[i / 8 % tokens.len()] as f32;
        let exact =
            (token * 0.37 + (i % 8) as f32).sin() + ((i * 7919 % count) as f32 / count as f32 - 0.5) * 0.3;
        *value = half::f16::from_f32(exact).to_f32();
    }
    buffer
}

pub(crate) fn profile() -> Arc<Profile> {
    static PROFILE: OnceLock<Arc<Profile>> = OnceLock::new();
    let make = || {
        let text = tokens(1024, 99);
        let context = TrainingContext { first_position: 0, kv: kv(&text), tokens: text };
        let profile = train(&spec(), &[context], &Recipe::Direct, 0.01, &mut |_, _| ()).unwrap();
        let kl: Vec<f32> = (0..profile.level_count()).map(|level| 0.1 / 3f32.powi(level as i32)).collect();
        Arc::new(profile.with_predicted_kl(&kl).unwrap())
    };
    Arc::clone(PROFILE.get_or_init(make))
}

/// Another profile of the same model.
pub(crate) fn other_profile() -> Arc<Profile> {
    let text = tokens(1024, 98);
    let context = TrainingContext { first_position: 0, kv: kv(&text), tokens: text };
    Arc::new(train(&spec(), &[context], &Recipe::Exact, 0.01, &mut |_, _| ()).unwrap())
}

/// Profiles of the client's model at the service.
pub(crate) async fn profiles(kvasir: &Kvasir) -> usize {
    kvasir.rest().list_profiles(&kvasir.model_id()).await.unwrap().profiles.len()
}

/// The profile with another reference power for errors; with 0 its chunks do not record any.
pub(crate) fn with_power(profile: &Profile, power: f32) -> Arc<Profile> {
    let mut parts = profile.parts();
    parts.scopes.iter_mut().flat_map(|scope| &mut scope.members).for_each(|member| member.power = power);
    Arc::new(Profile::assemble(parts).unwrap())
}

pub(crate) async fn five_minutes_later() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(301)).await;
    tokio::time::resume();
}
