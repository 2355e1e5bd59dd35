//! Loads over a shaped link into the pages of ranks on devices: what they hold is what pages of the host hold, bit for bit,
//! where the driver refuses calls, and whenever a load is dropped. As in `device.rs`, the driver is the emulator, or a real one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvasir_client::{
    Kvasir, Loaded, QualityFloor,
    pages::{BlockTable, HostPages, Shard},
    tuning::LoadOptions,
};
use kvasir_codec::{KvBuffer, Profile};
use kvasir_cuda::CudaDevice;
use kvasir_replay::link::{BandwidthSeries, LinkOptions, ShapedLink};
use kvasir_store::StoreConfig;
use kvasir_tests::service::Service;
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{KvDtype, KvLayout, LayerKv, Level, ModelSpec, Pairing, Reuse, Rope};
use tempfile::TempDir;

use crate::device::{Rank, device};

/// A chunk and a part of another.
const TOKENS: usize = 300;
const HEADS: usize = 4;
const HEAD_DIM: usize = 16;
/// A chunk of 16-bit values takes 10 ms, so that the parts of a load arrive one after the other.
const LINK_MBPS: f64 = 200.0;
/// One call in so many is refused, each in a load of its own, which makes a few hundred. `kvasir-cuda`'s tests refuse each one
/// of a decode, a write and a read.
const REFUSED_STEP: usize = 11;
/// Within which one of the loads that are dropped has ended.
const PATIENCE: Duration = Duration::from_secs(120);

