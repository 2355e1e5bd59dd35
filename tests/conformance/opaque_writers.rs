//! Writers of one key that meet, fail, or are slow: an acknowledged value stays.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::join_all};
use kvasir_storage::{
    ByteRange, ChunkError, ObjectError, PutError, PutObject, Storage, hot::RequestHint, limits,
};
use kvasir_store::{StoreKind, layout::Key};
use kvasir_tests::hooked::{Hook, Hooked};
use kvasir_types::ModelId;
use object_store::{ObjectStoreExt, path::Path};

use crate::{
    Backend,
    opaque::{exists, get, is_missing, key, payload, put},
    replicas::{at_once, collect},
    storage_core::{name, tenant},
};

/// What a store does to a writer of the key `k`, between its first look for the key's objects and its write:
/// `first` stores the payload 1 meanwhile.
fn meeting(first: &Arc<Storage>, then: Hook) -> Hook {
    let (first, has_met) = (Arc::clone(first), AtomicBool::new(false));
    Arc::new(move |what, path| {
        let meets = is_object(&path) && !has_met.swap(true, Ordering::Relaxed);
        let (first, then) = (Arc::clone(&first), Arc::clone(&then));
        async move {
            if meets {
                assert!(put(&first, "k", &payload(1, 100)).await.expect("stores"));
            }
            then(what, path).await
        }
        .boxed()
    })
}

fn is_object(path: &Path) -> bool {
    path.as_ref().ends_with(".kvc")
}

fn lost() -> object_store::Error {
    object_store::Error::Generic { store: "test", source: "the answer is lost".into() }
}

/// A hook that loses the answer to the first write of an object, which is stored; and, if the writer `dies`,
/// all later ones.
fn losing_answers(dies: bool) -> Hook {
    let (is_lost, is_dead) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    Arc::new(move |what, path| {
        let is_first = what == Hooked::Written && is_object(&path) && !is_lost.swap(true, Ordering::Relaxed);
        let fails = is_first || is_dead.load(Ordering::Relaxed);
        is_dead.fetch_or(is_first && dies, Ordering::Relaxed);
        async move { if fails { Err(lost()) } else { Ok(()) } }.boxed()
    })
}

/// A hook that fails reads of objects after the first write of one, until something else is written.
fn failing_comparison() -> Hook {
    let fails = Arc::new(AtomicBool::new(false));
    Arc::new(move |what, path| {
        if what == Hooked::Written {
            fails.store(is_object(&path), Ordering::Relaxed);
        }
        let fails = what == Hooked::Reading && is_object(&path) && fails.load(Ordering::Relaxed);
        async move { if fails { Err(lost()) } else { Ok(()) } }.boxed()
    })
}

/// All replicas read the payload 1 under `k`, also after a collection.
async fn is_the_first(backend: &Backend) {
    for _ in 0..2 {
        let cold = backend.replica().await;
        assert!(get(&cold, "k", ByteRange::Whole).await.expect("reads") == payload(1, 100));
        collect(&cold, &at_once()).await;
    }
}

/// A writer whose first answer was lost yields like any other, because the stored object is its own.
#[tokio::test]
async fn a_writer_whose_answer_was_lost_gives_way() {
    let backend = Backend::memory();
    let first = backend.replica().await;
    let other = backend.hooked_replica(meeting(&first, losing_answers(false))).await;
    let refused = put(&other, "k", &payload(2, 100)).await;
    assert!(exists(&refused), "{refused:?}");
    is_the_first(&backend).await;
}

/// A writer that cannot compare the key's objects yields as well.
#[tokio::test]
async fn a_writer_that_cannot_compare_gives_way() {
    let backend = Backend::memory();
    let first = backend.replica().await;
    let other = backend.hooked_replica(meeting(&first, failing_comparison())).await;
    let failed = put(&other, "k", &payload(2, 100)).await;
    assert!(matches!(failed, Err(ObjectError::Chunk(ChunkError::Store(_)))), "{failed:?}");
    is_the_first(&backend).await;
}

/// So does one whose store answers slowly before it writes: its object was visible for a moment.
#[tokio::test(start_paused = true)]
async fn a_slow_writer_gives_way() {
    let backend = Backend::memory();
    let first = backend.replica().await;
    let has_waited = Arc::new(AtomicBool::new(false));
    let waiting: Hook = {
        let (first, has_waited) = (Arc::clone(&first), Arc::clone(&has_waited));
        Arc::new(move |what, path| {
            // The first look for the key's objects.
            let waits = what == Hooked::Listed
                && path.parts().any(|part| part.as_ref() == "c")
                && !has_waited.swap(true, Ordering::Relaxed);
            let first = Arc::clone(&first);
            async move {
                if waits {
                    assert!(put(&first, "k", &payload(1, 100)).await.expect("stores"));
                    tokio::time::advance(limits::OPAQUE_RETRACT_MAX).await;
                }
                Ok(())
            }
            .boxed()
        })
    };
    let other = backend.hooked_replica(waiting).await;
    assert!(!has_waited.load(Ordering::Relaxed), "no start lists objects");
    let refused = put(&other, "k", &payload(2, 100)).await;
    assert!(has_waited.load(Ordering::Relaxed) && exists(&refused), "{refused:?}");
    is_the_first(&backend).await;
}

