//! The engine with its cache in pages on a device: it computes over them, saves out of them, and answers over layers that a
//! load has decoded there while later ones are not there yet. As in `device.rs`, the driver is the emulator, or a real one.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use kvasir_client::{
    Kvasir,
    pages::{
        DeviceDecode, DeviceDecoder, DevicePart, PageRead, PageRef, PageRows, PageStore, PartOutcome, Shard,
    },
};
use kvasir_codec::KvSink;
use kvasir_cuda::CudaDevice;
use kvasir_engine::{
    Model, PagePool, Sampling,
    serving::{Engine, EngineConfig, LoadPolicy, Output, RemoteUse, Request, SchedulerLimits, Summary},
};
use kvasir_store::StoreConfig;
use kvasir_tests::service::Service;
use kvasir_types::{Level, ModelSpec};
use tempfile::TempDir;

use crate::device::{BLOCK_TOKENS, BLOCKS, Rank, device};

const TEXT: &str = include_str!("../../crates/kvasir-engine/tests/data/harbour.txt");
/// A chunk, and whole pages.
const STORED: usize = 256;
const PROMPT: usize = 300;
const ANSWER: usize = 20;
/// How long later layers wait for the engine before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// Scopes from this one on were decoded on the device.
    Decoded { scope: usize },
    /// The engine asked for the rows of a layer.
    Read { layer: usize },
}

/// Pages on a device, where later layers are decoded only once the engine reads the first one.
struct Pages {
    rank: Rank,
    steps: Mutex<Vec<Step>>,
    stepped: Condvar,
}

impl Pages {
    fn new(spec: &Arc<ModelSpec>, device: &Arc<CudaDevice>) -> Arc<Self> {
        let rank = Rank::new(spec, device, Shard::ALL);
        Arc::new(Self { rank, steps: Mutex::default(), stepped: Condvar::new() })
    }

    fn pool(self: &Arc<Self>, spec: &ModelSpec) -> Arc<PagePool> {
        let here = Arc::clone(self);
        let reassign = move |page: u32| here.rank.pages.reassign(&[page]);
        PagePool::on_device(spec, BLOCK_TOKENS, BLOCKS, Arc::clone(self) as _, reassign)
            .expect("it has a type")
    }

    fn note(&self, step: Step) {
        self.steps.lock().expect("not poisoned").push(step);
        self.stepped.notify_all();
    }

    fn steps(&self) -> Vec<Step> {
        self.steps.lock().expect("not poisoned").clone()
    }
}

impl PageStore for Pages {
    fn write(&self, page: PageRef, rows: &PageRows<'_>) -> bool {
        self.rank.pages.write(page, rows)
    }

    fn device(&self) -> Option<&dyn DeviceDecoder> {
        Some(self)
    }

    fn read_rows(&self, rows: &PageRead<'_>, to: &mut dyn KvSink) -> Result<bool, String> {
        self.note(Step::Read { layer: rows.layer() });
        self.rank.pages.read_rows(rows, to)
    }
}

