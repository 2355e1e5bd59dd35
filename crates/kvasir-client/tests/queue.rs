//! Stores in the background.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{collections::BTreeSet, sync::Arc};

use common::{Fault, client, kv, start, tokens};
use kvasir_client::{
    AdmissionPolicy, ChunkOutcome, DropPolicy, QueueConfig, StoreOptions, StoreOutcome, StoreQueue,
    StoreRefusal, StoreTicket,
};

async fn refusal(ticket: StoreTicket) -> StoreRefusal {
    match ticket.outcome().await {
        StoreOutcome::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

fn of_class(class: &str) -> StoreOptions {
    StoreOptions { class: class.into(), ..StoreOptions::default() }
}

#[tokio::test]
async fn what_is_offered_is_stored_and_found_again() {
    let (address, service) = start().await;
    let client = client(address).await;
    let queue = StoreQueue::new(client.clone(), QueueConfig::default());
    let text = tokens(700, 1);
    let cache = kv(&text);
    let first = queue.store(&text[..512], &cache.slice(0..512), StoreOptions::default());
    let grown = StoreOptions { stored_tokens: 512, ..StoreOptions::default() };
    let second = queue.store_shared(&text, Arc::new(cache), grown);
    assert!(matches!(first.outcome().await, StoreOutcome::Stored(report) if report.chunks.len() == 2));
    let StoreOutcome::Stored(report) = second.outcome().await else { panic!("stored") };
    let there = |c: &kvasir_client::ChunkStoreReport| c.outcome == ChunkOutcome::AlreadyThere;
    assert_eq!(report.chunks.iter().map(there).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(client.lookup(&text).await.unwrap().matched_tokens(), 700);
    // What is stored already is not sent again.
    let puts = *service.puts.lock().unwrap();
    drop(queue.store(&text, &kv(&text), StoreOptions::default()));
    queue.drain().await;
    let stats = queue.stats();
    assert_eq!((*service.puts.lock().unwrap(), stats.stored, stats.bytes, stats.waiting), (puts, 3, 0, 0));
}

#[tokio::test]
async fn only_what_is_likely_to_be_reused_is_admitted() {
    let (address, _service) = start().await;
    let admission = AdmissionPolicy {
        tokens_min: 300,
        classes: Some(BTreeSet::from(["chat".to_owned()])),
        kl_beneath_max: Some(0.01),
    };
    let queue = StoreQueue::new(client(address).await, QueueConfig { admission, ..QueueConfig::default() });
    let text = tokens(400, 2);
    let cache = kv(&text);
    let short = queue.store(&text[..256], &cache.slice(0..256), of_class("chat"));
    assert_eq!(refusal(short).await, StoreRefusal::TooShort { tokens: 256, tokens_min: 300 });
    assert_eq!(refusal(queue.store(&text, &cache, of_class("batch"))).await, StoreRefusal::Class);
    let lossy = StoreOptions { kl_beneath: 0.02, ..of_class("chat") };
    assert!(matches!(refusal(queue.store(&text, &cache, lossy)).await, StoreRefusal::KlBeneath { .. }));
    assert!(matches!(queue.store(&text, &cache, of_class("chat")).outcome().await, StoreOutcome::Stored(_)));
    assert_eq!((queue.stats().refused, queue.stats().stored), (3, 1));
}

#[tokio::test]
async fn a_full_queue_drops_by_its_policy_and_says_so() {
    let (address, _service) = start().await;
    let client = client(address).await;
    let texts: Vec<Vec<u32>> = (0..4).map(|i| tokens(256, 30 + i)).collect();
    for policy in [DropPolicy::Oldest, DropPolicy::Newest] {
        let config = QueueConfig { jobs_max: 2, drop_policy: policy, ..QueueConfig::default() };
        let queue = StoreQueue::new(client.clone(), config);
        // Nothing is awaited between the offers, so the worker cannot take one: two wait, two find it full.
        let tickets: Vec<_> =
            texts.iter().map(|text| queue.store(text, &kv(text), StoreOptions::default())).collect();
        let mut kept = Vec::new();
        for ticket in tickets {
            kept.push(matches!(ticket.outcome().await, StoreOutcome::Stored(_)));
        }
        let expected = match policy {
            DropPolicy::Oldest => [false, false, true, true],
            DropPolicy::Newest => [true, true, false, false],
        };
        assert_eq!(kept, expected, "{policy:?}");
        assert_eq!((queue.stats().dropped, queue.stats().bytes), (2, 0));
    }
    // One job that is larger than all the memory there is.
    let queue = StoreQueue::new(client, QueueConfig { bytes_max: 1000, ..QueueConfig::default() });
    let ticket = queue.store(&texts[0], &kv(&texts[0]), StoreOptions::default());
    assert_eq!(refusal(ticket).await, StoreRefusal::QueueFull);
}

#[tokio::test]
async fn an_interrupted_store_is_resumed_where_it_stopped() {
    let (address, service) = start().await;
    let client = client(address).await;
    let text = tokens(512, 4);
    client.store_kv(&text[..256], &kv(&text[..256]), |_| ()).await.unwrap();
    // More failures than one request retries.
    service.faults.lock().unwrap().push(Fault::PutUnavailable(5));
    let queue = StoreQueue::new(client, QueueConfig::default());
    let outcome = queue.store(&text, &kv(&text), StoreOptions::default()).outcome().await;
    let StoreOutcome::Stored(report) = outcome else { panic!("{outcome:?}") };
    assert_eq!(report.chunks[0].outcome, ChunkOutcome::AlreadyThere);
    assert_eq!(queue.stats().resumed, 1);
    assert_eq!(*service.puts.lock().unwrap(), 2, "each chunk was stored once");
}

#[tokio::test]
async fn dropping_the_queue_ends_what_waits() {
    let (address, _service) = start().await;
    let queue = StoreQueue::new(client(address).await, QueueConfig::default());
    let text = tokens(256, 5);
    let ticket = queue.store(&text, &kv(&text), StoreOptions::default());
    drop(queue);
    assert_eq!(refusal(ticket).await, StoreRefusal::Closed);
}
