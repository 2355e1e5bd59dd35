//! The tokio shell against a service in memory: the way there and back, and everything that may go wrong.

mod common;

use std::time::Duration;

use common::{Fault, client, kv, spec, start, tokens};
use kvasir_client::{
    ChunkOutcome, Client, ClientConfig, ClientError, LoadError, LoadOptions, LoadReport,
    fetcher::{CacheGen, Fixed, Policy, RecomputeModel},
};
use kvasir_codec::KvBuffer;
use kvasir_types::{Level, TokenRange};

/// Computing is out of the question, time is plentiful.
fn options() -> LoadOptions {
    LoadOptions::new(Duration::from_secs(30), RecomputeModel::from_seconds(100.0, 1.0, 0.0))
}

fn with(policy: impl Policy + 'static) -> LoadOptions {
    LoadOptions { policy: Box::new(policy), ..options() }
}

fn error(a: &KvBuffer, b: &KvBuffer) -> f64 {
    let power = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let pairs = || a.as_slice().iter().zip(b.as_slice());
    let noise = power(&mut pairs().map(|(x, y)| f64::from(x - y)));
    noise / power(&mut pairs().map(|(x, _)| f64::from(*x)))
}

fn levels(report: &LoadReport) -> Vec<Option<u8>> {
    report.chunks.iter().map(|c| c.level.map(|l| l.0)).collect()
}

#[tokio::test]
async fn what_was_stored_comes_back_under_every_policy() {
    let (address, service) = start().await;
    let client = client(address).await;
    let text = tokens(700, 1);
    let original = kv(&text);
    let mut progress = Vec::new();
    let stored = client.store_kv(&text, &original, |p| progress.push((p.finished, p.chunks))).await.unwrap();
    assert_eq!(progress, [(1, 3), (2, 3), (3, 3)]);
    assert_eq!(
        stored.bytes(),
        service.objects.lock().unwrap().values().map(|(_, b)| b.len() as u64).sum::<u64>()
    );

    let plan = client.lookup(&text).await.unwrap();
    assert_eq!((plan.matched_tokens(), plan.chunks().len()), (700, 3));
    let top = plan.chunks()[0].level_bytes.len() as u8 - 1;
    let policies: [(LoadOptions, u8); 3] =
        [(options(), top), (with(CacheGen::default()), top), (with(Fixed::new(Level(0))), 0)];
    let mut losses = Vec::new();
    for (options, level) in policies {
        let mut back = KvBuffer::new(&spec(), 700);
        let report = client.get_kv(&plan, options, &mut back).await.unwrap();
        assert!(report.recompute.is_empty() && report.failures.is_empty(), "{report:?}");
        // CacheGen's first chunk comes before any measurement, at the medium level.
        assert_eq!(levels(&report)[1..], [Some(level); 2], "{}", report.policy);
        assert_eq!(report.loaded_tokens(), 700);
        assert_eq!(report.bytes, report.chunks.iter().map(|c| c.bytes).sum::<u64>());
        losses.push(error(&original, &back));
    }
    assert!(losses[0] < 0.05 && losses[0] < losses[2], "{losses:?}");
}

#[tokio::test]
async fn storing_again_uploads_only_what_is_new() {
    let (address, service) = start().await;
    let client = client(address).await;
    let text = tokens(1200, 2);
    let whole = kv(&text);
    client.store_kv(&text[..300], &whole.slice(0..300), |_| ()).await.unwrap();
    assert_eq!(*service.puts.lock().unwrap(), 2);
    let again = client.store_kv(&text[..300], &whole.slice(0..300), |_| ()).await.unwrap();
    assert!(again.chunks.iter().all(|c| c.outcome == ChunkOutcome::AlreadyThere));
    let longer = client.store_kv(&text, &whole, |_| ()).await.unwrap();
    let there = |c: &kvasir_client::ChunkStoreReport| c.outcome == ChunkOutcome::AlreadyThere;
    assert_eq!(longer.chunks.iter().map(there).collect::<Vec<_>>(), [true, false, false, false, false]);
    assert_eq!(client.lookup(&text).await.unwrap().matched_tokens(), 1200);
}

