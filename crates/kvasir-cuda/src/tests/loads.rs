//! A client's loads into pages on the device: what they hold afterwards is what a load into host pages brings, whatever
//! becomes of the device.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use kvasir_client::{
    Kvasir, Loaded, QualityFloor,
    pages::{BlockTable, HostPages, Shard},
    testing::{Server, TestedPages, check_page_store},
    tuning::LoadOptions,
};
use kvasir_kernels::Dtype;
use kvasir_types::{KvDtype, KvLayout, Level, ModelSpec, Plane};

use super::{
    common::{Noise, Setup, exact_setup, mixed_spec, setups, typed},
    emulated::EmulatedDevice,
    engine_cache::{Cache, Layout, POISON},
};
use crate::{
    CudaError, Device, DeviceMemory, DevicePages,
    limits::{DECODES_MAX, RESIDENT_PROFILES_MAX},
};

/// A rank's pages, in an engine's layout.
pub(super) struct Pages {
    spec: Arc<ModelSpec>,
    pub(super) device: Arc<EmulatedDevice>,
    cache: Cache,
    pub(super) store: Arc<DevicePages<EmulatedDevice>>,
}

impl Pages {
    pub(super) fn new(
        spec: &ModelSpec,
        how: (Layout, u32, Dtype),
        shard: Shard,
        half: Option<usize>,
    ) -> Self {
        let (spec, device) = (Arc::new(spec.clone()), Arc::new(EmulatedDevice::default()));
        let layers = shard.layers.start..shard.layers.end.min(spec.layers.len());
        let mut cache = Cache::new(&spec, &device, how, layers, half);
        cache.first_slot = 0;
        cache.pages.layers.iter_mut().flatten().flatten().for_each(|plane| plane.scale = 1.0);
        // SAFETY: the planes are those of `cache`, which lives as long.
        let store =
            unsafe { DevicePages::new(Arc::clone(&device), Arc::clone(&spec), shard, cache.pages.clone()) };
        Self { store: store.expect("the planes are the shard's"), spec, device, cache }
    }

    pub(super) fn indices(&self) -> Vec<u32> {
        self.cache.table.iter().map(|page| page.cast_unsigned()).collect()
    }

    pub(super) fn table(&self) -> BlockTable {
        self.store.table(&self.indices()).expect("they exist")
    }

    pub(super) fn content(&self) -> Vec<u8> {
        self.cache.content(&self.device)
    }

