//! What a session promises over turns, over restarts of what it talks to, and when it is dropped.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use common::{Fault, builder, connect, find, kv, load, range, save, start, tokens};
use kvasir_client::{
    Deadline, Error, Kvasir, QualityFloor, SaveTicket,
    pages::HostPages,
    report::{ChunkOutcome, SaveOutcome, SaveReport},
    tuning::{LoadOptions, QueueConfig},
};
use kvasir_types::{Level, Loss, Plane, TokenRange};

async fn saved(ticket: SaveTicket) -> SaveReport {
    match ticket.outcome().await {
        SaveOutcome::Saved(report) => report,
        other => panic!("{other:?}"),
    }
}

/// Outcomes by chunk: stored or not.
fn stored(report: &SaveReport) -> Vec<bool> {
    report.chunks.iter().map(|chunk| matches!(chunk.outcome, ChunkOutcome::Stored { .. })).collect()
}

#[tokio::test]
async fn a_miss_is_an_empty_session_that_can_save() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(600, 1);
    let session = kvasir.session(&text).await;
    assert_eq!((session.matched_tokens(), session.chunks().len()), (0, 0));
    let pages = HostPages::new(kvasir.spec(), 16, 600).unwrap();
    let loaded =
        session.load([pages.table()], Deadline::within(Duration::from_secs(1))).unwrap().finish().await;
    assert_eq!((loaded.missing(), loaded.loaded_tokens()), (&[range(0, 600)][..], 0));
    assert!(loaded.report().is_none());
    assert_eq!(stored(&saved(session.save(&kv(&text), 600)).await), [true; 3]);
    assert_eq!(find(&kvasir, &text).await.matched_tokens(), 600);
    let empty = kvasir.session(&[]).await;
    let loaded = empty.load([pages.table()], Deadline::none()).unwrap().finish().await;
    assert!(loaded.missing().is_empty() && empty.lookup_error().is_none());
}

#[tokio::test]
async fn a_service_that_fails_or_is_slow_costs_no_more_than_the_deadline() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 2);
    save(&kvasir, &text).await;
    server.fail(Fault::ControlUnavailable(1000));
    let session = kvasir.session(&text).await;
    assert!(matches!(session.lookup_error(), Some(Error::Api(_))) && session.matched_tokens() == 0);
    server.release();
    server.fail(Fault::HoldLookups);
    let begun = Instant::now();
    let mut session = kvasir.session(&text).deadline(Deadline::within(Duration::from_millis(50))).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "a lookup is waited for until the deadline");
    assert!(session.lookup_error().is_some() && session.matched_tokens() == 0);
    server.release();
    assert_eq!(session.lookup().await.unwrap(), 512, "and asked for again");
    assert!(session.lookup_error().is_none());
}

/// What a load at reduced quality brought is beneath what is saved, without anybody saying so; errors add up until they are too many.
#[tokio::test]
async fn what_lies_beneath_is_carried_over_turns() {
    let server = start().await;
    let config = QueueConfig { kl_beneath_max: Some(0.05), ..QueueConfig::default() };
    let kvasir = builder(&server).save_queue(config).connect().await.unwrap();
    let mut text = tokens(256, 3);
    save(&kvasir, &text).await;
    let mut beneath = Vec::new();
    for turn in 0..3 {
        text.extend(tokens(256, 40 + turn));
        let session = find(&kvasir, &text).await;
        beneath.push(session.chunks().last().unwrap().kl_beneath);
        let pages = HostPages::new(kvasir.spec(), 16, text.len()).unwrap();
        let options = LoadOptions { last_token: false, ..LoadOptions::at_level(Level(1)) };
        let loaded = session.load([pages.table()], options).unwrap().finish().await;
        assert!(
            (loaded.loss().kl - 0.1 / 3.0 * f64::from(turn.min(1) + 1)).abs() < 1e-6,
            "{}",
            loaded.loss().kl
        );
        let outcome = session.save(&kv(&text), text.len()).outcome().await;
        match (turn, outcome) {
            (0, SaveOutcome::Saved(report)) => assert_eq!(stored(&report), [false, true]),
            // Twice the level's KL is above the bound.
            (1 | 2, SaveOutcome::Refused(_)) => {}
            (_, other) => panic!("{other:?}"),
        }
    }
    assert!(beneath[0] == 0.0 && (beneath[1] - 0.1 / 3.0).abs() < 1e-6, "{beneath:?}");
}