impl DeviceDecoder for Pages {
    fn decode(&self, parts: &[DevicePart<'_>]) -> Result<DeviceDecode, String> {
        // All parts have the same ones.
        let scope = parts.iter().flat_map(|part| part.scopes()).min().copied().expect("no part is empty");
        if scope > 0 {
            let is_early = |steps: &mut Vec<Step>| !steps.contains(&Step::Read { layer: 0 });
            let steps = self.steps.lock().expect("not poisoned");
            drop(self.stepped.wait_timeout_while(steps, PATIENCE, is_early).expect("not poisoned"));
        }
        let decoded = self.rank.pages.decode(parts)?;
        if decoded.outcomes.iter().all(|outcome| *outcome == PartOutcome::Decoded) {
            self.note(Step::Decoded { scope });
        }
        Ok(decoded)
    }
}

async fn answer(engine: &Engine, prompt: &[u32], count: usize) -> (Vec<u32>, Summary) {
    let request = Request { prompt: prompt.to_vec(), count, sampling: Sampling::Greedy };
    let mut completion = engine.complete(request, true).expect("it fits");
    let mut tokens = Vec::new();
    while let Some(output) = completion.next().await {
        match output {
            Output::Token(token) => tokens.push(token),
            Output::Done(summary) => return (tokens, *summary),
        }
    }
    panic!("the engine gave up behind {tokens:?}")
}

/// With a first profile, which is direct.
#[tokio::test]
async fn an_engine_answers_bit_for_bit_over_pages_that_are_being_decoded() {
    let kernels = TempDir::new().expect("a directory");
    let name = "device_engine::an_engine_answers_bit_for_bit_over_pages_that_are_being_decoded";
    let Some(device) = device(name, &kernels) else { return };
    let directory = TempDir::new().expect("a directory");
    let url = format!("file://{}/store", directory.path().display()).parse().expect("a url");
    let service = Service::start(StoreConfig::new(url), &directory.path().join("cache")).await;
    let model = Arc::new(Model::kvasir_tiny().expect("embedded"));
    let spec = model.spec();
    let text = model.tokenizer().encode(TEXT).expect("tokens");
    let builder = Kvasir::builder(format!("http://{}", service.address)).model((**spec).clone());
    let kvasir = builder.chunk_tokens(STORED).namespace("engine").connect().await.expect("it answers");
    let limits = SchedulerLimits::default();
    let config = EngineConfig { pages: BLOCKS, page_tokens: BLOCK_TOKENS, limits };
    let remote = |store| {
        // The finest level of a first profile.
        let policy = LoadPolicy::Level(Level(2));
        Some((kvasir.clone(), RemoteUse { slo: PATIENCE, policy, store, ..RemoteUse::default() }))
    };

    // What is computed over pages on the device, and saved out of them.
    let pool = Pages::new(spec, &device).pool(spec);
    let there = Engine::start_over(Arc::clone(&model), pool, limits, remote(true)).expect("starts");
    let here = Engine::start(Arc::clone(&model), config, None).expect("starts");
    let computed = [answer(&there, &text[..STORED], 1).await, answer(&here, &text[..STORED], 1).await];
    let [on_device, on_host] = computed.map(|(tokens, summary)| (tokens, summary.kv_digest));
    assert!(on_host.1.is_some() && on_device == on_host, "{on_device:?} is not {on_host:?}");
    there.drain().await;
    assert_eq!(there.saves().expect("it is connected").saved, 1);

    // What is loaded into others, and computed over that.
    let pages = Pages::new(spec, &device);
    let pool = pages.pool(spec);
    let there = Engine::start_over(Arc::clone(&model), pool, limits, remote(false)).expect("starts");
    let here = Engine::start(Arc::clone(&model), config, remote(false)).expect("starts");
    let (on_device, summary) = answer(&there, &text[..PROMPT], ANSWER).await;
    let (on_host, expected) = answer(&here, &text[..PROMPT], ANSWER).await;
    assert_eq!((on_host.len(), expected.prefix.loaded_tokens), (ANSWER, STORED));
    assert!(expected.kv_digest.is_some() && summary.kv_digest == expected.kv_digest, "{summary:?}");
    assert_eq!(on_device, on_host);
    assert!(summary.prefix.loaded_tokens == STORED && summary.prefix.layer_wise, "{summary:?}");

    let steps = pages.steps();
    let at = |step: Step| {
        let found = steps.iter().position(|done| *done == step);
        found.unwrap_or_else(|| panic!("{step:?} is not among {steps:?}"))
    };
    // Layers that decode together in a first profile, and the first of their scopes: of each, one for keys, one for values.
    for (layers, scope) in [(0..1, 0), (1..5, 2), (5..8, 4)] {
        let decoded = at(Step::Decoded { scope });
        for layer in layers {
            assert!(decoded < at(Step::Read { layer }), "layer {layer} was read too early: {steps:?}");
        }
        assert_eq!(scope > 0, at(Step::Read { layer: 0 }) < decoded, "scope {scope}: {steps:?}");
    }
}
