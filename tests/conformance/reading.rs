//! Replicas that read parts of the journal: in a large cluster one keeps accounts for all.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use kvasir_storage::{JournalReading, QuotaError, Storage, Stored, StoredQuota, limits};
use kvasir_tests::{
    chunks::{self, Chunk},
    hooked::{Hook, Hooked},
};
use kvasir_types::RootHash;

use crate::{
    Backend,
    storage_core::{key, matched, prepare, put, tenant},
};

fn chunk(root: RootHash, seed: u64) -> (Vec<u32>, Chunk) {
    let tokens = chunks::tokens(seed, 300);
    let chunk = chunks::chunk(root, &tokens, 0, 300, 50);
    (tokens, chunk)
}

async fn append(storage: &Storage) {
    storage.changes().journal_append().await.expect("appends");
}

async fn tail(storage: &Storage, reading: JournalReading) -> usize {
    storage.changes().journal_tail(reading).await.expect("reads")
}

async fn publish(storage: &Storage) {
    storage.changes().count_uncounted(|_| true).await.expect("counts");
    storage.changes().publish_usage(|_| true);
    append(storage).await;
}

/// The chunks that a replica thinks the tenant has, which has a model and a profile too.
async fn chunks_counted(storage: &Arc<Storage>) -> u64 {
    let quota = StoredQuota { objects: Some(0), bytes: None };
    match storage.changes().reserve(&tenant(), quota, Stored::one(1)).await {
        Err(QuotaError::Full { used, .. }) => used - 2,
        other => panic!("a quota of nothing is exceeded: {other:?}"),
    }
}

pub(crate) async fn a_replica_that_reads_removals_alone_asks_the_store_for_the_rest(backend: &Backend) {
    let (a, b) = (backend.replica().await, backend.replica().await);
    let root = prepare(&a).await;
    let (tokens, chunk) = chunk(root, 120);
    put(&a, &chunk).await;
    append(&a).await;
    assert_eq!((tail(&b, JournalReading::Removals).await, b.index().len()), (0, 0));
    assert_eq!(matched(&b, &tokens).await, 300);
    a.lifecycle().remove(&key(&chunk)).await.expect("removes");
    assert_eq!(tail(&b, JournalReading::Removals).await, 1);
    assert_eq!(matched(&b, &tokens).await, 0);
    // Where it begins to read everything, it leaves out the past.
    let (_, another) = self::chunk(root, 127);
    assert_eq!((tail(&b, JournalReading::Rows).await, b.index().len()), (0, 0));
    put(&a, &another).await;
    append(&a).await;
    assert_eq!((tail(&b, JournalReading::Rows).await, b.index().len()), (1, 1));
}

/// A reader that is dropped while it asks the store for a model's name reads the batch again, and counts it once.
#[tokio::test]
async fn a_reader_that_is_dropped_counts_nothing_twice() {
    let backend = Backend::memory();
    let (a, is_slow) = (backend.replica().await, Arc::new(AtomicBool::new(true)));
    let hook: Hook = Arc::new(move |request, path| {
        let is_spec = request == Hooked::Reading && path.as_ref().ends_with("spec.json");
        let hangs = is_spec && is_slow.swap(false, Ordering::Relaxed);
        async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
        .boxed()
    });
    let root = prepare(&a).await;
    let b = backend.hooked_replica(hook).await;
    assert_eq!((tail(&b, JournalReading::Rows).await, chunks_counted(&b).await), (0, 0));
    put(&a, &chunk(root, 128).1).await;
    append(&a).await;
    let dropped = tokio::time::timeout(Duration::from_millis(500), tail(&b, JournalReading::Rows)).await;
    assert!(dropped.is_err(), "{dropped:?}");
    tail(&b, JournalReading::Rows).await;
    assert_eq!(chunks_counted(&b).await, 1);
}

