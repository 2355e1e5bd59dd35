//! `load`: what an engine sees, and what it can rely on when it changes its mind.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{
    Fault, LAYERS, client, kv,
    pages::{Pages, rows_of},
    spec, start, tokens,
};
use kvasir_client::{
    BlockTable, ChunkOutcome, KvClient, LayerReady, LoadEvent, LoadOptions, LoadReport, RecomputeCause,
    Shard, StoreOptions,
    fetcher::{Fixed, Progressive, RecomputeModel, TextMode},
};
use kvasir_codec::KvBuffer;
use kvasir_types::{KvLayout, Level, Plane, TokenRange};

/// Computing is out of the question, time is plentiful.
fn at(level: u8) -> LoadOptions {
    let recompute = RecomputeModel::from_seconds(100.0, 1.0, 0.0);
    let policy = Box::new(Fixed::new(Level(level)));
    LoadOptions { policy, ..LoadOptions::new(Duration::from_secs(30), recompute) }
}

async fn loaded(
    client: &KvClient,
    text: &[u32],
    tables: Vec<BlockTable>,
    options: LoadOptions,
) -> (Vec<LayerReady>, Vec<(TokenRange, RecomputeCause)>, LoadReport) {
    let plan = client.lookup(text).await.unwrap();
    let mut load = client.load(plan, tables, options).unwrap();
    let (mut ready, mut compute) = (Vec::new(), Vec::new());
    while let Some(event) = load.next().await {
        match event {
            LoadEvent::LayerReady(layers) => ready.push(layers),
            LoadEvent::Recompute { range, cause } => compute.push((range, cause)),
            LoadEvent::Withdrawn { range } => panic!("{range:?} is not computed meanwhile"),
            LoadEvent::Done { report } => {
                assert!(load.next().await.is_none(), "done comes last");
                return (ready, compute, *report);
            }
        }
    }
    panic!("a load ends with its report");
}

fn range(start: u64, end: u64) -> TokenRange {
    TokenRange { start, end }
}

/// The pages hold, for these tokens, what a plain load decodes.
fn holds(pages: &Pages, reference: &KvBuffer, tokens: std::ops::Range<usize>) {
    for layer in 0..LAYERS {
        for plane in Plane::ALL {
            for head in 0..2 {
                let ours = pages.rows(layer, plane, head, tokens.clone());
                assert_eq!(
                    ours,
                    rows_of(reference, layer, plane, head, tokens.clone()),
                    "{layer} {plane:?} {head}"
                );
            }
        }
    }
}

async fn reference(client: &KvClient, text: &[u32], level: u8) -> KvBuffer {
    let plan = client.lookup(text).await.unwrap();
    let mut back = KvBuffer::new(&spec(), plan.matched_tokens() as usize);
    client.get_kv(&plan, at(level), &mut back).await.unwrap();
    back
}

#[tokio::test]
async fn layers_are_handed_over_and_the_rest_is_given_back() {
    let (address, _service) = start().await;
    let client = client(address).await;
    let text = tokens(700, 1);
    client.store_kv(&text, &kv(&text), |_| ()).await.unwrap();
    let prompt: Vec<u32> = text.iter().copied().chain(tokens(50, 66)).collect();
    let pages = Pages::toy(prompt.len());
    let (ready, compute, report) = loaded(&client, &prompt, vec![pages.table()], at(1)).await;
    // Blocks of 16: the partial tail block of 700 tokens is not of the longer prompt.
    assert_eq!(compute, [(range(688, 750), RecomputeCause::NotStored)]);
    assert_eq!(ready.last().unwrap().layers_complete, LAYERS);
    // What is complete only grows; groups of layers come in the order in which their decoding ends.
    assert!(ready.is_sorted_by_key(|r| r.layers_complete), "{ready:?}");
    let given: usize = ready.iter().map(|r| r.layers.len() * r.token_range.len() as usize).sum();
    assert_eq!(given, LAYERS * 688, "each layer of each token once: {ready:?}");
    let kl = 0.1 / 3.0;
    assert!(ready.iter().all(|r| r.level == Level(1) && (r.predicted_kl - kl).abs() < 1e-6 && !r.flagged));
    assert!((report.kl_beneath - kl).abs() < 1e-6 && report.flagged.is_empty());
    holds(&pages, &reference(&client, &prompt, 1).await, 0..688);
    // The last token is computed even where all of the prompt is stored.
    let (_, compute, report) = loaded(&client, &text, vec![pages.table()], at(0)).await;
    assert_eq!((compute[0].0, report.loaded_tokens()), (range(699, 700), 699));
}

