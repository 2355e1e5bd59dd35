use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use kvasir_codec::KvSink as _;
use kvasir_types::{ModelSpec, Plane};
use proptest::prelude::*;

use super::*;
use crate::{Model, PagePool, PagedKv, Sampling, error::EngineError};

pub(super) static MODEL: LazyLock<Arc<Model>> =
    LazyLock::new(|| Arc::new(Model::kvasir_tiny().expect("embedded model")));

pub(super) fn tokens() -> Vec<u32> {
    MODEL.tokenizer().encode(include_str!("../../tests/data/harbour.txt")).unwrap()
}

pub(super) fn scheduler(pages: usize, limits: SchedulerLimits) -> (Scheduler, Arc<PagePool>) {
    let pool = PagePool::new(MODEL.spec(), 16, pages).unwrap();
    (Scheduler::new(Arc::clone(&MODEL), pool.clone(), limits), pool)
}

pub(super) fn request(prompt: &[u32], count: usize) -> Request {
    Request { prompt: prompt.to_vec(), count, sampling: Sampling::Greedy }
}

/// Steps until nothing is open; answers by request.
pub(super) fn run(scheduler: &mut Scheduler) -> (BTreeMap<RequestId, Vec<u32>>, Vec<SchedulerEvent>) {
    let (mut answers, mut all) = (BTreeMap::<_, Vec<u32>>::new(), Vec::new());
    for _ in 0..500 {
        if scheduler.open() == 0 {
            break;
        }
        for event in scheduler.step().unwrap() {
            if let SchedulerEvent::Token { id, token } = event {
                answers.entry(id).or_default().push(token);
            }
            all.push(event);
        }
    }
    assert_eq!(scheduler.open(), 0, "everything ends");
    (answers, all)
}

pub(super) fn alone(prompt: &[u32], count: usize) -> Vec<u32> {
    MODEL.generate_with_kv(&mut MODEL.new_kv().unwrap(), prompt, count, &Sampling::Greedy).unwrap()
}

#[test]
fn an_engine_takes_no_pool_of_another_model() {
    let mut spec = ModelSpec::clone(MODEL.spec());
    spec.layers.pop();
    let pool = PagePool::new(&spec, 16, 4).unwrap();
    let started = Engine::start_over(Arc::clone(&MODEL), pool, SchedulerLimits::default(), None);
    assert!(matches!(started, Err(EngineError::Config(_))), "{started:?}");
}

#[test]
fn batched_requests_answer_as_they_do_alone() {
    let text = tokens();
    let limits = SchedulerLimits { sequences: 3, step_tokens: 40, waiting: 10 };
    let (mut scheduler, _) = scheduler(200, limits);
    let cases = [(&text[..90], 6), (&text[200..201], 9), (&text[50..180], 3), (&text[10..35], 5)];
    let ids: Vec<_> = cases.iter().map(|(p, n)| scheduler.submit(request(p, *n), None).unwrap()).collect();
    let (answers, events) = run(&mut scheduler);
    for (id, (prompt, count)) in ids.iter().zip(cases) {
        assert_eq!(answers[id], alone(prompt, count));
    }
    let finished = events.iter().filter(|e| matches!(e, SchedulerEvent::Finished { .. })).count();
    assert_eq!(finished, cases.len());
}

#[test]
fn finished_sequences_serve_as_prefixes() {
    let text = tokens();
    let (mut scheduler, pool) = scheduler(200, SchedulerLimits::default());
    scheduler.submit(request(&text[..100], 4), None).unwrap();
    run(&mut scheduler);
    let held = pool.pages_in_use();
    assert_eq!((scheduler.prefixes().pages(), held), (6, 6), "103 tokens are cached: six whole pages");
    // Shares 96 tokens = 6 full blocks with the first, then goes elsewhere.
    let prompt = [&text[..100], &text[300..320]].concat();
    scheduler.submit(request(&prompt, 4), None).unwrap();
    let (answers, events) = run(&mut scheduler);
    assert!(events.contains(&SchedulerEvent::Started { id: RequestId(2), reused_tokens: 96 }), "{events:?}");
    assert_eq!(answers[&RequestId(2)], alone(&prompt, 4));
    assert!(pool.pages_in_use() - held <= 3, "only what is not shared takes pages");
    // A prompt that is held in full still computes its last token, and with it its last page.
    scheduler.submit(request(&text[..96], 2), None).unwrap();
    let (answers, events) = run(&mut scheduler);
    assert!(events.contains(&SchedulerEvent::Started { id: RequestId(3), reused_tokens: 80 }));
    assert_eq!(answers[&RequestId(3)], alone(&text[..96], 2));
}