    /// Overwrites the cache from its first byte on.
    pub(super) fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.cache.bytes);
        // SAFETY: inside the cache.
        unsafe { self.device.write(bytes, &[(self.cache.memory.address(), 0..bytes.len())]) }
            .expect("writes");
    }

    /// The bytes of a row; layer and head are the model's. `None` if another rank holds it.
    fn row(&self, layer: usize, plane: Plane, head: usize, token: usize) -> Option<Vec<u8>> {
        let (_, elements) = self.spec.layers[layer].layout.planes()[plane as usize];
        let mut row = Vec::new();
        for element in 0..elements {
            let at = self.cache.place(layer, plane as usize, head, token, element)?;
            row.extend_from_slice(&self.cache.memory.peek(at, self.cache.dtype.bytes()));
        }
        Some(row)
    }

    /// Asserts that the pages hold what `host` does of these tokens, and nothing anywhere else.
    fn holds(&self, host: &HostPages, tokens: usize, what: &str) {
        let mut expected = vec![POISON; self.cache.bytes];
        let size = self.cache.dtype.bytes();
        for (layer, kv) in self.spec.layers.iter().enumerate() {
            for plane in Plane::ALL {
                let (heads, elements) = kv.layout.planes()[plane as usize];
                for (head, token) in (0..heads).flat_map(|head| (0..tokens).map(move |token| (head, token))) {
                    let row = host.row(layer, plane, head, token);
                    for element in 0..elements {
                        let place = self.cache.place(layer, plane as usize, head, token, element);
                        let Some(at) = place else { continue };
                        expected[at..at + size].copy_from_slice(&row[element * size..][..size]);
                    }
                }
            }
        }
        let found = self.cache.content(&self.device);
        let different = expected.iter().zip(&found).position(|(a, b)| a != b);
        assert_eq!(different, None, "{what}: a byte of the cache");
    }

    /// Asserts that the rows are those of `host` but for a rounding to bf16, relative to the largest value of the layer.
    fn is_near(&self, host: &HostPages, tokens: usize, what: &str) {
        let values = |row: &[u8]| -> Vec<f32> {
            row.as_chunks().0.iter().map(|pair| half::bf16::from_ne_bytes(*pair).to_f32()).collect()
        };
        for (layer, kv) in self.spec.layers.iter().enumerate() {
            for plane in Plane::ALL {
                let (heads, _) = kv.layout.planes()[plane as usize];
                for (head, token) in (0..heads).flat_map(|head| (0..tokens).map(move |token| (head, token))) {
                    let Some(ours) = self.row(layer, plane, head, token) else { continue };
                    let theirs = values(&host.row(layer, plane, head, token));
                    let scale = theirs.iter().fold(1.0f32, |most, value| most.max(value.abs()));
                    for (a, b) in values(&ours).iter().zip(&theirs) {
                        let at = || format!("{what}: layer {layer}, {plane:?}, head {head}, token {token}");
                        assert!((a - b).abs() <= scale / 128.0, "{}: {a} for {b}", at());
                    }
                }
            }
        }
    }
}

/// What a device does not decode comes row by row: any cut of any plane, into every layout and type.
#[test]
fn rows_of_the_cpu_go_where_the_devices_would() {
    struct Tested(Pages);
    impl TestedPages for Tested {
        fn table(&self) -> BlockTable {
            self.0.table()
        }
        fn row(&self, layer: usize, plane: Plane, head: usize, token: usize) -> Vec<u8> {
            self.0.row(layer, plane, head, token).expect("all is there")
        }
        fn reassign(&self) {
            self.0.store.reassign(&self.0.indices());
        }
    }
    let packs = |spec: &mut ModelSpec| {
        spec.layers[0].layout = KvLayout::Gqa { kv_heads: 2, head_dim: 32 };
        spec.layers[1].layout = KvLayout::SlidingWindow { kv_heads: 1, head_dim: 16, window: 64 };
    };
    for (layout, kv_dtype, dtype) in [
        (Layout::Flash, KvDtype::Bf16, Dtype::Bf16),
        (Layout::Hnd, KvDtype::F16, Dtype::F16),
        (Layout::Joined, KvDtype::F32, Dtype::F32),
        (Layout::Packed, KvDtype::Bf16, Dtype::Bf16),
        (Layout::Packed, KvDtype::Fp8E4m3, Dtype::Fp8E4m3),
    ] {
        let mut spec = ModelSpec { ropes: Vec::new(), ..mixed_spec(kv_dtype) };
        spec.layers.iter_mut().for_each(|layer| layer.rope = None);
        if layout == Layout::Packed {
            packs(&mut spec);
        }
        let made = |spec: &ModelSpec, _| Tested(Pages::new(spec, (layout, 16, dtype), Shard::ALL, None));
        assert_eq!(check_page_store(&spec, made), Ok(()), "{layout:?} {dtype:?}");
    }
}

pub(super) async fn connect(server: &Server, setup: &Setup, namespace: &str) -> Kvasir {
    let builder = Kvasir::builder(server.url()).model((*setup.spec).clone());
    let builder = builder.profile(Arc::clone(&setup.profile)).namespace(namespace).chunk_tokens(256);
    // Its profiles say no powers, so that nothing is measured.
    let builder = builder.quality(QualityFloor::Adaptive);
    builder.connect().await.expect("the server answers")
}