#[tokio::test]
async fn blocks_above_the_bound_are_flagged() {
    let (address, _service) = start().await;
    let client = client(address).await;
    let text = tokens(512, 2);
    client.store_kv(&text, &kv(&text), |_| ()).await.unwrap();
    let pages = Pages::toy(512);
    for (bound, flagged) in [(0.05, vec![range(0, 511)]), (0.2, vec![])] {
        let options = LoadOptions { kl_bound: Some(bound), ..at(0) };
        let (ready, _, report) = loaded(&client, &text, vec![pages.table()], options).await;
        assert_eq!(report.flagged, flagged);
        assert!(ready.iter().all(|r| r.flagged != flagged.is_empty()));
    }
}

#[tokio::test]
async fn ranks_share_the_bytes_and_take_their_heads_and_layers() {
    let (address, _service) = start().await;
    let client = client(address).await;
    let text = tokens(512, 3);
    client.store_kv(&text, &kv(&text), |_| ()).await.unwrap();
    let whole = Pages::toy(512);
    let (_, _, alone) = loaded(&client, &text, vec![whole.table()], at(1)).await;
    let mut part = spec();
    part.layers.iter_mut().for_each(|l| l.layout = KvLayout::Gqa { kv_heads: 1, head_dim: 8 });
    let mut stage = spec();
    stage.layers.truncate(2);
    let ranks = [Pages::new(part.clone(), 16, 512), Pages::new(part, 16, 512), Pages::new(stage, 16, 512)];
    let shards = [
        Shard::tensor_parallel(0, 2, 2),
        Shard::tensor_parallel(1, 2, 2),
        Shard { layers: 4..6, ..Shard::ALL },
    ];
    let tables = ranks.iter().zip(shards).map(|(pages, shard)| pages.table().with_shard(shard)).collect();
    let (ready, _, together) = loaded(&client, &text, tables, at(1)).await;
    assert_eq!(together.bytes, alone.bytes, "fetched once for all ranks");
    for (rank, layers) in [(0, LAYERS), (1, LAYERS), (2, 2)] {
        let last = ready.iter().rfind(|r| r.rank == rank).unwrap();
        assert_eq!(last.layers_complete, layers, "rank {rank}");
    }
    for (layer, plane) in (0..LAYERS).flat_map(|layer| Plane::ALL.map(|plane| (layer, plane))) {
        for head in 0..2 {
            let all = whole.rows(layer, plane, head, 0..511);
            assert_eq!(ranks[head].rows(layer, plane, 0, 0..511), all);
            if layer >= 4 {
                assert_eq!(ranks[2].rows(layer - 4, plane, head, 0..511), all);
            }
        }
    }
}

#[tokio::test]
async fn a_table_that_is_reassigned_mid_load_is_not_written_to() {
    let (address, _service) = start().await;
    let client = client(address).await;
    let text = tokens(1280, 4);
    client.store_kv(&text, &kv(&text), |_| ()).await.unwrap();
    let pages = Pages::toy(1280);
    let plan = client.lookup(&text).await.unwrap();
    let mut load = client.load(plan, [pages.table()], at(1)).unwrap();
    let mut report = None;
    while let Some(event) = load.next().await {
        match event {
            // After the first rows have arrived, the pages become somebody else's.
            LoadEvent::LayerReady(_) => pages.reassign(42.0),
            LoadEvent::Done { report: done } => report = Some(done),
            LoadEvent::Recompute { .. } | LoadEvent::Withdrawn { .. } => {}
        }
    }
    assert!(pages.all(42.0), "the new owner's KV is as it left it");
    assert!(report.unwrap().stale_rows > 0, "and the load says that nothing of it may be used");
}