#[tokio::test]
async fn a_prefix_of_a_chunk_is_usable_and_another_text_is_a_miss() {
    let (address, _service) = start().await;
    let client = client(address).await;
    let text = tokens(512, 3);
    let original = kv(&text);
    client.store_kv(&text, &original, |_| ()).await.unwrap();
    let mut branch = text[..400].to_vec();
    branch.extend(tokens(200, 77));
    let plan = client.lookup(&branch).await.unwrap();
    assert_eq!(plan.matched_tokens(), 400);
    let mut back = KvBuffer::new(&spec(), 400);
    let report = client.get_kv(&plan, options(), &mut back).await.unwrap();
    assert_eq!(report.loaded_tokens(), 400);
    assert!(error(&original.slice(0..400), &back) < 0.05);
    assert_eq!(client.lookup(&tokens(300, 4)).await.unwrap().matched_tokens(), 0);
    let empty = client.lookup(&[]).await.unwrap();
    assert!(client.get_kv(&empty, options(), &mut back).await.unwrap().chunks.is_empty());
}

#[tokio::test]
async fn broken_reads_are_resumed_and_lost_objects_are_computed() {
    let (address, service) = start().await;
    let client = client(address).await;
    let text = tokens(768, 5);
    let original = kv(&text);
    let stored = client.store_kv(&text, &original, |_| ()).await.unwrap();
    let digest = |i: usize| match stored.chunks[i].outcome {
        ChunkOutcome::Stored { object_digest, .. } => object_digest,
        ChunkOutcome::AlreadyThere | ChunkOutcome::TooLossy => unreachable!(),
    };
    let plan = client.lookup(&text).await.unwrap();
    for faults in [vec![Fault::BreakOff(2)], vec![Fault::Unavailable(2)]] {
        *service.faults.lock().unwrap() = faults;
        let mut back = KvBuffer::new(&spec(), 768);
        let report = client.get_kv(&plan, with(Fixed::new(Level(1))), &mut back).await.unwrap();
        assert_eq!(report.recompute, []);
        assert_eq!(levels(&report), [Some(1); 3]);
        assert_eq!(report.failures.len(), 2, "{:?}", report.failures);
        assert!(error(&original, &back) < 0.2);
    }
    *service.faults.lock().unwrap() = vec![Fault::Gone(digest(1))];
    let top = Level(plan.chunks()[0].level_bytes.len() as u8 - 1);
    let mut back = KvBuffer::new(&spec(), 768);
    let report = client.get_kv(&plan, with(Fixed::new(top)), &mut back).await.unwrap();
    assert_eq!(report.recompute, [TokenRange { start: 256, end: 512 }]);
    assert!(matches!(report.failures[0].error, LoadError::Read(_)));
    let zeros = KvBuffer::new(&spec(), 256);
    assert_eq!(back.slice(256..512), zeros, "nothing of a bad chunk reaches the engine");
    assert!(error(&original.slice(512..768), &back.slice(512..768)) < 0.05);
}