/// A service with the cache of a text of three chunks.
pub(super) async fn stored(setup: &Setup) -> (Server, Kvasir, Vec<u32>) {
    let server = Server::start().await.expect("a port");
    let kvasir = connect(&server, setup, "device").await;
    let text = Noise::new(8).tokens(LOADED);
    let kv = typed(&setup.spec, &text, 5);
    let session = kvasir.session(&text[..]).without_lookup().await;
    session.save_now(&kv, text.len(), |_| ()).await.expect("saves");
    (server, kvasir, text)
}

pub(super) async fn load(kvasir: &Kvasir, text: &[u32], tables: Vec<BlockTable>, level: u8) -> Loaded {
    let session = kvasir.session(text).await;
    session.load(tables, LoadOptions::at_level(Level(level))).expect("begins").finish().await
}

/// The tokens of [`stored`]'s text. [`load`] brings the last one too, which an engine would compute.
pub(super) const LOADED: usize = 700;

#[tokio::test]
async fn a_load_decodes_on_the_device_what_the_cpu_would() {
    for (index, setup) in setups()[..2].iter().enumerate() {
        let (_server, kvasir, text) = stored(setup).await;
        for (layout, block_tokens) in [(Layout::Flash, 32), (Layout::Hnd, 64), (Layout::Contiguous, 32)] {
            for level in 0..setup.profile.level_count() as u8 {
                let host = HostPages::new(&setup.spec, 16, text.len()).expect("fits");
                let on_host = load(&kvasir, &text, vec![host.table()], level).await;
                let pages = Pages::new(&setup.spec, (layout, block_tokens, Dtype::Bf16), Shard::ALL, None);
                let on_device = load(&kvasir, &text, vec![pages.table()], level).await;
                assert_eq!(on_device.missing(), on_host.missing());
                assert_eq!(on_device.loaded_tokens(), LOADED as u64);
                let used = &on_device.report().expect("it loaded").device;
                assert!(used.parts >= 3 && used.refused_parts == 0, "{used:?}");
                assert_eq!(on_host.report().expect("it loaded").device.parts, 0);
                pages.holds(&host, text.len(), &format!("profile {index}, {layout:?}, level {level}"));
            }
        }
    }
}

#[tokio::test]
async fn an_exact_level_and_those_beneath_are_decoded_on_the_device() {
    let setup = exact_setup();
    let (_server, kvasir, text) = stored(&setup).await;
    for level in 0..setup.profile.level_count() {
        let host = HostPages::new(&setup.spec, 16, text.len()).expect("fits");
        let _ = load(&kvasir, &text, vec![host.table()], level as u8).await;
        let pages = Pages::new(&setup.spec, (Layout::Hnd, 32, Dtype::Bf16), Shard::ALL, None);
        let loaded = load(&kvasir, &text, vec![pages.table()], level as u8).await;
        let used = &loaded.report().expect("it loaded").device;
        assert!(used.parts >= 3 && used.refused_parts == 0, "level {level}: {used:?}");
        assert_eq!(loaded.loaded_tokens(), LOADED as u64);
        pages.holds(&host, text.len(), &format!("level {level}"));
    }
}

/// Stages of a pipeline, two of them cut by heads; each rank has its own device and cache.
#[tokio::test]
async fn ranks_decode_their_own_parts() {
    check_ranks(&setups()[0], 1).await;
}

/// Where the raw bits of a rank's values begin, those of other ranks tell.
#[tokio::test]
async fn ranks_decode_their_own_parts_of_an_exact_level() {
    let setup = exact_setup();
    check_ranks(&setup, setup.profile.top_level().0).await;
}