#[test]
fn a_small_pool_evicts_prefixes_and_makes_requests_wait() {
    let text = tokens();
    // 12 pages: one request of 130 + 10 tokens takes 9.
    let (mut scheduler, pool) = scheduler(12, SchedulerLimits::default());
    let prompts = [&text[..130], &text[130..260], &text[260..390]];
    let ids = prompts.map(|p| scheduler.submit(request(p, 10), None).unwrap());
    let (answers, _) = run(&mut scheduler);
    for (id, prompt) in ids.iter().zip(prompts) {
        assert_eq!(answers[id], alone(prompt, 10));
    }
    assert!(
        pool.pages_in_use() <= 12 && scheduler.prefixes().held(prompts[2]) == 128,
        "older prefixes made room"
    );
}

#[test]
fn a_loaded_cache_is_used_and_a_cancelled_request_gives_its_pages_back() {
    let text = tokens();
    let (mut scheduler, pool) = scheduler(100, SchedulerLimits::default());
    let mut kv = PagedKv::new(pool.clone());
    MODEL.extend_kv(&mut kv, &text[..64]).unwrap();
    let id = scheduler.submit(request(&text[..80], 3), Some(LoadedPrefix::whole(kv))).unwrap();
    let other = scheduler.submit(request(&text[100..200], 50), None).unwrap();
    let events = scheduler.step().unwrap();
    assert!(events.contains(&SchedulerEvent::Started { id, reused_tokens: 64 }));
    assert!(matches!(scheduler.cancel(other), Some(SchedulerEvent::Finished { .. })));
    assert!(scheduler.cancel(other).is_none());
    let (answers, _) = run(&mut scheduler);
    let first =
        events.iter().filter(|e| matches!(e, SchedulerEvent::Token { id: i, .. } if *i == id)).count();
    assert_eq!(answers[&id].len() + first, 3);
    assert_eq!(pool.pages_in_use(), 82 / 16, "only the whole pages of the finished prefix");
}

#[test]
fn a_request_that_is_stopped_leaves_its_cache_as_a_prefix() {
    let text = tokens();
    let (mut whole, _) = scheduler(100, SchedulerLimits::default());
    let id = whole.submit(request(&text[..40], 30), None).unwrap();
    let sequence = [&text[..40], &run(&mut whole).0[&id]].concat();

    let (mut scheduler, pool) = scheduler(100, SchedulerLimits::default());
    let id = scheduler.submit(request(&text[..40], 100), None).unwrap();
    assert_eq!(scheduler.finish(id), None, "it does not run yet");
    let mut tokens = 0;
    while tokens < 30 {
        let events = scheduler.step().unwrap();
        tokens += events.iter().filter(|event| matches!(event, SchedulerEvent::Token { .. })).count();
    }
    assert_eq!(scheduler.finish(id), Some(SchedulerEvent::Finished { id, reason: FinishReason::Stopped }));
    assert_eq!((scheduler.finish(id), scheduler.open(), pool.pages_in_use()), (None, 0, 4), "69 are cached");
    let of = |scheduler: &mut Scheduler| scheduler.prefix(&sequence).map(|kv| (kv.len(), kv.digest()));
    assert_eq!(of(&mut scheduler), of(&mut whole), "as if it had asked for 30");
}

#[test]
fn loaded_caches_do_not_lock_each_other_out() {
    let text = tokens();
    let (mut scheduler, pool) = scheduler(8, SchedulerLimits::default());
    for start in [0, 200] {
        let mut kv = PagedKv::new(pool.clone());
        MODEL.extend_kv(&mut kv, &text[start..start + 64]).unwrap();
        scheduler.submit(request(&text[start..start + 100], 2), Some(LoadedPrefix::whole(kv))).unwrap();
    }
    assert_eq!(pool.pages_in_use(), pool.pages_max());
    let (answers, _) = run(&mut scheduler);
    assert_eq!(answers[&RequestId(2)], alone(&text[200..300], 2));
}