pub(crate) async fn one_replica_keeps_accounts_for_all(backend: &Backend) {
    let (a, b, accountant) = (backend.replica().await, backend.replica().await, backend.replica().await);
    let root = prepare(&a).await;
    let put_another = async |seed| {
        put(&a, &chunk(root, seed).1).await;
        append(&a).await;
    };
    put_another(121).await;
    // What was before it began is in its own count, which it makes when it first has to tell.
    assert_eq!(tail(&accountant, JournalReading::Stored).await, 0);
    put_another(122).await;
    assert_eq!((tail(&accountant, JournalReading::Stored).await, accountant.index().len()), (1, 0));
    publish(&accountant).await;
    assert_eq!(tail(&b, JournalReading::Counts).await, 1);
    assert_eq!(chunks_counted(&b).await, 2);
    // Others cannot know what it did not tell.
    put_another(123).await;
    assert_eq!((tail(&b, JournalReading::Counts).await, chunks_counted(&b).await), (0, 2));
    assert_eq!((chunks_counted(&a).await, tail(&accountant, JournalReading::Stored).await), (3, 1));
    publish(&accountant).await;
    assert_eq!((tail(&b, JournalReading::Counts).await, chunks_counted(&b).await), (1, 3));
    // Nothing changed: nothing is told.
    publish(&accountant).await;
    assert_eq!(tail(&b, JournalReading::Counts).await, 0);
    // Another replica takes the accounts over: it reads from where the last count ends.
    put_another(124).await;
    put_another(125).await;
    drop(accountant);
    // Some stores' dates have seconds, so two replicas may differ by as much about its time, and the count that reaches further holds.
    tokio::time::sleep(2 * limits::STORE_DATE_UNIT).await;
    assert_eq!((tail(&b, JournalReading::Stored).await, chunks_counted(&b).await), (2, 5));
    publish(&b).await;
    // The writer's own entries are in the count that it reads, and count once.
    assert_eq!((tail(&a, JournalReading::Counts).await, chunks_counted(&a).await), (3, 5));
    put(&a, &chunk(root, 126).1).await;
    assert_eq!(chunks_counted(&a).await, 6);
}

/// Each of a hundred replicas hears of the others' objects late, and the tenant exceeds its limit by no more than `docs/access.md`
/// says.
#[tokio::test(start_paused = true)]
async fn a_hundred_replicas_overshoot_by_no_more_than_the_lag_lets_them() {
    const REPLICAS: usize = 100;
    /// Seconds between two turns of the journal with a hundred members, at most. In every second one what was stored is written and
    /// read.
    const TURN: usize = 14;
    /// Seconds between two reads of the counts, at least.
    const COUNTS: usize = 30;
    /// Seconds between two writes of one replica.
    const WRITE: usize = 20;
    const LIMIT: u64 = 400;
    let backend = Backend::memory();
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(backend.replica().await);
    }
    // What is there is counted, and all have read that.
    let accountant = &replicas[0];
    let root = prepare(accountant).await;
    tail(accountant, JournalReading::Stored).await;
    put(&replicas[1], &chunk(root, 200).1).await;
    append(&replicas[1]).await;
    tail(accountant, JournalReading::Stored).await;
    publish(accountant).await;
    for replica in &replicas[1..] {
        tail(replica, JournalReading::Counts).await;
    }
    // The model, the profile and a chunk.
    let mut stored = 3;
    let quota = StoredQuota { objects: Some(LIMIT), bytes: None };
    let (mut read_at, mut is_full) = ([0; REPLICAS], [false; REPLICAS]);
    for second in 0.. {
        tokio::time::sleep(Duration::from_secs(1)).await;
        for (nth, replica) in replicas.iter().enumerate() {
            if second % WRITE == nth % WRITE {
                match replica.changes().reserve(&tenant(), quota, Stored::one(1)).await {
                    Ok(_until_it_is_stored) => {
                        put(replica, &chunk(root, 200 + stored).1).await;
                        stored += 1;
                    }
                    Err(QuotaError::Full { .. }) => is_full[nth] = true,
                    Err(error) => panic!("{error}"),
                }
            }
            if second % TURN == nth % TURN {
                let is_stored_due = (second / TURN + nth).is_multiple_of(2);
                if is_stored_due {
                    append(replica).await;
                } else {
                    replica.changes().journal_append_removals().await.expect("appends");
                }
                if nth == 0 && is_stored_due {
                    tail(replica, JournalReading::Stored).await;
                    publish(replica).await;
                } else if nth == 0 {
                    let left = replica.changes().journal_tail_leaving_stored(JournalReading::Stored);
                    left.await.expect("reads");
                } else if second - read_at[nth] >= COUNTS {
                    tail(replica, JournalReading::Counts).await;
                    read_at[nth] = second;
                }
            }
        }
        if is_full.iter().all(|is_full| *is_full) {
            break;
        }
        assert!(second < 600, "{stored} are stored, and not all replicas refuse more");
    }
    let overshoot = (REPLICAS * (5 * TURN + COUNTS) / WRITE) as u64;
    println!("{stored} stored of {LIMIT}; {overshoot} more are allowed");
    assert!(
        (LIMIT..=LIMIT + overshoot).contains(&stored),
        "{stored} stored, {LIMIT} and {overshoot} allowed"
    );
}
