//! `load`: what an engine sees, and what it can rely on when it changes its mind.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{
    Fault, LAYERS, connect, digest, find, kv,
    pages::{Pages, rows_of},
    range, reference, save, spec, start, tokens,
};
use futures::FutureExt as _;
use kvasir_client::{
    Deadline, Error, Kvasir, LayerReady, Loaded, Session,
    overlapped::{LoadEvent, RecomputeCause},
    pages::{BlockTable, Shard},
    tuning::{Fixed, LoadOptions, Policy, Progressive, RecomputeModel},
};
use kvasir_codec::KvBuffer;
use kvasir_types::{KvDtype, KvLayout, Level, Plane};

fn options(policy: impl Policy + 'static, slo: Duration, recompute: RecomputeModel) -> LoadOptions {
    LoadOptions { policy: Box::new(policy), recompute: Some(recompute), ..Deadline::within(slo).into() }
}

/// Computing is out of the question, time is plentiful.
fn at(level: u8) -> LoadOptions {
    let recompute = RecomputeModel::from_seconds(100.0, 1.0, 0.0);
    options(Fixed::new(Level(level)), Duration::from_secs(30), recompute)
}

async fn loaded(
    kvasir: &Kvasir,
    text: &[u32],
    tables: Vec<BlockTable>,
    options: LoadOptions,
) -> (Vec<LayerReady>, Loaded) {
    let mut load = find(kvasir, text).await.load(tables, options).unwrap();
    let mut ready = Vec::new();
    while let Some(layers) = load.next_layers().await {
        ready.push(layers);
    }
    (ready, load.finish().await)
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

#[tokio::test]
async fn layers_are_handed_over_and_the_rest_is_missing() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(700, 1);
    save(&kvasir, &text).await;
    let prompt: Vec<u32> = text.iter().copied().chain(tokens(50, 66)).collect();
    let pages = Pages::toy(prompt.len());
    let (ready, done) = loaded(&kvasir, &prompt, vec![pages.table()], at(1)).await;
    // Blocks of 16: the partial tail block of 700 tokens is not of the longer prompt.
    assert_eq!(done.missing(), [range(688, 750)]);
    assert_eq!(ready.last().unwrap().layers_complete, LAYERS);
    // What is complete only grows; groups of layers come in the order in which their decoding ends.
    assert!(ready.is_sorted_by_key(|r| r.layers_complete), "{ready:?}");
    let given: usize = ready.iter().map(|r| r.layers.len() * r.token_range.len() as usize).sum();
    assert_eq!(given, LAYERS * 688, "each layer of each token once: {ready:?}");
    let kl = 0.1 / 3.0;
    assert!(ready.iter().all(|r| r.level == Level(1) && (r.loss.kl - kl).abs() < 1e-6));
    assert!((done.loss().kl - kl).abs() < 1e-6);
    assert_eq!([0.02, 0.05].map(|kl| done.tokens_within(kl)), [0, 750]);
    holds(&pages, &reference(&kvasir, &prompt, 1).await, 0..688);
    // The last token is computed even where all of the prompt is stored.
    let (_, done) = loaded(&kvasir, &text, vec![pages.table()], at(0)).await;
    assert_eq!((done.missing(), done.loaded_tokens()), (&[range(699, 700)][..], 699));
}

#[tokio::test]
async fn no_layer_is_complete_over_a_hole() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(768, 12);
    let saved = save(&kvasir, &text).await;
    server.fail(Fault::Gone(digest(&saved, 1)));
    let pages = Pages::toy(768);
    let mut load = find(&kvasir, &text).await.load([pages.table()], at(1)).unwrap();
    let mut last = None;
    while let Some(ready) = load.next_layers().await {
        last = Some(ready);
    }
    assert_eq!(load.finish().await.missing(), [range(256, 512), range(767, 768)]);
    assert!(last.unwrap().layers_complete < LAYERS, "a suffix on these would be computed over nothing");
}

