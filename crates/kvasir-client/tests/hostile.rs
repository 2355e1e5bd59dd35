//! A store and a service that send nonsense: wrong bytes never reach a sink, and the load ends.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{ops::Range, sync::Arc, time::Duration};

use common::{
    Fault, LAYERS, builder, connect, find,
    pages::{Pages, rows_of},
    range, reference, save, start,
    store::{Answer, Script, start as start_store},
    tokens,
};
use kvasir_client::{
    Deadline, Error, Kvasir,
    report::LoadReport,
    rest::{Client, ClientConfig},
    testing::Server,
    tuning::{Fixed, LoadOptions, Progressive, RecomputeModel},
};
use kvasir_codec::KvBuffer;
use kvasir_types::{Level, ObjectKey, Plane};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const TOKENS: usize = 768;

fn at(level: u8) -> LoadOptions {
    let recompute = Some(RecomputeModel::from_seconds(100.0, 1.0, 0.0));
    let policy = Box::new(Fixed::new(Level(level)));
    LoadOptions { policy, recompute, ..Deadline::within(Duration::from_secs(30)).into() }
}

/// A client that reads from the store where the service says so.
async fn direct(server: &Server) -> Kvasir {
    builder(server).direct_reads(true).connect().await.unwrap()
}

/// What a load at each level brings when nothing goes wrong. The profile is a direct one: decoding is exact.
async fn references(kvasir: &Kvasir, text: &[u32]) -> Vec<KvBuffer> {
    let mut all = Vec::new();
    for level in 0..find(kvasir, text).await.chunks()[0].level_bytes.len() {
        all.push(reference(kvasir, text, level as u8).await);
    }
    all
}

/// Loads, and compares everything that was handed over with what it has to be, and the rest with what was there.
async fn check(kvasir: &Kvasir, text: &[u32], references: &[KvBuffer], what: &str) -> LoadReport {
    let top = references.len() as u8 - 1;
    let pages = Pages::toy(TOKENS);
    pages.reassign(7.5);
    let mut load = find(kvasir, text).await.load([pages.table()], at(top)).unwrap();
    let end = Duration::from_secs(25);
    let mut ready = Vec::new();
    while let Some(layers) = tokio::time::timeout(end, load.next_layers()).await.expect(what) {
        ready.push(layers);
    }
    let loaded = load.finish().await;
    for (layer, plane, head) in
        (0..LAYERS).flat_map(|l| Plane::ALL.into_iter().flat_map(move |p| [(l, p, 0), (l, p, 1)]))
    {
        for part in ready.iter().filter(|part| part.layers.contains(&layer)) {
            let tokens = part.token_range.start as usize..part.token_range.end as usize;
            let right = rows_of(&references[part.level.index()], layer, plane, head, tokens.clone());
            assert_eq!(
                pages.rows(layer, plane, head, tokens),
                right,
                "{what}: layer {layer} {plane:?} {head}"
            );
        }
        for hole in loaded.missing() {
            let rows = pages.rows(layer, plane, head, hole.start as usize..hole.end as usize);
            assert!(rows.iter().all(|v| *v == 7.5), "{what}: nothing is written where nothing was loaded");
        }
    }
    let handed: u64 = ready.iter().filter(|r| r.layers.start == 0).map(|r| r.token_range.len()).sum();
    let left: u64 = loaded.missing().iter().map(|hole| hole.len()).sum();
    assert_eq!(handed + left, TOKENS as u64, "{what}: every token is loaded or missing");
    loaded.into_report().unwrap()
}

#[tokio::test]
async fn whatever_a_store_sends_the_right_bytes_come_through_the_service() {
    let server = start().await;
    let kvasir = direct(&server).await;
    let text = tokens(TOKENS, 1);
    save(&kvasir, &text).await;
    let references = references(&kvasir, &text).await;
    let good = Script::of(&[], Answer::Good);
    let store = start_store(&server, Arc::clone(&good)).await;
    server.presign(store, 600);
    let report = check(&kvasir, &text, &references, "good").await;
    assert_eq!(
        (report.reads.direct_bytes, report.reads.proxy_bytes),
        (report.bytes, 0),
        "nothing needs the service"
    );
    for bad in Answer::BAD {
        let script = Script::of(&[], bad);
        let store = start_store(&server, Arc::clone(&script)).await;
        server.presign(store, 600);
        let report = check(&kvasir, &text, &references, &format!("{bad:?}")).await;
        assert!(script.lock().unwrap().served > 0);
        // One bit or another object is only noticed when it is verified; then pieces are read again, up to a bound.
        match bad {
            Answer::Corrupt => {
                // How many pieces there are depends on the levels there was time for.
                assert_eq!((report.loaded_tokens(), report.reads.repairs > 0), (767, true), "{bad:?}")
            }
            Answer::Misdirected => assert!(report.reads.repairs > 0, "{bad:?}"),
            Answer::Long | Answer::Whole => assert_eq!(report.loaded_tokens(), 767, "{bad:?}"),
            _ => {
                assert_eq!(report.loaded_tokens(), 767, "{bad:?}");
                assert!(
                    report.reads.fallbacks > 0 && report.reads.proxy_bytes > 0,
                    "{bad:?}: {:?}",
                    report.reads
                );
            }
        }
    }
}

