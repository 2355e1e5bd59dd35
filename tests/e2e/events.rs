//! The stream of events.

use std::time::Duration;

use kvasir_api::{Event, EventType, EventsQuery, TrainingOutcome, TrainingRecord, routes};
use kvasir_client::rest::{Client, EventMessage, EventStream};
use kvasir_store::StoreConfig;
use kvasir_tests::{
    chunks,
    service::{Service, expect_problem},
};
use kvasir_types::{Medium, ProfileHash, TokenChain};
use reqwest::Method;
use tempfile::TempDir;

fn client(service: &Service) -> Client {
    let base = format!("http://{}", service.address).parse().expect("a url");
    Client::new(base, Default::default()).expect("a client")
}

async fn next(stream: &mut EventStream) -> Event {
    let message =
        tokio::time::timeout(Duration::from_secs(60), stream.next()).await.expect("an event in time");
    match message.expect("reads").expect("not the end") {
        EventMessage::Event(event) => *event,
        EventMessage::Dropped(dropped) => panic!("{dropped:?}"),
    }
}

fn store(directory: &TempDir) -> StoreConfig {
    StoreConfig::new(format!("file://{}/store", directory.path().display()).parse().expect("a url"))
}

#[tokio::test]
async fn stores_and_removals_are_told_in_the_routers_words_and_streams_resume() {
    let directory = TempDir::new().expect("a directory");
    let service = Service::start(store(&directory), directory.path()).await;
    let (model_id, root) = service.prepare("n").await;
    let client = client(&service);
    let mut all = client.events(&EventsQuery::default()).await.expect("a stream");
    let mut other = EventsQuery { namespace: Some("other".parse().expect("a name")), ..Default::default() };
    let mut elsewhere = client.events(&other).await.expect("a stream");
    let removed = EventsQuery { types: Some("removed".to_owned()), ..Default::default() };
    let mut removals = client.events(&removed).await.expect("a stream");

    let tokens = chunks::tokens(1, 512);
    let context = chunks::context(root, &tokens, 256, 50);
    for chunk in &context {
        service.put(&model_id, chunk).await;
    }
    let chain = TokenChain::new(root, &tokens);
    let hashes: Vec<_> = chain.blocks().iter().map(|hash| hash.to_string()[..16].to_owned()).collect();
    let (first, second) = (next(&mut all).await, next(&mut all).await);
    assert_eq!((first.event_type, first.medium, first.block_size), (EventType::Stored, Medium::Object, 16));
    assert_eq!(first.block_hashes, hashes[..16]);
    assert_eq!(second.block_hashes, hashes[16..]);
    assert_eq!((first.base_block_idx, second.base_block_idx), (Some(0), Some(16)));
    assert_eq!(second.parent_hash, first.seq_hash);
    assert_eq!(first.parent_hash.map(|hash| *hash.as_bytes()), Some(root.first_parent()));
    assert_eq!(first.level.map(|level| level.0), Some(1));
    assert_eq!(first.namespace.as_ref().map(|n| n.as_str()), Some("n"));
    assert_eq!(second.namespace, first.namespace, "by the chain");
    assert_eq!((first.tenant_id.as_str(), first.model_id), ("default", Some(model_id)));
    assert_eq!(first.model_name.as_deref(), Some("kvasir/synthetic"));

    service.send(Method::DELETE, &routes::chunk(&model_id, &context[1].seq_hash), "").await;
    let removed = next(&mut all).await;
    assert_eq!(removed.event_type, EventType::Removed);
    assert_eq!((removed.seq_hash, removed.reason.as_deref()), (Some(context[1].seq_hash), Some("removed")));
    assert_eq!(next(&mut removals).await, removed, "filtered by type");

    // Resumed after the first: exactly the rest.
    let again = EventsQuery { after: Some(first.event_id.clone()), ..Default::default() };
    let mut again = client.events(&again).await.expect("a stream");
    assert_eq!([next(&mut again).await, next(&mut again).await], [second, removed]);
    // The other namespace's stream has heard nothing of it; an id that nobody knows is told to forget.
    let (model_id, other_root) = service.prepare("other").await;
    service.put(&model_id, &chunks::chunk(other_root, &tokens, 0, 256, 50)).await;
    assert_eq!(next(&mut elsewhere).await.namespace.expect("known").as_str(), "other");
    other.after = Some("1-ffffffff-0".to_owned());
    let mut late = client.events(&other).await.expect("a stream");
    assert_eq!(next(&mut late).await.event_type, EventType::Cleared);

    let bad = format!("{}?types=moved", routes::EVENTS);
    expect_problem(service.get(&bad, &[]).await, "bad_request").await;
    // Open streams do not hold up a shutdown.
    service.stop().await;
    assert_eq!(elsewhere.next().await.expect("a clean end"), None);
}