async fn check_ranks(setup: &Setup, level: u8) {
    let (_server, kvasir, text) = stored(setup).await;
    let host = HostPages::new(&setup.spec, 16, text.len()).expect("fits");
    let _ = load(&kvasir, &text, vec![host.table()], level).await;
    let all = Shard::ALL.heads;
    let ranks = [
        (0..1, 0..1, Some(0)),
        (0..1, 1..2, Some(1)),
        (1..4, all, None),
        (4..5, 0..2, Some(0)),
        (4..5, 2..3, Some(1)),
    ];
    let ranks = ranks.map(|(layers, heads, half)| {
        Pages::new(&setup.spec, (Layout::Flash, 32, Dtype::Bf16), Shard { layers, heads }, half)
    });
    let tables = ranks.iter().map(Pages::table).collect();
    let loaded = load(&kvasir, &text, tables, level).await;
    assert_eq!(loaded.loaded_tokens(), LOADED as u64);
    let used = &loaded.report().expect("it loaded").device;
    assert!(used.parts >= 15 && used.refused_parts == 0, "{used:?}");
    for (rank, pages) in ranks.iter().enumerate() {
        pages.holds(&host, text.len(), &format!("rank {rank}"));
    }
}

/// Sums of a basis are in another order on the device: values may round to a neighbour, and no more. Whole, and by heads of a
/// layer whose scope other ranks share.
#[tokio::test]
async fn a_basis_decodes_to_within_a_rounding() {
    let all = Shard::ALL.heads;
    let ranks = [
        (0..5, all, None),
        (0..1, 0..1, Some(0)),
        (0..1, 1..2, Some(1)),
        (4..5, 0..2, Some(0)),
        (4..5, 2..3, Some(1)),
    ];
    for (index, setup) in setups().iter().enumerate().skip(2) {
        let (_server, kvasir, text) = stored(setup).await;
        let host = HostPages::new(&setup.spec, 16, text.len()).expect("fits");
        let _ = load(&kvasir, &text, vec![host.table()], 1).await;
        for (layers, heads, half) in ranks.clone() {
            let shard = Shard { layers, heads };
            let what = format!("profile {index}, {shard:?}");
            let pages = Pages::new(&setup.spec, (Layout::Flash, 32, Dtype::Bf16), shard, half);
            let loaded = load(&kvasir, &text, vec![pages.table()], 1).await;
            let used = &loaded.report().expect("it loaded").device;
            assert!(used.parts > 0 && used.refused_parts == 0, "{what}: {used:?}");
            pages.is_near(&host, text.len(), &what);
        }
    }
}

/// Whatever call the driver refuses, once: the CPU decodes what it was for, the load says so, and the pages hold the same.
#[tokio::test]
async fn a_device_that_refuses_any_call_costs_time_and_nothing_else() {
    let setup = &setups()[0];
    let (_server, kvasir, text) = stored(setup).await;
    let host = HostPages::new(&setup.spec, 16, text.len()).expect("fits");
    let _ = load(&kvasir, &text, vec![host.table()], 1).await;
    let pages = || Pages::new(&setup.spec, (Layout::Hnd, 32, Dtype::Bf16), Shard::ALL, None);
    let clean = pages();
    let _ = load(&kvasir, &text, vec![clean.table()], 1).await;
    let (calls, mut refused) = (clean.device.calls(), 0);
    // Every call up to the end of the first part's, then one of each kind that later parts make.
    for n in (0..calls).filter(|n| *n < calls / 3 || n % 7 == 0) {
        let pages = pages();
        // The upload of the cache itself was a call.
        pages.device.refuse(n);
        let loaded = load(&kvasir, &text, vec![pages.table()], 1).await;
        assert_eq!(loaded.loaded_tokens(), LOADED as u64, "call {n}");
        let used = &loaded.report().expect("it loaded").device;
        assert_eq!(used.refused_parts > 0, used.first_reason.is_some());
        refused += used.refused_parts;
        // Parts that were decoded together made fewer calls.
        pages.device.refuse(usize::MAX / 2);
        pages.holds(&host, text.len(), &format!("call {n} is refused"));
    }
    assert!(refused > 10, "{refused} of {calls}");
}

