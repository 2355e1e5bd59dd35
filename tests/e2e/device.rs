//! The real engine's caches between the service and pages on a device: by the code that calls the driver, on a driver that is
//! the emulator (or on a real one, where there is one). The tests start themselves again with the emulator's folder on the
//! library path.

use std::{ops::Range, sync::Arc};

use kvasir_client::{
    Kvasir, QualityFloor,
    pages::{BlockTable, HostPages, Shard},
    report::{ChunkOutcome, SaveOutcome},
    tuning::LoadOptions,
};
use kvasir_codec::{KvBuffer, KvSink, Profile};
use kvasir_cuda::{
    CudaDevice, CudaMemory, CudaPages, Device, DeviceMemory, DeviceReadback, Dtype, PageShape, PagedKv,
};
use kvasir_engine::{Model, Sampling, TINY_PROFILE};
use kvasir_store::StoreConfig;
use kvasir_tests::service::Service;
use kvasir_types::{KvDtype, Level, ModelSpec, Plane};
use tempfile::TempDir;

const TEXT: &str = include_str!("../../crates/kvasir-engine/tests/data/harbour.txt");
const TOKENS: usize = 300;
pub(crate) const BLOCK_TOKENS: usize = 32;
pub(crate) const BLOCKS: usize = 12;

/// The device; `None` after the test ran in a process with the emulator as its driver.
pub(crate) fn device(test: &str, kernels: &TempDir) -> Option<Arc<CudaDevice>> {
    match CudaDevice::new(0, kernels.path().to_owned()) {
        Ok(device) => Some(Arc::new(device)),
        // No driver, or one that finds no GPU.
        Err(_) => {
            kvasir_kernels_emulator::test_again(test, kvasir_kernels_emulator::FAKE_DRIVER);
            None
        }
    }
}

/// A rank's cache as FlashAttention has it: `[layer][plane][block][token][head][element]` in one piece.
pub(crate) struct Rank {
    spec: Arc<ModelSpec>,
    shard: Shard,
    device: Arc<CudaDevice>,
    memory: CudaMemory,
    layer_bytes: usize,
    pub(crate) pages: Arc<CudaPages>,
}

impl Rank {
    pub(crate) fn new(spec: &Arc<ModelSpec>, device: &Arc<CudaDevice>, shard: Shard) -> Self {
        let [(heads, dim), _] = spec.layers[0].layout.planes();
        let held = shard.heads_of(heads);
        let dtype = match spec.kv_dtype {
            KvDtype::Bf16 => Dtype::Bf16,
            KvDtype::F16 => Dtype::F16,
            other => panic!("{other:?}: name its type here"),
        };
        let layer_bytes = 2 * BLOCKS * BLOCK_TOKENS * held.len() * dim * 2;
        let memory = device.allocate("cache", spec.layers.len() * layer_bytes).expect("there is room");
        let shape = PageShape {
            blocks: BLOCKS as u64,
            block_tokens: BLOCK_TOKENS as u32,
            heads: held,
            head_dim: dim as u64,
            dtype,
        };
        let planes = (0..spec.layers.len()).map(|layer| {
            let base = memory.address() + (layer * layer_bytes) as u64;
            shape.flash(base).map(|plane| shard.layers.contains(&layer).then_some(plane))
        });
        let layout =
            PagedKv { layers: planes.collect(), block_tokens: BLOCK_TOKENS as u32, blocks: BLOCKS as u64 };
        // SAFETY: the planes are those of `memory`, which lives as long as the pages.
        let pages = unsafe { CudaPages::new(Arc::clone(device), Arc::clone(spec), shard.clone(), layout) };
        let (spec, device) = (Arc::clone(spec), Arc::clone(device));
        Self { spec, shard, device, memory, layer_bytes, pages: pages.expect("the planes are the shard's") }
    }

    /// Pages in an order that is not theirs.
    fn order() -> Vec<u32> {
        (0..BLOCKS as u32).map(|page| page * 5 % BLOCKS as u32).collect()
    }

    pub(crate) fn table(&self) -> BlockTable {
        self.pages.table(&Self::order()).expect("they exist")
    }