#[tokio::test]
async fn ranks_share_the_bytes_and_take_their_heads_and_layers() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 3);
    save(&kvasir, &text).await;
    let whole = Pages::toy(512);
    let (_, alone) = loaded(&kvasir, &text, vec![whole.table()], at(1)).await;
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
    let (ready, together) = loaded(&kvasir, &text, tables, at(1)).await;
    let bytes = |loaded: &Loaded| loaded.report().unwrap().bytes;
    assert_eq!(bytes(&together), bytes(&alone), "fetched once for all ranks");
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
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(1280, 4);
    save(&kvasir, &text).await;
    let pages = Pages::toy(1280);
    let session = find(&kvasir, &text).await;
    let mut load = session.load([pages.table()], at(1)).unwrap();
    while load.next_layers().await.is_some() {
        // After the first rows have arrived, the pages become somebody else's.
        pages.reassign(42.0);
    }
    let loaded = load.finish().await;
    assert!(pages.all(42.0), "the new owner's KV is as it left it");
    let report = loaded.report().unwrap();
    assert!(report.stale_rows > 0);
    assert_eq!((report.loaded_tokens(), report.saved_gpu_seconds()), (0, 0.0));
    assert_eq!((loaded.missing(), loaded.loaded_tokens(), loaded.loss().kl), (&[range(0, 1280)][..], 0, 0.0));
}

/// Leaves a load after any number of turns of its task: the pages are somebody else's at once.
#[tokio::test]
async fn a_load_may_be_dropped_at_any_point() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(768, 5);
    save(&kvasir, &text).await;
    let pages = Pages::toy(768);
    let mut ended = 0;
    for turns in (0..40u32).chain((40..400).step_by(9)) {
        let mut load = find(&kvasir, &text).await.load([pages.table()], at(1)).unwrap();
        let mut over = false;
        for _ in 0..turns {
            tokio::task::yield_now().await;
            over |= matches!(load.next_layers().now_or_never(), Some(None));
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
    let (_, done) = loaded(&kvasir, &text, vec![pages.table()], at(1)).await;
    let failures = done.report().unwrap().failures.len();
    assert_eq!((done.loaded_tokens(), failures), (767, 0), "the client is as good as new");
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
async fn lookups_and_saves_may_be_dropped_at_every_await_point() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 6);
    let cache = kv(&text);
    let session = kvasir.session(&text).without_lookup().await;
    let mut polls = 0;
    while polled(session.save_now(&cache, 512, |_| ()), polls).await.is_none() {
        polls += 1;
    }
    assert!(polls > 3, "{polls}");
    let mut polls = 0;
    let session = loop {
        match polled(kvasir.session(&text).into_future(), polls).await {
            Some(session) => break session,
            None => polls += 1,
        }
    };
    assert_eq!(session.matched_tokens(), 512);
    assert_eq!(server.digests().len(), 2, "the same bytes have the same name, however often sent");
}

/// Two sessions of one context on one node: the wire carries each byte once, and either load may go.
#[tokio::test]
async fn loads_of_the_same_context_share_the_bytes_on_the_wire() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(1024, 13);
    save(&kvasir, &text).await;
    let right = reference(&kvasir, &text, 1).await;
    for leaves in [false, true] {
        // A load does not wait for one that is silent for long, as it may be on a machine that has too much to do.
        for attempt in 0.. {
            let pages = [Pages::toy(1024), Pages::toy(1024)];
            let sessions = [find(&kvasir, &text).await, find(&kvasir, &text).await];
            let begin =
                |(session, pages): (&Session, &Arc<Pages>)| session.load([pages.table()], at(1)).unwrap();
            let mut loads: Vec<_> = sessions.iter().zip(&pages).map(begin).collect();
            if leaves {
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                drop(loads.remove(0));
            }
            let (mut wire, mut bytes, expected) = (0, 0, loads.len() as u64);
            for (load, pages) in loads.into_iter().zip(pages.iter().skip(usize::from(leaves))) {
                let done = load.finish().await;
                assert_eq!(done.missing(), [range(1023, 1024)]);
                holds(pages, &right, 0..1023);
                let report = done.report().unwrap();
                (wire, bytes) = (wire + report.reads.proxy_bytes, bytes + report.bytes);
            }
            if wire <= bytes / expected {
                break;
            }
            assert!(attempt < 20, "{wire} bytes on the wire for {expected} loads of {bytes} in all");
        }
    }
}