/// Writers of the same bytes that collide with an acknowledged one give way before they compare each other whole, which may take
/// longer than they have.
#[tokio::test(start_paused = true)]
async fn writers_of_a_large_object_give_way_in_time() {
    let backend = Backend::memory();
    let first = backend.replica().await;
    let (written, is_slow) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let second_pair: Hook = {
        let (first, written, is_slow) = (Arc::clone(&first), Arc::clone(&written), Arc::clone(&is_slow));
        Arc::new(move |what, path| {
            let begins = what == Hooked::Writing && is_object(&path);
            let reads = what == Hooked::Reading && is_object(&path) && is_slow.load(Ordering::Relaxed);
            let (first, written, is_slow) = (Arc::clone(&first), Arc::clone(&written), Arc::clone(&is_slow));
            async move {
                // Both have looked for the key's objects before either writes.
                if begins && written.fetch_add(1, Ordering::Relaxed) == 1 {
                    assert!(put(&first, "k", &payload(1, 100)).await.expect("stores"));
                    is_slow.store(true, Ordering::Relaxed);
                }
                while begins && !is_slow.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if reads {
                    tokio::time::sleep(Duration::from_secs(3)).await;
                }
                Ok(())
            }
            .boxed()
        })
    };
    let one = backend.hooked_replica(Arc::clone(&second_pair)).await;
    let other = backend.hooked_replica(second_pair).await;
    let bytes = payload(2, 3 << 20);
    let done = join_all([put(&one, "k", &bytes), put(&other, "k", &bytes)]).await;
    assert!(done.iter().all(exists), "{done:?}");
    is_the_first(&backend).await;
}

/// The salt of its namespace is rotated while the body of a PUT arrives.
#[tokio::test]
async fn a_value_under_a_salt_that_was_replaced_is_refused() {
    let backend = Backend::memory();
    let storage = backend.replica().await;
    let (rotating, bytes) = (Arc::clone(&storage), payload(1, 100));
    let parts = futures::stream::iter(bytes.chunks(50).map(Bytes::copy_from_slice).collect::<Vec<_>>());
    let parts = parts.enumerate().then(move |(n, part)| {
        let storage = Arc::clone(&rotating);
        async move {
            if n == 1 {
                let keep = Duration::ZERO;
                let rotated =
                    storage.catalog().rotate_namespace(&tenant(), &name("n"), &ModelId::OPAQUE, keep).await;
                rotated.expect("rotates");
            }
            Ok::<_, std::convert::Infallible>(part)
        }
    });
    let put = PutObject {
        tenant: tenant(),
        namespace: name("n"),
        key: key("k"),
        bytes: 100,
        hint: RequestHint::default(),
        listed: false,
        reservation: None,
    };
    let stored = storage.ingest().put_object(put, parts).await;
    assert!(
        matches!(
            stored,
            Err(ObjectError::Put(PutError::Store(_)) | ObjectError::Chunk(ChunkError::Store(_)))
        ),
        "{stored:?}"
    );
    assert!(self::put(&storage, "k", &payload(1, 100)).await.expect("sent again"));
}

/// A writer dies between its write and yielding: its object is never served.
#[tokio::test]
async fn what_a_writer_left_behind_is_not_served() {
    let backend = Backend::memory();
    let first = backend.replica().await;
    let other = backend.hooked_replica(meeting(&first, losing_answers(true))).await;
    let lost = put(&other, "k", &payload(2, 100)).await;
    assert!(matches!(lost, Err(ObjectError::Put(PutError::Store(_)))), "{lost:?}");
    assert!(get(&first, "k", ByteRange::Whole).await.expect("reads") == payload(1, 100));
    let cold = backend.replica().await;
    assert!(is_missing(&cold, "k").await, "which of the two was acknowledged is not known here");
    // A context that cannot be read may pin both: they stay, since one alone would be served.
    let unreadable = Key::Context { tenant: tenant(), context_id: uuid::Uuid::now_v7(), version: 1 };
    let (objects, unreadable) = (cold.store().objects(), cold.store().layout().path(&unreadable));
    objects.put(&unreadable, "{".into()).await.expect("writes");
    let kept = collect(&cold, &at_once()).await;
    assert_eq!((kept.duplicates, kept.spared), (0, 0), "nothing was decided");
    assert!(is_missing(&cold, "k").await);
    objects.delete(&unreadable).await.expect("deletes");
    // The collector takes both, and the key is free.
    assert_eq!(collect(&cold, &at_once()).await.duplicates, 2);
    for replica in [&cold, &backend.replica().await] {
        assert!(is_missing(replica, "k").await);
    }
    assert!(put(&cold, "k", &payload(3, 100)).await.expect("stores"));
    assert!(get(&backend.replica().await, "k", ByteRange::Whole).await.expect("reads") == payload(3, 100));
}