#[tokio::test]
async fn what_one_replica_stores_the_others_tell() {
    let directory = TempDir::new().expect("a directory");
    let quick = |config: &mut kvasir_server::Config| config.journal.interval = Duration::from_millis(50);
    let a = Service::start_with(store(&directory), &directory.path().join("a"), quick).await;
    let b = Service::start_with(store(&directory), &directory.path().join("b"), quick).await;
    let (model_id, root) = a.prepare("n").await;
    let query = EventsQuery { namespace: Some("n".parse().expect("a name")), ..Default::default() };
    let mut on_a = client(&a).events(&query).await.expect("a stream");
    let mut on_b = client(&b).events(&query).await.expect("a stream");
    let tokens = chunks::tokens(2, 512);
    for chunk in chunks::context(root, &tokens, 256, 50) {
        a.put(&model_id, &chunk).await;
    }
    let (told_a, told_b) = (next(&mut on_a).await, next(&mut on_b).await);
    assert_eq!(told_b.block_hashes, told_a.block_hashes);
    assert_eq!(told_b.backend_id, told_a.backend_id, "where it happened, not who tells");
    assert_eq!(
        told_b.namespace, told_a.namespace,
        "a replica that was never asked for the namespace finds it out"
    );
    assert_ne!(told_b.event_id, told_a.event_id);
    a.stop().await;
    b.stop().await;
}

/// What becomes of a model's profiles: the stored ones, and the trainings that stored none.
#[tokio::test]
async fn profiles_that_are_stored_and_trainings_that_store_none_are_told_counted_and_listed() {
    let directory = TempDir::new().expect("a directory");
    let service = Service::start(store(&directory), directory.path()).await;
    let (model_id, _) = service.prepare("n").await;
    let client = client(&service);
    let query = EventsQuery { types: Some("profile".to_owned()), ..Default::default() };
    let mut told = client.events(&query).await.expect("a stream");
    let in_force = ProfileHash::of(chunks::PROFILE);
    let second = b"another profile nobody decodes".to_vec();
    let trained = ProfileHash::of(&second);
    // Only the first time is it new.
    for _ in 0..2 {
        client.put_profile(&model_id, second.clone()).await.expect("stored");
    }
    let event = next(&mut told).await;
    assert_eq!((event.event_type, event.model_id), (EventType::Profile, Some(model_id)));
    assert_eq!((event.profile_hash, event.reason.as_deref()), (Some(trained), Some("stored")));

    let record = TrainingRecord {
        outcome: TrainingOutcome::Refused,
        reason: "it needs 97 % of the bytes of the profile in force".to_owned(),
        sampled_chunks: 40,
        sampled_tokens: 20_480,
        in_force,
        trained: Some(trained),
        held_out_chunks: 8,
        in_force_bits: Some(5.9),
        trained_bits: Some(5.7),
    };
    // Of one that published, the event was that of its profile.
    let published = TrainingRecord { outcome: TrainingOutcome::Published, ..record.clone() };
    for report in [&published, &record] {
        client.report_training(&model_id, report).await.expect("taken");
    }
    let event = next(&mut told).await;
    assert_eq!((event.profile_hash, event.reason.as_deref()), (Some(trained), Some("refused")));
    let listed = client.trainings(&model_id).await.expect("a list").trainings;
    let outcomes: Vec<_> = listed.iter().map(|training| training.outcome).collect();
    assert_eq!(outcomes, [TrainingOutcome::Refused, TrainingOutcome::Published], "newest first");
    assert_eq!((&listed[0].reason, listed[0].trained_bits), (&record.reason, Some(5.7)));
    let metrics = service.metrics().await;
    for line in [
        "kvasir_profiles_stored_total 2\n",
        "kvasir_profile_trainings_total{outcome=\"failed\"} 0\n",
        "kvasir_profile_trainings_total{outcome=\"published\"} 1\n",
        "kvasir_profile_trainings_total{outcome=\"refused\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    let wrong = [
        TrainingRecord { reason: "x".repeat(513), ..record.clone() },
        TrainingRecord { reason: "\u{1b}[2J".to_owned(), ..record.clone() },
        TrainingRecord { in_force_bits: Some(-1.0), ..record },
    ];
    for wrong in wrong {
        let body = serde_json::to_string(&wrong).expect("serialises");
        let refused = service.send(Method::POST, &routes::trainings(&model_id), body).await;
        expect_problem(refused, "bad_request").await;
    }
    assert_eq!(client.trainings(&model_id).await.expect("a list").trainings.len(), 2);
    service.stop().await;
}