fn spec() -> ModelSpec {
    let layout = KvLayout::Gqa { kv_heads: HEADS as u32, head_dim: HEAD_DIM as u32 };
    ModelSpec {
        weights: "toy".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::Bf16,
        ropes: vec![Rope::plain(Pairing::Half, HEAD_DIM, 10_000.0)],
        layers: vec![LayerKv { layout, rope: Some(0) }; 4],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

fn tokens(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32).map(|i| (i + seed * 10_007).wrapping_mul(2_654_435_761) >> 7 & 31).collect()
}

/// Rows that depend on the token and a little on the position, in the model's type.
fn cache(tokens: &[u32]) -> KvBuffer {
    let mut kv = KvBuffer::new(&spec(), tokens.len());
    for (i, value) in kv.as_mut_slice().iter_mut().enumerate() {
        let (token, element) = (tokens[i / HEAD_DIM % tokens.len()] as f32, (i % HEAD_DIM) as f32);
        let noise = (i * 7_919 % 1_000) as f32 / 3_000.0;
        *value = half::bf16::from_f32((token * 0.37 + element).sin() + noise).to_f32();
    }
    kv
}

fn profile(recipe: &Recipe) -> Arc<Profile> {
    let text = tokens(1_024, 99);
    let context = TrainingContext { first_position: 0, kv: cache(&text), tokens: text };
    Arc::new(train(&spec(), &[context], recipe, 0.01, &mut |_, _| ()).expect("trains"))
}

/// A service behind a link, and a client that has stored a text there.
struct Stored {
    kvasir: Kvasir,
    text: Vec<u32>,
    _link: ShapedLink,
    _service: Service,
    _directory: TempDir,
}

impl Stored {
    async fn new(profile: &Arc<Profile>) -> Self {
        let directory = TempDir::new().expect("a directory");
        let url = format!("file://{}/store", directory.path().display()).parse().expect("a url");
        let service = Service::start(StoreConfig::new(url), &directory.path().join("cache")).await;
        let down = BandwidthSeries::constant(LINK_MBPS).expect("a rate");
        let link = ShapedLink::start(service.address, LinkOptions::down(down)).await.expect("a port");
        let builder = Kvasir::builder(format!("http://{}", link.address())).model(spec());
        let builder = builder.profile(Arc::clone(profile)).quality(QualityFloor::Adaptive);
        let kvasir = builder.namespace("ranks").chunk_tokens(256).connect().await.expect("it answers");
        let text = tokens(TOKENS, 1);
        let session = kvasir.session(&text[..]).without_lookup().await;
        session.save_now(&cache(&text), text.len(), |_| ()).await.expect("saves");
        Self { kvasir, text, _link: link, _service: service, _directory: directory }
    }

    async fn load(&self, tables: Vec<BlockTable>, level: Level) -> Loaded {
        let session = self.kvasir.session(&self.text[..]).await;
        session.load(tables, LoadOptions::at_level(level)).expect("begins").finish().await
    }

    /// What a level holds, by the CPU.
    async fn on_host(&self, level: Level) -> Arc<HostPages> {
        let host = HostPages::new(&spec(), 16, TOKENS).expect("fits");
        assert_eq!(self.load(vec![host.table()], level).await.loaded_tokens(), TOKENS as u64);
        host
    }
}

/// A head for each rank, and two ranks on each device.
#[tokio::test]
async fn four_ranks_on_two_devices_hold_what_the_host_does() {
    let kernels = TempDir::new().expect("a directory");
    let name = "device_ranks::four_ranks_on_two_devices_hold_what_the_host_does";
    let Some(first) = device(name, &kernels) else { return };
    // A machine with a GPU may have no other.
    let second = CudaDevice::new(1, kernels.path().to_owned()).map_or_else(|_| Arc::clone(&first), Arc::new);
    let spec = Arc::new(spec());
    for recipe in [Recipe::Direct, Recipe::DirectExact, Recipe::Exact] {
        let profile = profile(&recipe);
        let stored = Stored::new(&profile).await;
        for level in [Level::BASE, profile.top_level()] {
            let host = stored.on_host(level).await;
            let ranks = [(0, &first), (1, &first), (2, &second), (3, &second)]
                .map(|(rank, device)| Rank::new(&spec, device, Shard::tensor_parallel(rank, 4, HEADS)));
            let loaded = stored.load(ranks.iter().map(Rank::table).collect(), level).await;
            let used = &loaded.report().expect("it loaded").device;
            assert_eq!(loaded.loaded_tokens(), TOKENS as u64, "{recipe:?}, {level:?}: {used:?}");
            assert!(used.parts >= 8 && used.refused_parts + used.slow_parts == 0, "{used:?}");
            assert!(!used.times.copies.is_zero() && !used.times.kernels.is_zero(), "{used:?}");
            for (index, rank) in ranks.iter().enumerate() {
                assert!(rank.holds(&host, TOKENS), "{recipe:?}, {level:?}: rank {index} has other rows");
            }
        }
    }
}

/// Every eleventh call is refused, once, from the upload of the profile on: the CPU decodes what it was for.
#[tokio::test]
async fn a_driver_that_refuses_a_call_changes_no_row() {
    let kernels = TempDir::new().expect("a directory");
    let name = "device_ranks::a_driver_that_refuses_a_call_changes_no_row";
    let Some(first) = device(name, &kernels) else { return };
    if first.name().expect("has one") != "Kvasir emulator" {
        return; // a GPU refuses nothing on demand
    }
    let open = |ordinal: usize| CudaDevice::new(ordinal, kernels.path().to_owned());
    let stored = Stored::new(&profile(&Recipe::Direct)).await;
    let (spec, host) = (Arc::new(spec()), stored.on_host(Level(1)).await);
    let mut refused = 0;
    for call in (0..).step_by(REFUSED_STEP) {
        let rank = Rank::new(&spec, &first, Shard::ALL);
        // The emulator's way to be told, and to say whether it has refused.
        assert!(open(1_000 + call).is_err());
        let loaded = stored.load(vec![rank.table()], Level(1)).await;
        if open(999).is_err() {
            break; // the load makes fewer calls
        }
        let used = &loaded.report().expect("it loaded").device;
        assert_eq!(loaded.loaded_tokens(), TOKENS as u64, "call {call}: {used:?}");
        assert_eq!(used.refused_parts > 0, used.first_reason.is_some());
        assert!(rank.holds(&host, TOKENS), "call {call}: other rows");
        refused += used.refused_parts;
    }
    assert!(refused > 5, "{refused}");
}

/// Left after any number of turns of its task: its pages are another request's at once, and what that wrote stays.
#[tokio::test]
async fn a_load_that_is_dropped_writes_no_more() {
    let kernels = TempDir::new().expect("a directory");
    let name = "device_ranks::a_load_that_is_dropped_writes_no_more";
    let Some(first) = device(name, &kernels) else { return };
    let stored = Stored::new(&profile(&Recipe::Direct)).await;
    let (spec, host) = (Arc::new(spec()), stored.on_host(Level(1)).await);
    let ranks = [0, 1].map(|rank| Rank::new(&spec, &first, Shard::tensor_parallel(rank, 2, HEADS)));
    let tables = || ranks.iter().map(Rank::table).collect::<Vec<_>>();
    let poison = vec![0x5a; ranks[0].content().len()];
    ranks.iter().for_each(|rank| rank.reassign(&poison));
    let (mut turns, mut dropped, mut has_ended) = (0u32, 0, false);
    let begun = Instant::now();
    while !has_ended {
        assert!(begun.elapsed() < PATIENCE, "no load ends within {turns} turns");
        let session = stored.kvasir.session(&stored.text[..]).await;
        assert!(ranks.iter().all(|rank| rank.content() == poison), "written after a load was dropped");
        let mut load = session.load(tables(), LoadOptions::at_level(Level(1))).expect("begins");
        for _ in 0..turns {
            tokio::task::yield_now().await;
            let next = tokio::select! {
                biased;
                next = load.next_layers() => Some(next),
                () = std::future::ready(()) => None,
            };
            has_ended |= matches!(next, Some(None));
        }
        drop(load);
        ranks.iter().for_each(|rank| rank.reassign(&poison));
        (turns, dropped) = (turns + 1 + turns / 4, dropped + 1);
    }
    assert!(dropped > 5, "{dropped}");
    let loaded = stored.load(tables(), Level(1)).await;
    let used = &loaded.report().expect("it loaded").device;
    assert!(loaded.loaded_tokens() == TOKENS as u64 && used.refused_parts == 0, "{used:?}");
    assert!(ranks.iter().all(|rank| rank.holds(&host, TOKENS)), "after all that were dropped");
}