/// Leaves a load after any number of turns of its task: the pages are somebody else's at once.
#[tokio::test]
async fn a_load_may_be_dropped_at_any_point() {
    let (address, service) = start().await;
    let client = client(address).await;
    let text = tokens(768, 5);
    client.store_kv(&text, &kv(&text), |_| ()).await.unwrap();
    let pages = Pages::toy(768);
    let mut ended = 0;
    for turns in (0..40u32).chain((40..400).step_by(9)) {
        let plan = client.lookup(&text).await.unwrap();
        let mut load = client.load(plan, [pages.table()], at(1)).unwrap();
        let mut over = false;
        for _ in 0..turns {
            tokio::task::yield_now().await;
            let next = futures::FutureExt::now_or_never(load.next());
            over |= matches!(next, Some(Some(LoadEvent::Done { .. })));
        }
        ended += u32::from(over);
        drop(load);
        pages.reassign(turns as f32);
        // What was on a blocking thread runs out meanwhile.
        tokio::task::yield_now().await;
        assert!(pages.all(turns as f32), "dropped after {turns} turns");
        if ended > 3 {
            break;
        }
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (_, _, report) = loaded(&client, &text, vec![pages.table()], at(1)).await;
    assert_eq!((report.loaded_tokens(), report.failures.len()), (767, 0), "the client is as good as new");
    drop(service);
}

/// Polls a future a number of times and then drops it.
async fn polled<F: Future>(future: F, polls: u32) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

#[tokio::test]
async fn lookups_and_stores_may_be_dropped_at_every_await_point() {
    let (address, service) = start().await;
    let client = client(address).await;
    let text = tokens(512, 6);
    let cache = kv(&text);
    let mut polls = 0;
    while polled(client.store_kv(&text, &cache, |_| ()), polls).await.is_none() {
        polls += 1;
    }
    assert!(polls > 3, "{polls}");
    let mut polls = 0;
    let plan = loop {
        match polled(client.lookup(&text), polls).await {
            Some(plan) => break plan.unwrap(),
            None => polls += 1,
        }
    };
    assert_eq!(plan.matched_tokens(), 512);
    assert_eq!(
        service.objects.lock().unwrap().len(),
        2,
        "the same bytes have the same name, however often sent"
    );
}

#[tokio::test]
async fn what_is_computed_over_a_lossy_prefix_says_so() {
    let (address, _service) = start().await;
    let client = client(address).await;
    let first = tokens(256, 7);
    client.store_kv(&first, &kv(&first), |_| ()).await.unwrap();
    // A second turn over the first, loaded at level 1.
    let second: Vec<u32> = first.iter().copied().chain(tokens(256, 70)).collect();
    let pages = Pages::toy(512);
    let (_, _, report) = loaded(&client, &second, vec![pages.table()], at(1)).await;
    let options = |kl_beneath| StoreOptions {
        kl_beneath,
        kl_beneath_max: Some(0.05),
        stored_tokens: report.loaded_tokens() as usize,
        ..StoreOptions::default()
    };
    let stored =
        client.store_kv_with(&second, &kv(&second), &options(report.kl_beneath), |_| ()).await.unwrap();
    assert!(matches!(stored.chunks[1].outcome, ChunkOutcome::Stored { .. }));
    // A third turn over that: the errors add up, in the prediction and in what is stored.
    let third: Vec<u32> = second.iter().copied().chain(tokens(256, 71)).collect();
    let plan = client.lookup(&third).await.unwrap();
    let beneath: Vec<f32> = plan.chunks().iter().map(|c| c.kl_beneath).collect();
    assert!(beneath[0] == 0.0 && (beneath[1] - 0.1 / 3.0).abs() < 1e-6, "{beneath:?}");
    let pages = Pages::toy(768);
    let (ready, _, report) = loaded(&client, &third, vec![pages.table()], at(1)).await;
    assert!((report.kl_beneath - 0.2 / 3.0).abs() < 1e-6);
    // Chunks come in the order in which they are ready.
    let worst = ready.iter().map(|part| part.predicted_kl).fold(0.0, f64::max);
    assert!((worst - 0.2 / 3.0).abs() < 1e-6, "{worst}");
    let refused =
        client.store_kv_with(&third, &kv(&third), &options(report.kl_beneath), |_| ()).await.unwrap();
    assert_eq!(refused.chunks[2].outcome, ChunkOutcome::TooLossy);
    // A reader may bound it.
    let strict = client.clone().with_kl_beneath_max(0.01).lookup(&third).await.unwrap();
    assert_eq!(strict.matched_tokens(), 256);
}

#[tokio::test]
async fn an_engine_may_compute_text_while_the_load_goes_on() {
    let (address, service) = start().await;
    let client = client(address).await;
    let text = tokens(768, 8);
    let stored = client.store_kv(&text, &kv(&text), |_| ()).await.unwrap();
    let ChunkOutcome::Stored { object_digest, .. } = stored.chunks[0].outcome else { unreachable!() };
    service.faults.lock().unwrap().push(Fault::Gone(object_digest));
    let pages = Pages::toy(768);
    let plan = client.lookup(&text).await.unwrap();
    let options = LoadOptions { text: TextMode::Overlapped, ..at(0) };
    let mut load = client.load(plan, [pages.table()], options).unwrap();
    let mut computed = Vec::new();
    while let Some(event) = load.next().await {
        match event {
            LoadEvent::Recompute { range, cause: RecomputeCause::Failed } => {
                load.computed(range, Duration::from_millis(3)).await;
                computed.push(range);
            }
            LoadEvent::Done { report } => assert_eq!(report.loaded_tokens(), 511),
            _ => {}
        }
    }
    assert_eq!(computed, [range(0, 256)]);
    let learned = client.options(Duration::from_secs(1)).recompute;
    assert!(learned.predict(range(0, 256)) < Duration::from_secs(300), "the prefill was fitted");
}

/// The GPU needs longer for a chunk than there is time, and the link is silent until the GPU has begun.
#[tokio::test]
async fn what_the_link_brings_first_is_taken_back_from_the_engine() {
    let (address, service) = start().await;
    let client = client(address).await;
    let text = tokens(512, 10);
    client.store_kv(&text, &kv(&text), |_| ()).await.unwrap();
    let pages = Pages::toy(512);
    let plan = client.lookup(&text).await.unwrap();
    service.faults.lock().unwrap().push(Fault::Hold);
    let slo = Duration::from_secs(2);
    let recompute = RecomputeModel::from_seconds(0.0, 3.0 / 256.0, 0.0);
    let options = LoadOptions {
        policy: Box::new(Progressive::new()),
        text: TextMode::Overlapped,
        ..LoadOptions::new(slo, recompute)
    };
    let mut load = client.load(plan, [pages.table()], options).unwrap();
    let (mut given, mut back, mut done) = (Vec::new(), Vec::new(), None);
    while let Some(event) = load.next().await {
        match event {
            LoadEvent::Recompute { range, cause: RecomputeCause::Text } => {
                given.push(range);
                service.flow();
            }
            LoadEvent::Withdrawn { range } => {
                back.push(range);
                // An engine that cannot stop says so all the same when it is done.
                load.computed(range, Duration::from_millis(1)).await;
            }
            LoadEvent::Done { report } => done = Some(report),
            LoadEvent::LayerReady(_) | LoadEvent::Recompute { .. } => {}
        }
    }
    let report = done.unwrap();
    assert!(!given.is_empty() && given == back, "{given:?} {back:?}");
    assert!(report.recompute.is_empty(), "nothing of the chunks is left to the engine");
    assert_eq!(report.loaded_tokens(), 511);
    let levels: Vec<_> = report.chunks.iter().map(|chunk| chunk.level).collect();
    assert_eq!(levels.len(), 2);
    for (chunk, level) in levels.into_iter().enumerate() {
        let tokens = chunk * 256..(chunk * 256 + 256).min(511);
        holds(&pages, &reference(&client, &text, level.unwrap().0).await, tokens);
    }
}

#[tokio::test]
async fn a_client_is_shared_between_threads_and_tables_must_have_room() {
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    fn moved<T: Send + 'static>(_: &T) {}
    let (address, _service) = start().await;
    let client = client(address).await;
    shared(&client);
    let text = tokens(512, 9);
    client.store_kv(&text, &kv(&text), |_| ()).await.unwrap();
    let plan = client.lookup(&text).await.unwrap();
    let short = Pages::toy(300);
    let error = client.load(plan.clone(), [short.table()], at(0)).unwrap_err();
    assert!(error.to_string().contains("312 tokens"), "{error}");
    // From a thread without a runtime.
    let pages = Pages::toy(512);
    let table = pages.table();
    let clone = client.clone();
    let load = std::thread::spawn(move || clone.load(plan, [table], at(0)).unwrap()).join().unwrap();
    moved(&load);
    assert_eq!(load.report().await.unwrap().loaded_tokens(), 511);
    let _: Arc<Pages> = pages;
}
