//! The tokio shell against a service in memory: the way there and back, and everything that may go wrong.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Fault, builder, connect, digest, find, kv, load, range, save, save_kv, spec, start, tokens};
use kvasir_client::{
    Deadline, Error, Kvasir, Loaded,
    report::{ChunkOutcome, LoadError},
    tuning::{CacheGen, Fixed, LoadOptions, Policy, Progressive, RecomputeModel},
};
use kvasir_codec::KvBuffer;
use kvasir_types::Level;

/// Computing is out of the question, time is plentiful, and the last token is loaded, too.
fn with(policy: impl Policy + 'static) -> LoadOptions {
    let recompute = Some(RecomputeModel::from_seconds(100.0, 1.0, 0.0));
    let (policy, deadline) = (Box::new(policy), Deadline::within(Duration::from_secs(30)));
    let suffix_time = Some(Duration::ZERO);
    LoadOptions { policy, recompute, suffix_time, last_token: true, ..deadline.into() }
}

fn error(a: &KvBuffer, b: &KvBuffer) -> f64 {
    let power = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let pairs = || a.as_slice().iter().zip(b.as_slice());
    let noise = power(&mut pairs().map(|(x, y)| f64::from(x - y)));
    noise / power(&mut pairs().map(|(x, _)| f64::from(*x)))
}

fn levels(loaded: &Loaded) -> Vec<Option<u8>> {
    loaded.report().unwrap().chunks.iter().map(|c| c.level.map(|l| l.0)).collect()
}

#[tokio::test]
async fn what_was_stored_comes_back_under_every_policy() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(700, 1);
    let original = kv(&text);
    let mut progress = Vec::new();
    let session = kvasir.session(&text).await;
    let saved = session.save_now(&original, 700, |p| progress.push((p.finished, p.chunks))).await.unwrap();
    assert_eq!(progress, [(1, 3), (2, 3), (3, 3)]);
    let sizes: u64 = server.digests().iter().map(|digest| server.object(digest).unwrap().len() as u64).sum();
    assert_eq!(saved.bytes(), sizes);

    let session = find(&kvasir, &text).await;
    assert_eq!((session.matched_tokens(), session.chunks().len()), (700, 3));
    let top = session.chunks()[0].level_bytes.len() as u8 - 1;
    let policies: [(LoadOptions, u8); 3] =
        [(with(Progressive::new()), top), (with(CacheGen::default()), top), (with(Fixed::new(Level(0))), 0)];
    let mut losses = Vec::new();
    for (options, level) in policies {
        let (loaded, back) = load(&session, options).await;
        let report = loaded.report().unwrap();
        assert!(loaded.missing().is_empty() && report.failures.is_empty(), "{report:?}");
        // CacheGen's first chunk comes before any measurement, at the medium level.
        assert_eq!(levels(&loaded)[1..], [Some(level); 2], "{}", report.policy);
        assert_eq!(loaded.loaded_tokens(), 700);
        assert_eq!(report.bytes, report.chunks.iter().map(|c| c.bytes).sum::<u64>());
        let times = report.times;
        let took = [times.network, times.decode, times.recompute].map(|time| !time.is_zero());
        assert_eq!(took, [true, true, false], "{times:?}");
        assert!(times.network + times.wait <= report.elapsed, "{times:?} of {:?}", report.elapsed);
        losses.push(error(&original, &back));
    }
    assert!(losses[0] < 0.05 && losses[0] < losses[2], "{losses:?}");
}

#[tokio::test]
async fn saving_again_uploads_only_what_is_new() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(1200, 2);
    let whole = kv(&text);
    save_kv(&kvasir, &text[..300], &whole.slice(0..300)).await;
    assert_eq!(server.puts(), 2);
    let again = save_kv(&kvasir, &text[..300], &whole.slice(0..300)).await;
    assert!(again.chunks.iter().all(|c| c.outcome == ChunkOutcome::AlreadyThere));
    let longer = save_kv(&kvasir, &text, &whole).await;
    let there: Vec<_> = longer.chunks.iter().map(|c| c.outcome == ChunkOutcome::AlreadyThere).collect();
    assert_eq!(there, [true, false, false, false, false]);
    assert_eq!(find(&kvasir, &text).await.matched_tokens(), 1200);
}

#[tokio::test]
async fn a_prefix_of_a_chunk_is_usable_and_another_text_is_a_miss() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 3);
    let original = kv(&text);
    save_kv(&kvasir, &text, &original).await;
    let mut branch = text[..400].to_vec();
    branch.extend(tokens(200, 77));
    let session = find(&kvasir, &branch).await;
    assert_eq!(session.matched_tokens(), 400);
    let (loaded, back) = load(&session, with(Progressive::new())).await;
    assert_eq!((loaded.loaded_tokens(), loaded.missing()), (400, &[range(400, 600)][..]));
    assert!(error(&original.slice(0..400), &back) < 0.05);
    assert_eq!(find(&kvasir, &tokens(300, 4)).await.matched_tokens(), 0);
}