#[tokio::test]
async fn an_engine_may_compute_text_while_the_load_goes_on() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(768, 8);
    let saved = save(&kvasir, &text).await;
    server.fail(Fault::Gone(digest(&saved, 0)));
    let pages = Pages::toy(768);
    let mut load = find(&kvasir, &text).await.load_overlapped([pages.table()], at(0)).unwrap();
    let mut computed = Vec::new();
    while let Some(event) = load.next().await {
        if let LoadEvent::Compute { range, cause: RecomputeCause::Failed } = event {
            load.computed(range, Duration::from_millis(3)).await;
            computed.push(range);
        }
    }
    assert_eq!(computed, [range(0, 256)]);
    let done = load.finish().await;
    assert_eq!(done.missing(), [range(767, 768)], "what was computed meanwhile is not missing");
    let report = done.report().unwrap();
    assert_eq!((report.loaded_tokens(), report.times.recompute), (511, Duration::from_millis(3)));
    let learned = kvasir.costs().recompute;
    assert!(learned.predict(range(0, 256)) < Duration::from_secs(300), "the prefill was fitted");
}

/// A busy engine always has a load under way.
#[tokio::test]
async fn a_prefill_that_is_reported_during_a_load_is_learned_from() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 14);
    save(&kvasir, &text).await;
    let pages = Pages::toy(512);
    let load = find(&kvasir, &text).await.load([pages.table()], at(1)).unwrap();
    kvasir.observe_prefill(range(0, 4096), Duration::from_secs(9));
    let learned = kvasir.costs().recompute;
    assert_eq!(load.finish().await.loaded_tokens(), 511);
    assert_eq!(kvasir.costs().recompute, learned, "the load began before, and ends after it");
}

/// The GPU needs longer for a chunk than there is time, and the link is silent until the GPU has begun.
#[tokio::test]
async fn what_the_link_brings_first_is_taken_back_from_the_engine() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 10);
    save(&kvasir, &text).await;
    let pages = Pages::toy(512);
    let session = find(&kvasir, &text).await;
    server.fail(Fault::Hold);
    let recompute = RecomputeModel::from_seconds(0.0, 3.0 / 256.0, 0.0);
    let options = options(Progressive::new(), Duration::from_secs(2), recompute);
    let mut load = session.load_overlapped([pages.table()], options).unwrap();
    let (mut given, mut back) = (Vec::new(), Vec::new());
    while let Some(event) = load.next().await {
        match event {
            LoadEvent::Compute { range, cause: RecomputeCause::Text } => {
                given.push(range);
                server.release();
            }
            LoadEvent::Withdrawn(range) => {
                back.push(range);
                // An engine that cannot stop says so all the same when it is done.
                load.computed(range, Duration::from_millis(1)).await;
            }
            LoadEvent::Ready(_) | LoadEvent::Compute { .. } => {}
        }
    }
    assert!(!given.is_empty() && given == back, "{given:?} {back:?}");
    let done = load.finish().await;
    assert_eq!(done.missing(), [range(511, 512)], "nothing of the chunks is left to the engine");
    let levels: Vec<_> = done.report().unwrap().chunks.iter().map(|chunk| chunk.level).collect();
    assert_eq!(levels.len(), 2);
    for (chunk, level) in levels.into_iter().enumerate() {
        let tokens = chunk * 256..(chunk * 256 + 256).min(511);
        holds(&pages, &reference(&kvasir, &text, level.unwrap().0).await, tokens);
    }
}

#[tokio::test]
async fn a_connection_is_shared_between_threads_and_tables_must_have_room() {
    fn shared<T: Send + Sync + 'static>(_: &T) {}
    fn moved<T: Send + 'static>(_: &T) {}
    let server = start().await;
    let kvasir = connect(&server).await;
    shared(&kvasir.clone());
    let text = tokens(512, 9);
    save(&kvasir, &text).await;
    let session = find(&kvasir, &text).await;
    shared(&session);
    let short = Pages::toy(300);
    let error = session.load([short.table()], at(0)).unwrap_err();
    assert!(matches!(error, Error::Config { .. }) && error.to_string().contains("312 tokens"), "{error}");
    // From a thread without a runtime.
    let pages = Pages::toy(512);
    let table = pages.table();
    let load = std::thread::spawn(move || session.load([table], at(0)).unwrap()).join().unwrap();
    moved(&load);
    assert_eq!(load.finish().await.loaded_tokens(), 511);
    let _: Arc<Pages> = pages;
}

#[tokio::test]
async fn caches_without_a_scale_are_refused_by_name() {
    let server = start().await;
    let mut spec = spec();
    spec.kv_dtype = KvDtype::Int8;
    let error = kvasir_client::pages::HostPages::new(&spec, 16, 256).unwrap_err();
    assert!(matches!(error, Error::Config { .. }) && error.to_string().contains("int8"), "{error}");
    drop(server);
}