#[tokio::test]
async fn layers_that_were_handed_over_count_even_if_the_load_is_left() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 4);
    save(&kvasir, &text).await;
    let longer = [&text[..], &tokens(256, 41)].concat();
    let session = find(&kvasir, &longer).await;
    let pages = HostPages::new(kvasir.spec(), 16, 768).unwrap();
    let mut load = session.load([pages.table()], LoadOptions::at_level(Level(0))).unwrap();
    assert!(load.next_layers().await.is_some());
    drop(load);
    let report = session.save_now(&kv(&longer), 768, |_| ()).await.unwrap();
    assert_eq!(report.chunks[2].outcome, ChunkOutcome::TooLossy, "the engine may have begun on them");
    // Pages of the engine's own cache count, too.
    let session = find(&kvasir, &longer).await;
    session.reused(Loss { kl: 0.1, ..Loss::NONE });
    let report = session.save_now(&kv(&longer), 768, |_| ()).await.unwrap();
    assert_eq!(report.chunks[2].outcome, ChunkOutcome::TooLossy);
}

#[tokio::test]
async fn chunks_that_the_engine_has_are_not_loaded() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(768, 5);
    save(&kvasir, &text).await;
    let longer = [&text[..], &[1, 2, 3]].concat();
    let session = find(&kvasir, &longer).await;
    assert_eq!(session.chunks().len(), 3);
    // (tokens that the engine has, chunks that are read, tokens that were loaded)
    for (present, read, loaded_tokens) in
        [(0, 3, 768), (255, 3, 513), (256, 2, 512), (600, 1, 168), (768, 0, 0)]
    {
        let pages = HostPages::new(kvasir.spec(), 16, longer.len()).unwrap();
        let options = LoadOptions { present, ..LoadOptions::at_level(Level(2)) };
        let mut load = session.load([pages.table()], options).unwrap();
        let mut complete = 0;
        while let Some(ready) = load.next_layers().await {
            complete = ready.layers_complete;
        }
        let loaded = load.finish().await;
        assert_eq!(loaded.report().map_or(0, |report| report.chunks.len()), read, "{present}");
        assert_eq!(complete, if read > 0 { kvasir.spec().layers.len() } else { 0 }, "{present}");
        assert_eq!((loaded.loaded_tokens(), loaded.prefix_tokens()), (loaded_tokens, 768), "{present}");
        assert_eq!(loaded.missing(), [TokenRange { start: 768, end: 771 }], "{present}");
        let row = |token| pages.row(0, Plane::K, 0, token).iter().any(|byte| *byte != 0);
        assert_eq!([0, 256, 512, 767].map(row), [read > 2, read > 1, read > 0, read > 0], "{present}");
    }
}

#[tokio::test]
async fn nothing_below_the_wanted_quality_is_loaded() {
    let server = start().await;
    let all = connect(&server).await;
    let text = tokens(512, 5);
    let report = save(&all, &text).await;
    // Levels of 0.1, 0.1 / 3, … nats.
    let kvasir = builder(&server).quality(QualityFloor::KlAtMost(0.04)).connect().await.unwrap();
    let session = find(&kvasir, &text).await;
    assert_eq!(session.matched_tokens(), 512);
    let options = LoadOptions::at_level(Level(0));
    let (loaded, kv) = load(&session, options).await;
    let levels: Vec<_> = loaded.report().unwrap().chunks.iter().map(|chunk| chunk.level).collect();
    assert_eq!(levels, [Some(Level(1)); 2], "level 0 is asked for and is not good enough");
    assert_eq!(kv, common::reference(&all, &text, 1).await);
    // A damaged piece of level 1 must not end in level 0, which a load without a bound would take.
    let object = common::digest(&report, 0);
    let damage = session.chunks()[0].level_bytes[1] - 1;
    let damaged = async |kvasir: &Kvasir| {
        server.fail(Fault::Corrupt(object, damage, 10));
        let (loaded, _) = load(&find(kvasir, &text).await, LoadOptions::at_level(Level(1))).await;
        server.release();
        loaded.missing().to_vec()
    };
    assert_eq!(damaged(&all).await, []);
    assert_eq!(damaged(&kvasir).await, [range(0, 256)]);
    // A bound that no level keeps makes all of it a miss.
    let strict = builder(&server).quality(QualityFloor::KlAtMost(1e-9)).connect().await.unwrap();
    assert_eq!(find(&strict, &text).await.matched_tokens(), 0);
}