    /// Layer, plane and head of the model, of all that the rank holds.
    fn held(&self) -> Vec<(usize, Plane, usize)> {
        let [(heads, _), _] = self.spec.layers[0].layout.planes();
        let heads = self.shard.heads_of(heads);
        let mut held = Vec::new();
        for layer in self.shard.layers.start..self.shard.layers.end.min(self.spec.layers.len()) {
            for plane in Plane::ALL {
                held.extend(heads.clone().map(|head| (layer, plane, head)));
            }
        }
        held
    }

    /// The bytes of a row in the rank's memory.
    fn place(&self, (layer, plane, head): (usize, Plane, usize), token: usize) -> Range<usize> {
        let [(heads, dim), _] = self.spec.layers[0].layout.planes();
        let held = self.shard.heads_of(heads);
        let block = Self::order()[token / BLOCK_TOKENS] as usize;
        let slot = (plane as usize * BLOCKS + block) * BLOCK_TOKENS + token % BLOCK_TOKENS;
        let at = layer * self.layer_bytes + (slot * held.len() + head - held.start) * dim * 2;
        at..at + 2 * dim
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        let bytes = self.spec.layers.len() * self.layer_bytes;
        self.device.read_back(&self.memory, 0, bytes).and_then(DeviceReadback::bytes).expect("copies")
    }

    /// Whether the rows of all tokens are those of `host` bit for bit.
    pub(crate) fn holds(&self, host: &HostPages, tokens: usize) -> bool {
        let content = self.content();
        let held = self.held().into_iter().flat_map(|place| (0..tokens).map(move |token| (place, token)));
        let mut rows = held.map(|(place, token)| {
            content[self.place(place, token)] == host.row(place.0, place.1, place.2, token)[..]
        });
        rows.all(|is_equal| is_equal)
    }

    /// Overwrites all of its memory, whose pages are another request's from now on.
    pub(crate) fn reassign(&self, bytes: &[u8]) {
        self.pages.reassign(&Self::order());
        let place = [(self.memory.address(), 0..bytes.len())];
        // SAFETY: the rank's own memory.
        unsafe { self.device.write(bytes, &place) }.expect("writes");
    }

    /// The largest difference to the rows of `host` relative to the row's largest value, over all tokens.
    fn differs(&self, host: &HostPages, tokens: usize) -> f32 {
        let (content, mut most) = (self.content(), 0f32);
        for place in self.held() {
            for token in 0..tokens {
                let row = host.row(place.0, place.1, place.2, token);
                let (ours, theirs) = (self.values(&content[self.place(place, token)]), self.values(&row));
                let scale = theirs.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
                let pairs = ours.iter().zip(&theirs);
                most = pairs.fold(most, |most, (a, b)| most.max((a - b).abs() / scale));
            }
        }
        most
    }

    /// Gives its rows to the engine, whose attention runs on the CPU.
    fn copy_to(&self, sink: &mut dyn KvSink, tokens: usize) {
        let content = self.content();
        for place in self.held() {
            for token in 0..tokens {
                let row = self.values(&content[self.place(place, token)]);
                sink.write(place.0, place.1, place.2, token, &row);
            }
        }
    }

    /// Takes the engine's rows, as its kernels would write them.
    fn take(&self, kv: &kvasir_engine::PagedKv, tokens: Range<usize>) {
        for place in self.held() {
            for token in tokens.clone() {
                let to = self.place(place, token);
                let mut row = vec![0.0; to.len() / 2];
                kv.read_head(place.0, place.1, place.2, token..token + 1, &mut row);
                let bytes = |value: &f32| match self.spec.kv_dtype {
                    KvDtype::Bf16 => half::bf16::from_f32(*value).to_ne_bytes(),
                    _ => half::f16::from_f32(*value).to_ne_bytes(),
                };
                let row: Vec<u8> = row.iter().flat_map(bytes).collect();
                let at = self.memory.address() + to.start as u64;
                // SAFETY: a row of the rank's own memory.
                unsafe { self.device.write(&row, &[(at, 0..row.len())]) }.expect("writes");
            }
        }
    }

