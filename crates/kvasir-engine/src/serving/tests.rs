use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use super::*;
use crate::{Model, PagePool, PagedKv, Sampling};

static MODEL: LazyLock<Arc<Model>> =
    LazyLock::new(|| Arc::new(Model::kvasir_tiny().expect("embedded model")));

fn tokens() -> Vec<u32> {
    MODEL.tokenizer().encode(include_str!("../../tests/data/harbour.txt")).unwrap()
}

fn scheduler(pages: usize, limits: SchedulerLimits) -> (Scheduler, Arc<PagePool>) {
    let pool = PagePool::new(MODEL.spec(), 16, pages).unwrap();
    (Scheduler::new(Arc::clone(&MODEL), pool.clone(), limits), pool)
}

fn request(prompt: &[u32], count: usize) -> Request {
    Request { prompt: prompt.to_vec(), count, sampling: Sampling::Greedy }
}

/// Steps until nothing is open; answers by request.
fn run(scheduler: &mut Scheduler) -> (BTreeMap<RequestId, Vec<u32>>, Vec<Event>) {
    let (mut answers, mut all) = (BTreeMap::<_, Vec<u32>>::new(), Vec::new());
    for _ in 0..500 {
        if scheduler.open() == 0 {
            break;
        }
        for event in scheduler.step().unwrap() {
            if let Event::Token { id, token } = event {
                answers.entry(id).or_default().push(token);
            }
            all.push(event);
        }
    }
    assert_eq!(scheduler.open(), 0, "everything ends");
    (answers, all)
}

fn alone(prompt: &[u32], count: usize) -> Vec<u32> {
    MODEL.generate_with_kv(&mut MODEL.new_kv().unwrap(), prompt, count, &Sampling::Greedy).unwrap()
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
    let finished = events.iter().filter(|e| matches!(e, Event::Finished { .. })).count();
    assert_eq!(finished, cases.len());
}

#[test]
fn finished_sequences_serve_as_prefixes() {
    let text = tokens();
    let (mut scheduler, pool) = scheduler(200, SchedulerLimits::default());
    scheduler.submit(request(&text[..100], 4), None).unwrap();
    run(&mut scheduler);
    let held = pool.pages_in_use();
    assert_eq!(scheduler.prefixes().len(), 1);
    // Shares 96 tokens = 6 full blocks with the first, then goes elsewhere.
    let prompt = [&text[..100], &text[300..320]].concat();
    scheduler.submit(request(&prompt, 4), None).unwrap();
    let (answers, events) = run(&mut scheduler);
    assert!(events.contains(&Event::Started { id: RequestId(2), reused_tokens: 96 }), "{events:?}");
    assert_eq!(answers[&RequestId(2)], alone(&prompt, 4));
    assert!(pool.pages_in_use() - held <= 3, "only what is not shared takes pages");
    // A prompt that is held in full still computes its last token.
    scheduler.submit(request(&text[..96], 2), None).unwrap();
    let (answers, events) = run(&mut scheduler);
    assert!(events.contains(&Event::Started { id: RequestId(3), reused_tokens: 95 }));
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
    assert!(pool.pages_in_use() <= 12 && scheduler.prefixes().len() == 1, "older prefixes made room");
}

#[test]
fn a_loaded_cache_is_used_and_a_cancelled_request_gives_its_pages_back() {
    let text = tokens();
    let (mut scheduler, pool) = scheduler(100, SchedulerLimits::default());
    let mut kv = PagedKv::new(pool.clone());
    MODEL.extend_kv(&mut kv, &text[..64]).unwrap();
    let id = scheduler.submit(request(&text[..80], 3), Some(kv)).unwrap();
    let other = scheduler.submit(request(&text[100..200], 50), None).unwrap();
    let events = scheduler.step().unwrap();
    assert!(events.contains(&Event::Started { id, reused_tokens: 64 }));
    assert!(matches!(scheduler.cancel(other), Some(Event::Finished { .. })));
    assert!(scheduler.cancel(other).is_none());
    let (answers, _) = run(&mut scheduler);
    let first = events.iter().filter(|e| matches!(e, Event::Token { id: i, .. } if *i == id)).count();
    assert_eq!(answers[&id].len() + first, 3);
    assert_eq!(pool.pages_in_use(), 82usize.div_ceil(16), "only the finished prefix");
}

#[test]
fn loaded_caches_do_not_lock_each_other_out() {
    let text = tokens();
    let (mut scheduler, pool) = scheduler(8, SchedulerLimits::default());
    for start in [0, 200] {
        let mut kv = PagedKv::new(pool.clone());
        MODEL.extend_kv(&mut kv, &text[start..start + 64]).unwrap();
        scheduler.submit(request(&text[start..start + 100], 2), Some(kv)).unwrap();
    }
    assert_eq!(pool.pages_free(), 0);
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
