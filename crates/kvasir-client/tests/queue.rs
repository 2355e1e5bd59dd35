//! Saves in the background.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use common::{Fault, builder, connect, find, kv, save, start, tokens};
use kvasir_client::{
    Error, Kvasir, SaveTicket,
    report::{ChunkOutcome, SaveOutcome, SaveRefusal},
    tuning::QueueConfig,
};
use kvasir_codec::KvSource;
use kvasir_types::{Loss, Plane};

async fn refusal(ticket: SaveTicket) -> SaveRefusal {
    match ticket.outcome().await {
        SaveOutcome::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// Offers the toy's cache of a text.
async fn offer(kvasir: &Kvasir, text: &[u32]) -> SaveTicket {
    kvasir.session(text).without_lookup().await.save(&kv(text), text.len())
}

#[tokio::test]
async fn what_is_offered_is_stored_and_found_again() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(700, 1);
    let first = offer(&kvasir, &text[..512]).await;
    let session = kvasir.session(&text).await;
    let second = session.save_shared(Arc::new(kv(&text)), 700);
    assert!(matches!(first.outcome().await, SaveOutcome::Saved(report) if report.chunks.len() == 2));
    let SaveOutcome::Saved(report) = second.outcome().await else { panic!("saved") };
    let there: Vec<_> = report.chunks.iter().map(|c| c.outcome == ChunkOutcome::AlreadyThere).collect();
    assert_eq!(there, [true, true, false]);
    assert_eq!(find(&kvasir, &text).await.matched_tokens(), 700);
    // What is stored already is not sent again.
    let puts = server.puts();
    offer(&kvasir, &text).await.in_background();
    kvasir.drain().await;
    let stats = kvasir.saves();
    assert_eq!((server.puts(), stats.saved, stats.bytes, stats.waiting), (puts, 3, 0, 0));
}

#[tokio::test]
async fn nothing_is_dropped_for_a_save_that_has_no_room_anyway() {
    let server = start().await;
    let config = QueueConfig { bytes_max: 700_000, ..QueueConfig::default() };
    let kvasir = builder(&server).save_queue(config).connect().await.unwrap();
    server.fail(Fault::HoldLookups);
    let working = offer(&kvasir, &tokens(512, 70)).await;
    while kvasir.saves().waiting > 0 {
        tokio::task::yield_now().await;
    }
    let waiting = offer(&kvasir, &tokens(256, 71)).await;
    assert_eq!(refusal(offer(&kvasir, &tokens(512, 72)).await).await, SaveRefusal::QueueFull);
    server.release();
    for ticket in [working, waiting] {
        assert!(matches!(ticket.outcome().await, SaveOutcome::Saved(_)));
    }
}

#[tokio::test]
async fn only_what_is_likely_to_be_reused_is_admitted() {
    let server = start().await;
    let config = QueueConfig { kl_beneath_max: Some(0.01), ..QueueConfig::default() };
    let kvasir = builder(&server).save_queue(config).connect().await.unwrap();
    let text = tokens(400, 2);
    let cache = kv(&text);
    let session = kvasir.session(&text).await;
    assert_eq!(refusal(session.save(&cache, 240)).await, SaveRefusal::TooShort { tokens: 240 });
    assert!(matches!(session.save(&cache, 400).outcome().await, SaveOutcome::Saved(_)));
    session.reused(Loss { kl: 0.02, ..Loss::NONE });
    assert!(matches!(refusal(session.save(&cache, 400)).await, SaveRefusal::KlBeneath { .. }));
    assert_eq!((kvasir.saves().refused, kvasir.saves().saved), (2, 1));
}

#[tokio::test]
async fn a_full_queue_drops_the_oldest_and_says_so() {
    let server = start().await;
    let texts: Vec<Vec<u32>> = (0..4).map(|i| tokens(256, 30 + i)).collect();
    let config = QueueConfig { jobs_max: 2, ..QueueConfig::default() };
    let kvasir = builder(&server).save_queue(config).connect().await.unwrap();
    let mut sessions = Vec::new();
    for text in &texts {
        sessions.push(kvasir.session(text).without_lookup().await);
    }
    // Nothing is awaited between the offers, so the worker cannot take one: two wait, two find it full.
    let tickets: Vec<_> =
        sessions.iter().zip(&texts).map(|(session, text)| session.save(&kv(text), 256)).collect();
    let mut kept = Vec::new();
    for ticket in tickets {
        kept.push(matches!(ticket.outcome().await, SaveOutcome::Saved(_)));
    }
    assert_eq!(kept, [false, false, true, true]);
    assert_eq!((kvasir.saves().dropped, kvasir.saves().bytes), (2, 0));
    // One job that is larger than all the memory there is.
    let config = QueueConfig { bytes_max: 1000, ..QueueConfig::default() };
    let kvasir = builder(&server).save_queue(config).connect().await.unwrap();
    assert_eq!(refusal(offer(&kvasir, &texts[0]).await).await, SaveRefusal::QueueFull);
}

#[tokio::test]
async fn an_interrupted_save_is_resumed_where_it_stopped() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 4);
    save(&kvasir, &text[..256]).await;
    // More failures than one request retries.
    server.fail(Fault::PutUnavailable(5));
    let outcome = offer(&kvasir, &text).await.outcome().await;
    let SaveOutcome::Saved(report) = outcome else { panic!("{outcome:?}") };
    assert_eq!(report.chunks[0].outcome, ChunkOutcome::AlreadyThere);
    assert_eq!(kvasir.saves().resumed, 1);
    assert_eq!(server.puts(), 2, "each chunk was stored once");
}

/// What is stored under the former root is never found.
#[tokio::test]
async fn a_save_that_is_resumed_after_a_bucket_was_lost_keeps_the_new_root() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 11);
    let session = kvasir.session(&text).without_lookup().await;
    server.clear();
    // More failures than one request retries.
    server.fail(Fault::PutUnavailable(5));
    let outcome = session.save(&kv(&text), 512).outcome().await;
    assert!(matches!(outcome, SaveOutcome::Saved(_)), "{outcome:?}");
    assert_eq!(kvasir.saves().resumed, 1);
    assert_eq!(find(&kvasir, &text).await.matched_tokens(), 512);
}

#[tokio::test]
async fn dropping_the_connection_ends_what_waits() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(256, 5);
    let session = kvasir.session(&text).without_lookup().await;
    let ticket = session.save(&kv(&text), 256);
    drop((session, kvasir));
    assert_eq!(refusal(ticket).await, SaveRefusal::Closed);
}

/// A cache that cannot be read.
struct Broken;

impl KvSource for Broken {
    fn read(&self, _: usize, _: Plane, _: usize, _: Range<usize>, _: &mut [f32]) {
        panic!("as an engine's code may");
    }
}

#[tokio::test]
async fn a_cache_that_panics_ends_its_own_save_alone() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(256, 10);
    let session = kvasir.session(&text).without_lookup().await;
    let outcome = session.save_shared(Arc::new(Broken), 256).outcome().await;
    assert!(matches!(outcome, SaveOutcome::Failed(Error::UnreadablePages { .. })), "{outcome:?}");
    // Where it is copied at once, the engine hears of it, and the queue's memory is as free as before.
    assert!(catch_unwind(AssertUnwindSafe(|| session.save(&Broken, 256))).is_err());
    assert_eq!(kvasir.saves().bytes, 0);
    assert!(matches!(offer(&kvasir, &text).await.outcome().await, SaveOutcome::Saved(_)));
}