    fn values(&self, bytes: &[u8]) -> Vec<f32> {
        let value = |pair: &[u8; 2]| match self.spec.kv_dtype {
            KvDtype::Bf16 => half::bf16::from_ne_bytes(*pair).to_f32(),
            _ => half::f16::from_ne_bytes(*pair).to_f32(),
        };
        bytes.as_chunks().0.iter().map(value).collect()
    }
}

/// With the starter that the client makes of its first save, and with the profile that is shipped, which has a basis.
#[tokio::test]
async fn contexts_are_loaded_into_pages_on_a_device() {
    let kernels = TempDir::new().expect("a directory");
    let name = "device::contexts_are_loaded_into_pages_on_a_device";
    let Some(device) = device(name, &kernels) else { return };
    let directory = TempDir::new().expect("a directory");
    let url = format!("file://{}/store", directory.path().display()).parse().expect("a url");
    let service = Service::start(StoreConfig::new(url), &directory.path().join("cache")).await;
    let model = Model::kvasir_tiny().expect("embedded");
    let mut text = model.tokenizer().encode(TEXT).expect("tokens");
    text.truncate(TOKENS);
    let kv = model.calculate_kv(&text).expect("computes");
    let shipped = Arc::new(Profile::from_bytes(TINY_PROFILE).expect("whole"));
    for (profile, namespace, tolerance) in [(None, "starter", 0.0), (Some(shipped), "shipped", 1.0 / 128.0)] {
        let url = format!("http://{}", service.address);
        let builder = Kvasir::builder(url).model((**model.spec()).clone()).chunk_tokens(256);
        // The level that is loaded below is coarser than `transparent`.
        let builder = builder.quality(QualityFloor::Adaptive);
        let builder = match profile {
            Some(profile) => builder.profile(profile),
            None => builder,
        };
        let kvasir = builder.namespace(namespace).connect().await.expect("the service answers");
        let session = kvasir.session(&text[..]).without_lookup().await;
        session.save_now(&kv, text.len(), |_| ()).await.expect("saves");
        let host = HostPages::new(model.spec(), 16, TOKENS).expect("fits");
        let all = Rank::new(model.spec(), &device, Shard::ALL);
        let halves = [0, 1].map(|rank| {
            let [(heads, _), _] = model.spec().layers[0].layout.planes();
            let shard = Shard { layers: 2..5, ..Shard::tensor_parallel(rank, 2, heads) };
            Rank::new(model.spec(), &device, shard)
        });
        let load = async |tables: Vec<BlockTable>| {
            let session = kvasir.session(&text[..]).await;
            session.load(tables, LoadOptions::at_level(Level(1))).expect("begins").finish().await
        };
        let on_host = load(vec![host.table()]).await;
        // Two requests at once, of one rank and of two.
        let (whole, shared) =
            tokio::join!(load(vec![all.table()]), load(halves.iter().map(Rank::table).collect::<Vec<_>>()));
        for loaded in [&whole, &shared] {
            assert_eq!(loaded.missing(), on_host.missing(), "{namespace}");
            let used = &loaded.report().expect("it loaded").device;
            assert!(used.parts > 0 && used.refused_parts == 0, "{namespace}: {used:?}");
            let memory = used.memory;
            assert!(
                memory.scratch > 0 && memory.pinned > 0 && memory.profiles > 0,
                "{namespace}: {memory:?}"
            );
            assert!(!used.times.copies.is_zero() && !used.times.kernels.is_zero(), "{namespace}: {used:?}");
        }
        let tokens = on_host.prefix_tokens() as usize;
        assert!(tokens > 256, "both chunks: {tokens}");
        for rank in [&all, &halves[0], &halves[1]] {
            let differs = rank.differs(&host, tokens);
            assert!(differs <= tolerance, "{namespace}: {differs}");
        }
    }
}