#[test]
fn what_can_never_run_is_refused() {
    let limits = SchedulerLimits { waiting: 1, ..SchedulerLimits::default() };
    let (mut scheduler, _) = scheduler(4, limits);
    assert_eq!(scheduler.submit(request(&[], 1), None), Err(SubmitError::Empty));
    assert_eq!(scheduler.submit(request(&[1], 0), None), Err(SubmitError::Empty));
    let long = scheduler.submit(request(&[1; 60], 6), None);
    assert!(matches!(long, Err(SubmitError::TooLong { tokens: 66, pool: 64, .. })));
    assert!(matches!(
        scheduler.submit(request(&[7777], 1), None),
        Err(SubmitError::Token { token: 7777, .. })
    ));
    scheduler.submit(request(&[1; 60], 5), None).unwrap();
    assert_eq!(scheduler.submit(request(&[1], 1), None), Err(SubmitError::Busy { waiting: 1 }));
}

#[test]
fn what_a_load_left_out_is_computed_in_place() {
    let text = tokens();
    let (mut scheduler, pool) =
        scheduler(100, SchedulerLimits { step_tokens: 24, ..SchedulerLimits::default() });
    let full = MODEL.calculate_kv(&text[..200]).unwrap();
    let kv = scheduler.allocate(240).unwrap();
    let mut sink = kv.sink(0).unwrap();
    let holes = vec![0..16, 100..150];
    let layers = 0..MODEL.config().layers;
    for (layer, plane, head) in layers.flat_map(|l| Plane::ALL.map(|p| [(l, p, 0), (l, p, 1)])).flatten() {
        let mut rows = vec![0.0; 200 * 64];
        full.read_head(layer, plane, head, 0..200, &mut rows);
        holes.iter().for_each(|hole| rows[hole.start * 64..hole.end * 64].fill(f32::NAN));
        sink.write(layer, plane, head, 0, &rows);
    }
    sink.finish().unwrap();
    let loaded = LoadedPrefix { kv, matched: 200, holes, shareable: 64 };
    let id = scheduler.submit(request(&text[..220], 5), Some(loaded)).unwrap();
    let (answers, events) = run(&mut scheduler);
    assert!(events.contains(&SchedulerEvent::Started { id, reused_tokens: 134 }));
    assert_eq!(answers[&id], alone(&text[..220], 5));
    assert_eq!(pool.pages_in_use(), 4, "only what may be shared is kept");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Against a list of what was inserted: the longest common run of whole pages, and nothing is lost or leaked.
    #[test]
    fn the_radix_tree_finds_what_a_list_finds(
        prompts in prop::collection::vec(prop::collection::vec(0u32..2, 0..14), 1..12),
        evictions in 0usize..20,
    ) {
        let pool = PagePool::new(MODEL.spec(), 2, 200).unwrap();
        let mut cache = PrefixCache::new(pool.clone());
        for (index, prompt) in prompts.iter().enumerate() {
            let common = |other: &Vec<u32>| {
                other.chunks_exact(2).zip(prompt.chunks_exact(2)).take_while(|(a, b)| a == b).count() * 2
            };
            let longest = prompts[..index].iter().map(common).max().unwrap_or(0);
            prop_assert_eq!(cache.held(prompt), longest);
            let mut kv = cache.lookup(prompt).unwrap_or_else(|| PagedKv::new(pool.clone()));
            prop_assert_eq!(kv.len(), longest);
            kv.reserve(prompt.len()).unwrap();
            kv.commit(prompt.len()).unwrap();
            cache.insert(prompt, &kv);
        }
        let held = cache.pages();
        prop_assert_eq!(pool.pages_in_use(), held);
        prop_assert_eq!((0..evictions).filter(|_| cache.evict()).count(), evictions.min(held));
        prop_assert_eq!(pool.pages_in_use(), held - evictions.min(held));
        let last = &prompts[prompts.len() - 1];
        prop_assert!(evictions >= held || cache.pages() > 0);
        prop_assert!(cache.held(last) <= last.len());
        drop(cache);
        prop_assert_eq!(pool.pages_in_use(), 0);
    }
}