#[tokio::test]
async fn expired_urls_are_renewed_once_for_all_reads() {
    let server = start().await;
    let kvasir = direct(&server).await;
    let text = tokens(TOKENS, 2);
    save(&kvasir, &text).await;
    let references = references(&kvasir, &text).await;
    let script = Script::of(&[], Answer::Good);
    let store = start_store(&server, Arc::clone(&script)).await;
    // URLs say that they are valid, but the store accepts only those of the lookup after this one.
    server.presign(store, 600);
    script.lock().unwrap().accepts_from = server.lookups() + 2;
    let report = check(&kvasir, &text, &references, "refused").await;
    assert_eq!((report.reads.renewals, report.reads.fallbacks), (1, 0), "{:?}", report.reads);
    assert_eq!(report.reads.direct_bytes, report.bytes);
    // URLs that say they end at once are renewed before they are used, a bounded number of times.
    server.presign(store, 1);
    let report = check(&kvasir, &text, &references, "short-lived").await;
    assert!((1..=8).contains(&report.reads.renewals), "{:?}", report.reads);
    assert_eq!(report.loaded_tokens(), 767);
}

/// A read does not wait for the URL of another one, nor for its own, longer than for the store.
#[tokio::test]
async fn a_renewal_that_hangs_holds_up_no_load() {
    let server = start().await;
    let kvasir = direct(&server).await;
    let text = tokens(TOKENS, 7);
    save(&kvasir, &text).await;
    let store = start_store(&server, Script::of(&[], Answer::Good)).await;
    // Too short-lived to be used: each is renewed first.
    server.presign(store, 1);
    let session = find(&kvasir, &text).await;
    server.fail(Fault::HoldLookups);
    let pages = Pages::toy(TOKENS);
    let load = session.load([pages.table()], at(1)).unwrap();
    let loaded = tokio::time::timeout(Duration::from_secs(6), load.finish()).await.expect("it goes on");
    let reads = loaded.report().unwrap().reads;
    assert_eq!((loaded.loaded_tokens(), reads.renewals, reads.direct_bytes), (767, 0, 0), "{reads:?}");
    server.release();
}

#[tokio::test]
async fn a_late_first_byte_is_hedged() {
    let server = start().await;
    let kvasir = direct(&server).await;
    let text = tokens(TOKENS, 3);
    save(&kvasir, &text).await;
    let references = references(&kvasir, &text).await;
    let script = Script::of(&[], Answer::Good);
    let store = start_store(&server, Arc::clone(&script)).await;
    server.presign(store, 600);
    // Enough reads to know what is late and to have earned a hedge.
    for _ in 0..8 {
        check(&kvasir, &text, &references, "warming").await;
    }
    // What is late is learned from the reads before, and on a busy machine those were late themselves.
    for attempt in 0.. {
        check(&kvasir, &text, &references, "warming again").await;
        script.lock().unwrap().answers = vec![Answer::Good, Answer::Late];
        let report = check(&kvasir, &text, &references, "late").await;
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        if report.reads.hedges_won > 0 {
            assert!(report.reads.hedges >= report.reads.hedges_won && report.reads.proxy_bytes > 0);
            break;
        }
        assert!(attempt < 60, "a late read was never hedged: {:?}", report.reads);
    }
}