#[tokio::test]
async fn broken_reads_are_resumed_and_lost_objects_are_computed() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(768, 5);
    let original = kv(&text);
    let saved = save_kv(&kvasir, &text, &original).await;
    let session = find(&kvasir, &text).await;
    for fault in [Fault::BreakOff(2), Fault::Unavailable(2)] {
        server.fail(fault);
        let (loaded, back) = load(&session, with(Fixed::new(Level(1)))).await;
        server.release();
        assert_eq!(loaded.missing(), []);
        assert_eq!(levels(&loaded), [Some(1); 3]);
        let failures = &loaded.report().unwrap().failures;
        assert_eq!(failures.len(), 2, "{failures:?}");
        assert!(error(&original, &back) < 0.2);
    }
    server.fail(Fault::Gone(digest(&saved, 1)));
    let top = Level(session.chunks()[0].level_bytes.len() as u8 - 1);
    let (loaded, back) = load(&session, with(Fixed::new(top))).await;
    assert_eq!(loaded.missing(), [range(256, 512)]);
    assert!(matches!(loaded.report().unwrap().failures[0].error, LoadError::Read(_)));
    let zeros = KvBuffer::new(&spec(), 256);
    assert_eq!(back.slice(256..512), zeros, "nothing of a bad chunk reaches the engine");
    assert!(error(&original.slice(512..768), &back.slice(512..768)) < 0.05);
}

#[tokio::test]
async fn damage_costs_a_second_read_and_then_only_what_it_hit() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(768, 25);
    let original = kv(&text);
    let saved = save_kv(&kvasir, &text, &original).await;
    let session = find(&kvasir, &text).await;
    let top = Level(session.chunks()[0].level_bytes.len() as u8 - 1);
    let (first, second) = (&session.chunks()[0], &session.chunks()[1]);
    // Which chunk, where the damage is, how often it is delivered; how often it is read again, and whether anything
    // is left of it. The first chunk's level 0 holds the exact tokens; the second's is all as predicted, and empty.
    let (base, above) = (first.level_bytes[0] - 1, second.level_bytes[0] + 10);
    for (chunk, at, times, reads, recomputed) in [
        (1, above, 1, 1, false),
        (1, above, u32::MAX, 3, false),
        (0, base, u32::MAX, 3, true),
        (1, 20, u32::MAX, 3, true),
    ] {
        server.fail(Fault::Corrupt(digest(&saved, chunk), at, times));
        let (loaded, back) = load(&session, with(Fixed::new(top))).await;
        server.release();
        let (start, end) = (256 * chunk, 256 * chunk + 256);
        let hole = range(start as u64, end as u64);
        assert_eq!(loaded.missing(), if recomputed { vec![hole] } else { vec![] }, "damage at {at}");
        assert_eq!(loaded.report().unwrap().reads.repairs, reads, "{loaded:?}");
        let loss = error(&original.slice(start..end), &back.slice(start..end));
        let clean = error(&original.slice(512..768), &back.slice(512..768));
        match (recomputed, times) {
            (true, _) => assert_eq!(back.slice(start..end), KvBuffer::new(&spec(), 256)),
            (false, 1) => assert!(loss < 2.0 * clean, "repaired: {loss}"),
            (false, _) => assert!(loss > 2.0 * clean, "a lower level: {loss}"),
        }
    }
}

#[tokio::test]
async fn a_dead_service_means_computing_everything_in_bounded_time() {
    let server = start().await;
    let kvasir = connect(&server).await;
    let text = tokens(512, 6);
    save(&kvasir, &text).await;
    let session = find(&kvasir, &text).await;
    server.fail(Fault::Hold);
    let quick = RecomputeModel::from_seconds(0.0, 2e-4, 0.0); // 0.1 s for all
    let options =
        LoadOptions { recompute: Some(quick), ..Deadline::within(Duration::from_millis(50)).into() };
    let bounded = tokio::time::timeout(Duration::from_secs(10), load(&session, options));
    let (loaded, _) = bounded.await.expect("bounded");
    assert!(loaded.report().unwrap().gave_up);
    assert_eq!(loaded.missing(), [range(0, 512)]);
}

#[tokio::test]
async fn presigned_reads_fall_back_to_the_service() {
    let server = start().await;
    let kvasir = builder(&server).direct_reads(true).connect().await.unwrap();
    let text = tokens(256, 8);
    save(&kvasir, &text).await;
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    server.presign(closed, 60);
    let (loaded, _) = load(&find(&kvasir, &text).await, with(Progressive::new())).await;
    assert_eq!(loaded.loaded_tokens(), 256);
    let report = loaded.report().unwrap();
    assert!((1..=2).contains(&report.reads.fallbacks), "a store that is away is not asked for ever");
    assert_eq!((report.reads.direct_bytes, report.reads.proxy_bytes), (0, report.bytes));
}

#[tokio::test]
async fn control_requests_are_retried_and_errors_are_typed() {
    let server = start().await;
    server.fail(Fault::ControlUnavailable(2));
    let kvasir = connect(&server).await; // registering survives two 503
    server.fail(Fault::ControlUnavailable(1000));
    let error = kvasir.rest().register_model(&spec()).await.unwrap_err();
    assert_eq!(error.code(), Some(kvasir_api::ErrorCode::StoreUnavailable));
    assert!(error.is_retryable() && error.remedy().contains("later"));
}

/// A description that cannot work is refused with a sentence that says what would.
#[tokio::test]
async fn descriptions_that_cannot_work_are_refused() {
    let server = start().await;
    let refused = async |builder: kvasir_client::Builder, word: &str| match builder.connect().await {
        Err(Error::Config { what }) => assert!(what.contains(word), "{what}"),
        other => panic!("{other:?}"),
    };
    refused(Kvasir::builder(server.url()), "call `model`").await;
    refused(builder(&server).chunk_tokens(100), "multiple of 256").await;
    refused(builder(&server).namespace("../other"), "namespace").await;
    refused(builder(&server).token(""), "token").await;
    let elsewhere = |url: &str| Kvasir::builder(url).model(spec()).profile(common::profile());
    refused(elsewhere("ftp://host/"), "http://host:port").await;
    refused(elsewhere("no address"), "http://host:port").await;
    refused(elsewhere("http://127.0.0.1:9/?tenant=a"), "query").await;
}