/// A device that is gone is not asked for every part.
#[tokio::test]
async fn after_three_faults_the_cpu_decodes_the_rest() {
    let setup = &setups()[0];
    let (_server, kvasir, text) = stored(setup).await;
    let host = HostPages::new(&setup.spec, 16, text.len()).expect("fits");
    let _ = load(&kvasir, &text, vec![host.table()], 1).await;
    let pages = Pages::new(&setup.spec, (Layout::Packed, 16, Dtype::Bf16), Shard::ALL, None);
    pages.device.fail_at(0);
    // 24 pages of 16 tokens hold a part of the text.
    let part = &text[..380];
    let loaded = load(&kvasir, part, vec![pages.table()], 1).await;
    let used = &loaded.report().expect("it loaded").device;
    assert_eq!((used.parts, loaded.report().expect("it loaded").stale_rows), (0, 0));
    assert!((3..=4).contains(&used.refused_parts), "{used:?}: two parts may be under way at once");
    assert!(used.first_reason.as_ref().is_some_and(|why| why.contains("OUT_OF_MEMORY")), "{used:?}");
    pages.holds(&host, loaded.prefix_tokens() as usize, "without a device");
}

/// Pages that were given to another request are not written, neither by the device nor by the CPU.
#[tokio::test]
async fn reassigned_pages_are_not_written() {
    let setup = &setups()[0];
    let (_server, kvasir, text) = stored(setup).await;
    let pages = Pages::new(&setup.spec, (Layout::Flash, 32, Dtype::Bf16), Shard::ALL, None);
    let table = pages.table();
    pages.store.reassign(&pages.indices());
    let loaded = load(&kvasir, &text, vec![table], 1).await;
    assert_eq!(loaded.loaded_tokens(), 0);
    assert!(loaded.report().expect("it was tried").stale_rows > 0);
    let content = pages.cache.content(&pages.device);
    assert!(content.iter().all(|byte| *byte == POISON), "a page of another request was written");
}

/// Left after any number of turns of its task: the pages are somebody else's at once, and stay as they are left.
#[tokio::test]
async fn a_load_may_be_dropped_at_any_point() {
    let setup = &setups()[0];
    let (_server, kvasir, text) = stored(setup).await;
    let host = HostPages::new(&setup.spec, 16, text.len()).expect("fits");
    let _ = load(&kvasir, &text, vec![host.table()], 1).await;
    let pages = Pages::new(&setup.spec, (Layout::Flash, 32, Dtype::Bf16), Shard::ALL, None);
    let poison = vec![POISON; pages.cache.bytes];
    let (mut turns, mut dropped, mut has_ended) = (0u32, 0, false);
    while !has_ended {
        let session = kvasir.session(&text[..]).await;
        assert!(pages.content() == poison, "written after a load was dropped");
        let options = LoadOptions::at_level(Level(1));
        let mut load = session.load([pages.table()], options).expect("begins");
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
        // Would wait forever for a claim that a decode left behind.
        pages.store.reassign(&pages.indices());
        pages.fill(&poison);
        (turns, dropped) = (turns + 1 + turns / 4, dropped + 1);
    }
    assert!(dropped > 5, "{dropped}");
    let loaded = load(&kvasir, &text, vec![pages.table()], 1).await;
    let used = &loaded.report().expect("it loaded").device;
    assert!(loaded.loaded_tokens() == LOADED as u64 && used.refused_parts == 0, "{used:?}");
    pages.holds(&host, text.len(), "after all that were dropped");
}

/// The profiles that were used last stay on the device. The one that was not used for longest makes room.
#[tokio::test]
async fn few_profiles_stay_on_a_device() {
    let mut services = Vec::new();
    for setup in setups() {
        services.push(stored(setup).await);
    }
    assert_eq!(services.len(), RESIDENT_PROFILES_MAX + 1);
    let pages = Pages::new(&setups()[0].spec, (Layout::Flash, 32, Dtype::Bf16), Shard::ALL, None);
    for (profile, made, now) in
        [(0, 1, 1), (1, 2, 2), (2, 3, 3), (3, 4, 4), (0, 4, 4), (4, 5, 4), (0, 5, 4), (1, 6, 4)]
    {
        let (_, kvasir, text) = &services[profile];
        let loaded = load(kvasir, text, vec![pages.table()], 1).await;
        let used = &loaded.report().expect("it loaded").device;
        assert!(used.parts > 0 && used.refused_parts == 0, "profile {profile}: {used:?}");
        let tables = pages.device.memories("tables");
        assert_eq!((tables.made, tables.now), (made, now), "profile {profile}");
    }
}