#[tokio::test]
async fn whatever_the_service_sends_wrong_bytes_never_reach_a_sink() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(TOKENS, 4);
    save(&kvasir, &text).await;
    let references = references(&kvasir, &text).await;
    let faults: [fn(u32) -> Fault; 5] =
        [Fault::Misdirected, Fault::TooLong, Fault::OtherRange, Fault::BreakOff, Fault::Unavailable];
    for (i, fault) in faults.into_iter().enumerate() {
        for times in [1, 1000] {
            server.release();
            server.fail(fault(times));
            let report = check(&kvasir, &text, &references, &format!("fault {i} × {times}")).await;
            if times == 1 && i < 2 {
                assert_eq!(report.loaded_tokens(), 767, "fault {i} once is made good");
            }
        }
    }
}

/// Any mixture: the store's answers drawn from a seed, and a service that breaks off now and then.
#[tokio::test]
async fn any_script_ends_with_the_right_bytes_or_none() {
    let server = start().await;
    let kvasir = direct(&server).await;
    let text = tokens(TOKENS, 5);
    save(&kvasir, &text).await;
    let references = references(&kvasir, &text).await;
    for seed in 0..24u64 {
        let mut state = seed * 2 + 1;
        let mut draw = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        // The silent ones cost most of a second each; they have a test of their own.
        let quick = |a: &&Answer| !matches!(a, Answer::Silent | Answer::Stall);
        let bad: Vec<Answer> = Answer::BAD.iter().filter(quick).copied().collect();
        let answers: Vec<Answer> = (0..6)
            .map(|_| if draw(3) == 0 { Answer::Good } else { bad[draw(bad.len() as u64) as usize] })
            .collect();
        let script = Script::of(&answers, Answer::Good);
        let store = start_store(&server, script).await;
        server.presign(store, 600);
        let broken = draw(3) as u32;
        server.release();
        server.fail(Fault::BreakOff(broken));
        server.fail(Fault::Misdirected(draw(2) as u32));
        check(&kvasir, &text, &references, &format!("seed {seed}: {answers:?}, {broken} broken")).await;
    }
}

/// A service that falls silent mid-body: the load ends when computing is the better choice.
#[tokio::test]
async fn a_service_that_falls_silent_is_given_up() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(TOKENS, 6);
    save(&kvasir, &text).await;
    server.fail(Fault::Stall(1000));
    let pages = Pages::toy(TOKENS);
    let quick = RecomputeModel::from_seconds(0.0, 2e-4, 0.0);
    let options = LoadOptions {
        policy: Box::new(Progressive::new()),
        recompute: Some(quick),
        ..Deadline::within(Duration::from_millis(100)).into()
    };
    let load = find(&kvasir, &text).await.load([pages.table()], options).unwrap();
    let loaded = tokio::time::timeout(Duration::from_secs(10), load.finish()).await.expect("bounded");
    assert_eq!(loaded.missing(), [range(0, TOKENS as u64)]);
}

/// It answers, and then says nothing more.
#[tokio::test]
async fn a_replica_that_falls_silent_ends_a_read_of_objects() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let silent = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.read_buf(&mut Vec::with_capacity(1 << 16)).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbegun").await.unwrap();
            kept.push(stream);
        }
    });
    let config = ClientConfig { read_timeout: Duration::from_millis(200), ..ClientConfig::default() };
    let client = Client::new(url, config).unwrap();
    let (namespace, keys) = ("n".parse().unwrap(), ["a", "b"].map(|key| key.parse().unwrap()));
    let read = client.read_opaque(&namespace, &keys);
    assert!(tokio::time::timeout(Duration::from_secs(60), read).await.expect("it ends").is_err());
    silent.abort();
}

#[tokio::test]
async fn more_of_an_object_than_was_asked_for_is_refused() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let server = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.read_buf(&mut Vec::with_capacity(1 << 16)).await.unwrap();
            let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 13\r\n\r\n";
            let answer = [&head[..], &5u64.to_le_bytes(), b"bytes"].concat();
            stream.write_all(&answer).await.unwrap();
            kept.push(stream);
        }
    });
    let client = Client::new(url, ClientConfig::default()).unwrap();
    let (namespace, key) = ("n".parse().unwrap(), "a".parse().unwrap());
    let wanted = |range: Range<u64>| [(ObjectKey::clone(&key), range)];
    assert_eq!(client.read_opaque_ranges(&namespace, &wanted(3..8)).await.unwrap(), [b"bytes"]);
    let refused = client.read_opaque_ranges(&namespace, &wanted(3..7)).await;
    assert!(matches!(refused, Err(Error::Protocol { .. })), "{refused:?}");
    server.abort();
}