/// Over a directory, writers on threads of their own find each other as tasks do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_that_have_a_thread_find_each_other() {
    let backend = Backend::file();
    let replicas = [backend.replica().await, backend.replica().await];
    for round in 0..4 {
        let text = format!("k{round}");
        let writers = (0..6).map(|writer: u8| {
            let replica = Arc::clone(&replicas[usize::from(writer % 2)]);
            let (text, seed) = (text.clone(), writer / 2);
            tokio::spawn(async move { put(&replica, &text, &payload(seed, 70_000)).await.map(|_| seed) })
        });
        let done = join_all(writers).await.into_iter().map(|done| done.expect("no panic"));
        let kept: BTreeSet<u8> = done.filter_map(Result::ok).collect();
        assert!(kept.len() <= 1, "{kept:?} were acknowledged under one key");
        for seed in kept {
            let cold = backend.replica().await;
            assert!(get(&cold, &text, ByteRange::Whole).await.expect("reads") == payload(seed, 70_000));
            assert!(exists(&put(&cold, &text, &payload(seed + 1, 70_000)).await));
        }
    }
}

/// A name that only its writer uses is not asked for before it is written.
#[tokio::test]
async fn a_writer_that_meets_no_other_reads_no_object() {
    let backend = Backend::memory();
    let read = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&read);
    let counting: Hook = Arc::new(move |what, path| {
        count.fetch_add(usize::from(what == Hooked::Reading && is_object(&path)), Ordering::Relaxed);
        async { Ok(()) }.boxed()
    });
    let writer = backend.hooked_replica(counting).await;
    assert!(put(&writer, "k", &payload(1, 100)).await.expect("stores"));
    assert_eq!(read.load(Ordering::Relaxed), 0);
}

/// A writer that finds its bytes under the key is acknowledged for an object that another one wrote: over a directory its
/// name may not be durable yet.
#[tokio::test]
async fn a_writer_that_finds_its_bytes_makes_them_durable() {
    let backend = Backend::memory();
    let synced = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&synced);
    let counting: Hook = Arc::new(move |what, path| {
        count.fetch_add(usize::from(what == Hooked::Synced && is_object(&path)), Ordering::Relaxed);
        async { Ok(()) }.boxed()
    });
    for (kind, costs) in [(StoreKind::File, 1), (StoreKind::S3, 0)] {
        let writer = backend.replica_over(backend.open_hooked_as(kind, Arc::clone(&counting)), |_| {}).await;
        let text = format!("{kind:?}");
        assert!(put(&writer, &text, &payload(1, 100)).await.expect("stores"));
        assert_eq!(synced.swap(0, Ordering::Relaxed), 0, "its own is durable");
        assert!(!put(&writer, &text, &payload(1, 100)).await.expect("the same bytes again"));
        assert_eq!(synced.swap(0, Ordering::Relaxed), costs, "{kind:?}");
    }
}

/// What a replica stores is lost without the salt, which another one may have written just now.
#[tokio::test]
async fn a_replica_makes_the_salt_of_another_one_durable() {
    let backend = Backend::memory();
    let first = backend.replica().await;
    put(&first, "k", &payload(1, 100)).await.expect("stores");
    // The former salt is still searched.
    let (namespace, keep) = (name("n"), Duration::from_secs(60));
    let rotated = first.catalog().rotate_namespace(&tenant(), &namespace, &ModelId::OPAQUE, keep).await;
    rotated.expect("rotates");
    let synced: [_; 2] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
    let counts = synced.clone();
    let counting: Hook = Arc::new(move |what, path| {
        for (part, count) in ["/salt", "/g/"].iter().zip(&counts) {
            let is_salt = what == Hooked::Synced && path.as_ref().contains(part);
            count.fetch_add(usize::from(is_salt), Ordering::Relaxed);
        }
        async { Ok(()) }.boxed()
    });
    let other = backend.replica_over(backend.open_hooked_as(StoreKind::File, counting), |_| {}).await;
    put(&other, "another", &payload(1, 100)).await.expect("stores");
    assert!(synced.iter().all(|count| count.load(Ordering::Relaxed) > 0), "{synced:?}");
}

/// A replica without a row of the key's object asks the store before it writes, and writes nothing.
#[tokio::test]
async fn a_refused_writer_writes_nothing() {
    let backend = Backend::memory();
    let first = backend.replica().await;
    put(&first, "k", &payload(1, 100)).await.expect("stores");
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let counting: Hook = Arc::new(move |what, path| {
        count.fetch_add(usize::from(what == Hooked::Written && is_object(&path)), Ordering::Relaxed);
        async { Ok(()) }.boxed()
    });
    let other = backend.hooked_replica(counting).await;
    let refused = put(&other, "k", &payload(2, 100)).await;
    assert!(exists(&refused), "{refused:?}");
    assert_eq!(written.load(Ordering::Relaxed), 0);
    is_the_first(&backend).await;
}
