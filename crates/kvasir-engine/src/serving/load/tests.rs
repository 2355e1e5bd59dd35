use kvasir_codec::KvSink as _;
use kvasir_types::{Loss, Plane, TokenRange};

use super::{
    super::{
        SchedulerLimits,
        tests::{MODEL, alone, request, run, scheduler, tokens},
    },
    *,
};

const MATCHED: usize = 192;
const PROMPT: usize = 260;

/// A load whose first layer is in place; of `hole`, later layers never come.
async fn layer_wise(hole: Option<std::ops::Range<usize>>) {
    let text = tokens();
    let (mut scheduler, _) = scheduler(100, SchedulerLimits::default());
    let full = MODEL.calculate_kv(&text[..MATCHED]).unwrap();
    let kv = scheduler.allocate(PROMPT).unwrap();
    let mut sink = kv.sink(0).unwrap();
    let layers = 0..MODEL.config().layers;
    for (layer, plane, head) in layers.flat_map(|l| Plane::ALL.map(|p| [(l, p, 0), (l, p, 1)])).flatten() {
        let mut rows = vec![0.0; MATCHED * 64];
        full.read_head(layer, plane, head, 0..MATCHED, &mut rows);
        if let Some(hole) = hole.clone().filter(|_| layer > 0) {
            rows[hole.start * 64..hole.end * 64].fill(f32::NAN);
        }
        sink.write(layer, plane, head, 0, &rows);
    }
    sink.finish().unwrap();

    let mut start = LayerWiseStart::new(&MODEL, kv, text[..PROMPT].into(), MATCHED);
    let first = LayerReady {
        rank: 0,
        layers: 0..1,
        token_range: TokenRange { start: 0, end: MATCHED as u64 },
        level: Level(0),
        loss: Loss::NONE,
        layers_complete: 1,
    };
    start.ready(&LayerReady { layers_complete: 0, ..first.clone() });
    assert!(!start.is_under_way(), "never on a prefix of which something is missing already");
    start.ready(&first);
    assert!(start.is_under_way());
    let whole = hole.is_none();
    let kv = start.finish(whole).await.unwrap();
    let matched = if whole { PROMPT - 1 } else { MATCHED };
    assert_eq!(kv.len(), if whole { matched } else { 0 }, "nothing counts of a start that was given up");

    let holes: Vec<_> = hole.into_iter().collect();
    let missing: usize = holes.iter().map(|hole| hole.len()).sum();
    let loaded = LoadedPrefix { kv, matched, holes, shareable: usize::MAX };
    assert_eq!(loaded.reused_tokens(), matched - missing);
    let id = scheduler.submit(request(&text[..PROMPT], 5), Some(loaded)).unwrap();
    let (answers, _) = run(&mut scheduler);
    assert_eq!(answers[&id], alone(&text[..PROMPT], 5));
    let computed = MODEL.calculate_kv(&text[..PROMPT]).unwrap();
    let kept = scheduler.prefix(&text[..PROMPT]).unwrap();
    assert_eq!(kept.len(), 256, "whole pages");
    assert_eq!(kept.digest(), computed.fork(256).unwrap().digest(), "bit for bit what computing gives");
}

#[tokio::test]
async fn a_suffix_is_computed_while_later_layers_are_on_their_way() {
    layer_wise(None).await;
}

#[tokio::test]
async fn a_suffix_begun_on_a_load_that_then_fails_is_computed_anew() {
    // Pieces of a few tokens go through other matrix kernels, whose last bits differ: these are long enough.
    for hole in [64..128, 0..64, 100..MATCHED] {
        layer_wise(Some(hole)).await;
    }
}

#[test]
fn the_queue_is_expected_to_be_as_long_as_it_was() {
    let queue = QueueTime::default();
    let expected = |waited: Duration| {
        (0..50).for_each(|_| queue.observe(waited));
        queue.expected().as_millis()
    };
    assert_eq!(expected(Duration::ZERO), 0);
    assert_eq!(expected(Duration::from_millis(80)), 80);
    assert_eq!(expected(Duration::ZERO), 0);
    let options = RemoteUse::default().options(Duration::from_millis(80));
    assert_eq!(options.suffix_time, Some(Duration::from_millis(80)));
}