/// A context is loaded into the pages of two ranks; the engine answers over what is there and adds its rows; a save out of the
/// pages stores what a save of the engine's own cache does.
#[tokio::test]
async fn an_engine_answers_over_pages_on_a_device_and_saves_out_of_them() {
    const ANSWER: usize = 20;
    let kernels = TempDir::new().expect("a directory");
    let name = "device::an_engine_answers_over_pages_on_a_device_and_saves_out_of_them";
    let Some(device) = device(name, &kernels) else { return };
    let directory = TempDir::new().expect("a directory");
    let url = format!("file://{}/store", directory.path().display()).parse().expect("a url");
    let service = Service::start(StoreConfig::new(url), &directory.path().join("cache")).await;
    let model = Model::kvasir_tiny().expect("embedded");
    let spec = model.spec();
    let mut text = model.tokenizer().encode(TEXT).expect("tokens");
    text.truncate(TOKENS);
    let connect = async |namespace: &str| {
        let builder = Kvasir::builder(format!("http://{}", service.address)).model((**spec).clone());
        builder.chunk_tokens(256).namespace(namespace).connect().await.expect("the service answers")
    };
    let computed = connect("computed").await;
    let kv = model.calculate_kv(&text).expect("computes");
    let session = computed.session(&text[..]).without_lookup().await;
    session.save_now(&kv, text.len(), |_| ()).await.expect("saves");

    let [(heads, _), _] = spec.layers[0].layout.planes();
    let ranks = [0, 1].map(|rank| Rank::new(spec, &device, Shard::tensor_parallel(rank, 2, heads)));
    let tables = || ranks.each_ref().map(Rank::table);
    let session = computed.session(&text[..]).await;
    let finest = Level(session.chunks()[0].level_bytes.len() as u8 - 1);
    let loaded = session.load(tables(), LoadOptions::at_level(finest)).expect("begins").finish().await;
    let used = &loaded.report().expect("it loaded").device;
    assert!(used.parts > 0 && used.refused_parts == 0, "{used:?}");
    let mut kv = model.new_kv().expect("it has a type");
    kv.reserve(text.len()).expect("there is room");
    let mut sink = kv.sink(0).expect("it is empty");
    let tokens = loaded.prefix_tokens() as usize;
    assert!(tokens + 1 >= text.len(), "all but the last: {tokens}");
    ranks.iter().for_each(|rank| rank.copy_to(&mut sink, tokens));
    sink.finish().expect("nobody else has the pages");
    kv.commit(tokens).expect("they are reserved");
    let answer = model.generate_with_kv(&mut kv, &text, ANSWER, &Sampling::Greedy).expect("answers");
    ranks.iter().for_each(|rank| rank.take(&kv, text.len() - 1..kv.len()));

    let all = [&text[..], &answer[..]].concat();
    let (of_device, of_engine) = (connect("of-device").await, connect("of-engine").await);
    let session = of_device.session(&all[..]).without_lookup().await;
    session.reused(loaded.loss());
    let outcome = session.save_pages(tables(), kv.len()).expect("they hold everything").outcome().await;
    let SaveOutcome::Saved(report) = outcome else { panic!("{outcome:?}") };
    let is_stored = |outcome: &ChunkOutcome| matches!(outcome, ChunkOutcome::Stored { .. });
    assert!(
        report.chunks.len() == 2 && report.chunks.iter().all(|chunk| is_stored(&chunk.outcome)),
        "{report:?}"
    );
    let session = of_engine.session(&all[..]).without_lookup().await;
    session.reused(loaded.loss());
    session.save_now(&kv, kv.len(), |_| ()).await.expect("saves");
    let mut brought = Vec::new();
    for kvasir in [&of_device, &of_engine] {
        let pages = HostPages::new(spec, 16, kv.len()).expect("fits");
        let session = kvasir.session(&all[..]).await;
        let loaded =
            session.load([pages.table()], LoadOptions::at_level(finest)).expect("begins").finish().await;
        // A prompt that goes on behind what is stored matches it up to a block's end.
        let tokens = loaded.prefix_tokens() as usize;
        assert!(tokens > text.len(), "some of the answer: {tokens}");
        brought.push(KvBuffer::from_source(spec, tokens, &*pages));
    }
    assert!(brought[0].as_slice() == brought[1].as_slice(), "other rows");
}