/// However many loads go on: what their decodes take of the device's memory is bounded.
#[tokio::test]
async fn few_decodes_run_at_a_time() {
    let setup = &setups()[0];
    let (_server, kvasir, text) = stored(setup).await;
    let pages = Pages::new(&setup.spec, (Layout::Flash, 128, Dtype::Bf16), Shard::ALL, None);
    let indices = pages.indices();
    // Of 24 pages, six for each load.
    let begin = |of: &[u32]| load(&kvasir, &text, vec![pages.store.table(of).expect("they exist")], 1);
    let (a, b, c, d) = tokio::join!(
        begin(&indices[..6]),
        begin(&indices[6..12]),
        begin(&indices[12..18]),
        begin(&indices[18..])
    );
    for loaded in [a, b, c, d] {
        let used = &loaded.report().expect("it loaded").device;
        assert!(used.parts > 0 && used.refused_parts == 0, "{used:?}");
        assert_eq!(loaded.loaded_tokens(), LOADED as u64);
    }
    let statuses = pages.device.memories("statuses");
    assert!((1..=DECODES_MAX).contains(&statuses.most) && statuses.now == 0, "{statuses:?}");
}

/// Reassigning waits for the decode that writes the page, and for no other page's.
#[test]
fn a_page_is_not_reassigned_while_it_is_written() {
    let claims = crate::page_claims::PageClaims::new(3);
    let pages = [0, 1].map(|index| claims.page(index).expect("is there"));
    let done = claims.claim(&pages).expect("nobody has them");
    claims.reassign(&[2]);
    let (ended, has_ended) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            claims.reassign(&[1]);
            ended.send(()).expect("is awaited");
        });
        assert!(has_ended.recv_timeout(Duration::from_millis(50)).is_err(), "it was being written");
        // However many decodes follow each other: none of them holds the page up.
        assert!(claims.claim(&pages).is_none(), "who waits would wait for the next writer, too");
        drop(done);
        has_ended.recv_timeout(Duration::from_secs(20)).expect("nobody writes it any more");
    });
    assert!(claims.claim(&pages[..1]).is_some() && claims.page(3).is_none());
}

#[test]
fn pages_that_are_not_the_shards_are_refused() {
    let spec = Arc::new(mixed_spec(KvDtype::Bf16));
    let device = Arc::new(EmulatedDevice::default());
    let refused = |shard: Shard, dtype: Dtype, scale: f32, what: &str| {
        let mut cache = Cache::new(&spec, &device, (Layout::Flash, 16, dtype), 0..5, None);
        cache.pages.layers.iter_mut().flatten().flatten().for_each(|plane| plane.scale = scale);
        // SAFETY: nothing is loaded.
        let made =
            unsafe { DevicePages::new(Arc::clone(&device), Arc::clone(&spec), shard, cache.pages.clone()) };
        let Err(CudaError::Pages { what: said }) = made else { panic!("{what} is accepted") };
        assert!(said.contains(what), "{said}");
    };
    refused(Shard { layers: 0..2, ..Shard::ALL }, Dtype::Bf16, 1.0, "exactly if the shard holds it");
    refused(Shard { heads: 0..1, ..Shard::ALL }, Dtype::Bf16, 1.0, "exactly if the shard holds it");
    refused(Shard::ALL, Dtype::F16, 1.0, "the model's type");
    refused(Shard::ALL, Dtype::Bf16, 0.5, "do not scale");
}
