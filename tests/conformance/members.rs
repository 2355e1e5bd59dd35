//! Members of a cluster that collect their parts, and one that does not run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use kvasir_storage::{Storage, WorkShare, gc::GcPolicy, limits};
use kvasir_store::layout::Key;
use kvasir_tests::{
    chunks,
    hooked::{Hook, Hooked},
};
use object_store::ObjectStoreExt;

use crate::{
    Backend,
    replicas::{at_once, collect},
    storage_core::{key, model_id, prepare, put, tenant},
};

fn shares() -> [WorkShare; 3] {
    let members: Vec<_> = (0..3).map(|n| (format!("http://r{n}:7480"), 1.0)).collect();
    [0, 1, 2].map(|this| WorkShare::of(members.clone(), this, false))
}

/// Makes a pass over a share; returns whether it listed the whole store.
async fn lists_all(member: &Storage, share: &WorkShare) -> bool {
    tokio::time::sleep(Duration::from_millis(5)).await;
    member.lifecycle().collect_garbage(&at_once(), share, |_| {}).await.expect("collects").listed_all
}

/// The member that lists the whole store is listed and does not run: another does it in its place, as often as needed.
#[tokio::test]
async fn a_member_stands_in_for_the_one_that_lists_everything() {
    let backend = Backend::memory();
    let shares = shares();
    let (keeper, others): (Vec<_>, Vec<_>) = shares.iter().partition(|share| share.keeps_accounts());
    let (one, other) = (backend.replica().await, backend.replica().await);
    for _ in 0..10 {
        assert!(lists_all(&one, keeper[0]).await && !lists_all(&other, others[0]).await);
    }
    for share in others {
        let member = backend.replica().await;
        let mut passes = 0;
        while !lists_all(&member, share).await {
            passes += 1;
            assert!(passes < 100, "nobody lists the whole store");
        }
        assert!(passes > 0, "it waits");
        assert!(!lists_all(&member, share).await, "once, until nobody has for as long again");
    }
}

/// A member whose pass takes long says so, and none stands in for it.
#[tokio::test(start_paused = true)]
async fn a_long_pass_over_everything_says_that_it_lasts() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    for seed in 0..4 {
        let chunk = chunks::chunk(root, &chunks::tokens(seed, 64), 0, 64, 50);
        put(&storage, &chunk).await;
        storage.lifecycle().remove(&key(&chunk)).await.expect("removes");
    }
    let marks = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&marks);
    let hook: Hook = Arc::new(move |request, path| {
        let is_mark = request == Hooked::Written && path.as_ref().contains("/gc/epoch/");
        count.fetch_add(usize::from(is_mark), Ordering::Relaxed);
        let is_slow = request == Hooked::Deleting && path.as_ref().ends_with(".kvc");
        async move {
            if is_slow {
                tokio::time::advance(limits::EPOCH_MARKED_EVERY).await;
            }
            Ok(())
        }
        .boxed()
    });
    let member = backend.hooked_replica(hook).await;
    // At this rate each removal is a batch of its own, and marks are written between batches.
    let policy = GcPolicy { actions_per_second: 1, ..at_once() };
    assert!(collect(&member, &policy).await.listed_all);
    assert_eq!(marks.load(Ordering::Relaxed), 1 + 4);
}

/// Somebody wrote epochs with numbers that nobody counts to: passes go on from the last one of ours.
#[tokio::test]
async fn an_absurd_epoch_ends_no_pass() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let path = |n| storage.store().layout().path(&Key::GcEpoch { n });
    for n in [limits::EPOCH_MAX, u64::MAX] {
        storage.store().objects().put(&path(n), "lists the whole store\n".into()).await.expect("writes");
    }
    assert!(collect(&storage, &at_once()).await.led);
    assert_eq!(backend.paths("/gc/epoch/").await, [path(0).to_string()]);
}

/// A pass that ends in the middle of its listing leaves no count that never ends, for which all stored objects are remembered.
#[tokio::test]
async fn a_pass_that_fails_ends_its_count() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let root = prepare(&storage).await;
    put(&storage, &chunks::chunk(root, &chunks::tokens(1, 64), 0, 64, 50)).await;
    let tombstones = storage.store().layout().model_tombstones_prefix(&tenant(), &model_id());
    let hook: Hook = Arc::new(move |request, path| {
        let fails = request == Hooked::Reading && path.prefix_matches(&tombstones);
        let source = "the store is away".into();
        let failed = object_store::Error::PermissionDenied { path: path.to_string(), source };
        futures::future::ready(if fails { Err(failed) } else { Ok(()) }).boxed()
    });
    let collector = backend.hooked_replica(hook).await;
    let expired = GcPolicy { ttl: Some(Duration::ZERO), ..at_once() };
    assert!(collector.lifecycle().collect_garbage(&expired, &WorkShare::WHOLE, |_| {}).await.is_err());
    assert!(!collector.changes().is_counting());
}