#[tokio::test]
async fn a_conversation_grows_in_one_session() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(1000, 6);
    let mut session = kvasir.session(&text[..300]).await;
    assert_eq!(stored(&saved(session.save(&kv(&text[..300]), 300)).await), [true, true]);
    session.extend(&text[300..700]);
    assert_eq!((session.tokens(), session.matched_tokens()), (&text[..700], 0));
    // Of the first chunk nothing is copied or sent: the session saved it.
    let report = saved(session.save(&kv(&text[..700]), 700)).await;
    assert_eq!(stored(&report), [false, true, true]);
    assert_eq!(session.lookup().await.unwrap(), 700);
    session.extend(&text[700..]);
    // A part of the session: the engine holds whole pages only.
    let report = saved(session.save(&kv(&text[..992]), 992)).await;
    assert_eq!(report.chunks.last().unwrap().tokens, range(768, 992));
    assert_eq!(find(&kvasir, &text).await.matched_tokens(), 992);
}

#[tokio::test]
async fn salts_and_adapters_match_only_themselves() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 7);
    let cache = kv(&text);
    let alice = kvasir.session(&text).salt("alice").await;
    alice.save_now(&cache, 512, |_| ()).await.unwrap();
    let adapted = kvasir.session(&text).adapter("poet@1f3a").await;
    adapted.save_now(&cache, 512, |_| ()).await.unwrap();
    assert_eq!(server.puts(), 4);
    let found = async |request: kvasir_client::SessionRequest<'_>| request.await.matched_tokens();
    assert_eq!(found(kvasir.session(&text)).await, 0);
    assert_eq!(found(kvasir.session(&text).salt("bob")).await, 0);
    assert_eq!(found(kvasir.session(&text).salt("alice")).await, 512);
    assert_eq!(found(kvasir.session(&text).adapter("poet@1f3a")).await, 512);
    assert_eq!(found(kvasir.session(&text).adapter("poet@1f3b")).await, 0);
    assert_eq!(found(kvasir.session(&text).adapter("poet@1f3a").salt("alice")).await, 0);
    let another = connect(&server).await;
    let session = another.session(&text).salt("alice").await;
    let (loaded, back) = load(&session, LoadOptions::at_level(Level(u8::MAX))).await;
    assert_eq!((loaded.loaded_tokens(), back.tokens()), (512, 512), "known by its name to every client");
    // Where the service cannot be asked for the salt's namespace, the session is a miss, and says so when it should save.
    server.fail(Fault::ControlUnavailable(1000));
    let carol = kvasir.session(&text).salt("carol").await;
    assert!(carol.lookup_error().is_some());
    let outcome = carol.save(&cache, 512).outcome().await;
    assert!(matches!(outcome, SaveOutcome::Refused(_)), "{outcome:?}");
}

#[tokio::test]
async fn secrets_are_in_no_description() {
    let server = start().await;
    let builder = builder(&server).token("sesame");
    assert!(!format!("{builder:?}").contains("sesame"), "{builder:?}");
    let kvasir = builder.connect().await.unwrap();
    let request = format!("{:?}", kvasir.session(&[]).salt("sesame"));
    assert!(request.contains("***") && !request.contains("115, 101"), "{request}");
}

#[tokio::test]
async fn a_session_outlives_the_rotation_of_its_namespace() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 8);
    save(&kvasir, &text).await;
    let old = find(&kvasir, &text).await;
    let fresh = kvasir.session(&tokens(512, 80)).await;
    server.rotate_salts();
    // What it found is still there, and what it builds upon is where it found it.
    let (loaded, _) = load(&old, LoadOptions::at_level(Level(1))).await;
    assert_eq!(loaded.loaded_tokens(), 512);
    assert_eq!(stored(&old.save_now(&kv(&text), 512, |_| ()).await.unwrap()), [false, false]);
    // The client hears of the new root from a service that it asks anew, and sessions that it opened before save under it.
    let another = connect(&server).await;
    assert_eq!(find(&another, &text).await.matched_tokens(), 0);
    fresh.save_now(&kv(fresh.tokens()), 512, |_| ()).await.unwrap();
    assert_eq!(find(&kvasir, fresh.tokens()).await.matched_tokens(), 512);
}