#[tokio::test]
async fn damage_costs_a_second_read_and_then_only_what_it_hit() {
    let (address, service) = start().await;
    let client = client(address).await;
    let text = tokens(768, 25);
    let original = kv(&text);
    let stored = client.store_kv(&text, &original, |_| ()).await.unwrap();
    let plan = client.lookup(&text).await.unwrap();
    let top = Level(plan.chunks()[0].level_bytes.len() as u8 - 1);
    let (first, second) = (&plan.chunks()[0], &plan.chunks()[1]);
    // Which chunk, where the damage is, how often it is delivered; how often it is read again, and whether anything
    // is left of it. The first chunk's level 0 holds the exact tokens; the second's is all as predicted, and empty.
    let (base, above) = (first.level_bytes[0] - 1, second.level_bytes[0] + 10);
    for (chunk, at, times, reads, recomputed) in [
        (1, above, 1, 1, false),
        (1, above, u32::MAX, 3, false),
        (0, base, u32::MAX, 3, true),
        (1, 20, u32::MAX, 3, true),
    ] {
        let ChunkOutcome::Stored { object_digest, .. } = stored.chunks[chunk].outcome else { unreachable!() };
        *service.faults.lock().unwrap() = vec![Fault::Corrupt(object_digest, at, times)];
        let mut back = KvBuffer::new(&spec(), 768);
        let report = client.get_kv(&plan, with(Fixed::new(top)), &mut back).await.unwrap();
        let (start, end) = (256 * chunk, 256 * chunk + 256);
        let hole = TokenRange { start: start as u64, end: end as u64 };
        assert_eq!(report.recompute, if recomputed { vec![hole] } else { vec![] }, "damage at {at}");
        assert_eq!(report.reads.repairs, reads, "{report:?}");
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
    let (address, _service) = start().await;
    let client = client(address).await;
    let text = tokens(512, 6);
    client.store_kv(&text, &kv(&text), |_| ()).await.unwrap();
    let plan = client.lookup(&text).await.unwrap();
    // A service of the same address space that accepts and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = format!("http://{}/", silent.local_addr().unwrap());
    let mut redirected = plan.clone();
    for chunk in redirected.chunks_mut() {
        chunk.via = kvasir_api::Via::Direct { url: elsewhere.clone(), expires_in_s: 60 };
    }
    let quick = RecomputeModel::from_seconds(0.0, 2e-4, 0.0); // 0.1 s for all
    let options = LoadOptions::new(Duration::from_millis(50), quick);
    let mut back = KvBuffer::new(&spec(), 512);
    let load = client.get_kv(&redirected, options, &mut back);
    let report = tokio::time::timeout(Duration::from_secs(10), load).await.expect("bounded").unwrap();
    assert!(report.gave_up);
    assert_eq!(report.recompute, [TokenRange { start: 0, end: 512 }]);
}

#[tokio::test]
async fn presigned_reads_fall_back_to_the_service() {
    let (address, _service) = start().await;
    let client = client(address).await;
    let text = tokens(256, 8);
    client.store_kv(&text, &kv(&text), |_| ()).await.unwrap();
    let mut plan = client.lookup(&text).await.unwrap();
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    plan.chunks_mut()[0].via =
        kvasir_api::Via::Direct { url: format!("http://{closed}/expired"), expires_in_s: 60 };
    let mut back = KvBuffer::new(&spec(), 256);
    let report = client.get_kv(&plan, options(), &mut back).await.unwrap();
    assert_eq!(report.loaded_tokens(), 256);
    assert!((1..=2).contains(&report.reads.fallbacks), "a store that is away is not asked for ever");
    assert_eq!((report.reads.direct_bytes, report.reads.proxy_bytes), (0, report.bytes));
}

#[tokio::test]
async fn a_dropped_load_leaves_the_client_usable() {
    let (address, _service) = start().await;
    let client = client(address).await;
    let text = tokens(700, 9);
    client.store_kv(&text, &kv(&text), |_| ()).await.unwrap();
    let plan = client.lookup(&text).await.unwrap();
    let mut back = KvBuffer::new(&spec(), 700);
    for polls in 0..20u32 {
        let load = client.get_kv(&plan, options(), &mut back);
        let _ = tokio::time::timeout(Duration::from_micros(u64::from(polls) * 200), load).await;
    }
    let report = client.get_kv(&plan, options(), &mut back).await.unwrap();
    assert_eq!(report.loaded_tokens(), 700);
}

#[tokio::test]
async fn control_requests_are_retried_and_errors_are_typed() {
    let (address, service) = start().await;
    service.faults.lock().unwrap().push(Fault::ControlUnavailable(2));
    let kv_client = client(address).await; // registering survives two 503
    service.faults.lock().unwrap().push(Fault::ControlUnavailable(1000));
    let error = kv_client.client().register_model(&spec()).await.unwrap_err();
    assert_eq!(error.code(), Some(kvasir_api::ErrorCode::StoreUnavailable));
    assert!(error.is_retryable() && error.remedy().contains("later"));
    let bad = Client::new("ftp://host/".parse().unwrap(), ClientConfig::default());
    assert!(matches!(bad, Err(ClientError::Config { .. })));
    assert!(kv_client.with_chunk_tokens(100).is_err());
}