/// A session that was opened before a rotation saves all its turns under the new root.
#[tokio::test]
async fn all_turns_after_a_rotation_are_found() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let (mark, text) = (tokens(512, 82), tokens(768, 81));
    save(&kvasir, &mark).await;
    let session = kvasir.session(&text).await;
    server.rotate_salts();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    // The client hears of the new root.
    while find(&kvasir, &mark).await.matched_tokens() > 0 {
        tokio::task::yield_now().await;
    }
    for turn in [512, 768] {
        session.save_now(&kv(&text), turn, |_| ()).await.unwrap();
    }
    assert_eq!(find(&kvasir, &text).await.matched_tokens(), 768);
}

#[tokio::test]
async fn a_bucket_that_was_emptied_is_filled_again() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 9);
    save(&kvasir, &text).await;
    let session = find(&kvasir, &text).await;
    server.clear();
    let (loaded, _) = load(&session, LoadOptions::at_level(Level(1))).await;
    assert_eq!(loaded.missing(), [range(0, 512)]);
    // Model and profile are gone, too.
    let again = kvasir.session(&text).await;
    assert_eq!(stored(&again.save_now(&kv(&text), 512, |_| ()).await.unwrap()), [true, true]);
    assert_eq!(find(&kvasir, &text).await.matched_tokens(), 512);
}

#[tokio::test]
async fn a_profile_that_is_met_is_fetched_for_the_next_lookup() {
    let server = start().await;
    let writer = connect(&server).await;
    let text = tokens(512, 10);
    save(&writer, &text).await;
    let profile = common::other_profile();
    let reader = Kvasir::builder(server.url()).model(common::spec()).profile(profile).namespace("test");
    let reader = reader.quality(QualityFloor::Adaptive).connect().await.unwrap();
    assert_eq!(find(&reader, &text).await.matched_tokens(), 0, "its profile is not here yet");
    let begun = Instant::now();
    while find(&reader, &text).await.matched_tokens() < 512 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::task::yield_now().await;
    }
    let (loaded, _) = load(&find(&reader, &text).await, LoadOptions::at_level(Level(1))).await;
    assert_eq!(loaded.loaded_tokens(), 512);
}

#[tokio::test]
async fn a_dropped_ticket_cancels_and_a_detached_one_goes_on() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let texts: Vec<_> = (0..3).map(|i| tokens(512, 60 + i)).collect();
    // Nothing is awaited between these, so nothing has begun.
    for (i, text) in texts.iter().enumerate() {
        let session = kvasir.session(text).without_lookup().await;
        let ticket = session.save(&kv(text), 512);
        if i == 1 { ticket.in_background() } else { drop(ticket) }
    }
    kvasir.drain().await;
    let stats = kvasir.saves();
    assert_eq!((stats.saved, stats.cancelled, stats.bytes, stats.waiting), (1, 2, 0, 0));
    assert_eq!((server.puts(), find(&kvasir, &texts[1]).await.matched_tokens()), (2, 512));
    // One that is under way: what was acknowledged stays.
    server.fail(Fault::HoldLookups);
    let session = kvasir.session(&texts[0]).without_lookup().await;
    let ticket = session.save(&kv(&texts[0]), 512);
    while kvasir.saves().waiting > 0 {
        tokio::task::yield_now().await;
    }
    drop(ticket);
    server.release();
    kvasir.drain().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((server.puts(), kvasir.saves().cancelled), (2, 3));
}

/// Sessions, loads and saves that are opened and dropped at every stage leave no task, no memory and no connection behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_sessions_leak_nothing() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(256, 11);
    save(&kvasir, &text).await;
    let longer = [&text[..], &tokens(16, 12)].concat();
    let pages = HostPages::new(kvasir.spec(), 16, longer.len()).unwrap();
    let cache = kv(&longer);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let files = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let round = async |number: u32| {
        let session = kvasir.session(&longer).await;
        match number % 5 {
            0 => {}
            1 => drop(session.load([pages.table()], Deadline::none())),
            2 => drop(session.load([pages.table()], LoadOptions::at_level(Level(0))).unwrap().finish().await),
            3 => drop(session.save(&cache, longer.len())),
            _ => {
                let mut load = session.load([pages.table()], Deadline::none()).unwrap();
                load.next_layers().await;
            }
        }
    };
    let before = (tasks(), files());
    for number in 0..10_000 {
        round(number).await;
    }
    kvasir.drain().await;
    // Connections that are kept, and what ends a moment later, are far fewer than sessions.
    let begun = Instant::now();
    while tasks() > before.0 + 100 || files() > before.1 + 100 {
        let now = (tasks(), files());
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{before:?} tasks and files before, {now:?} after"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(kvasir.saves().bytes, 0);
}
