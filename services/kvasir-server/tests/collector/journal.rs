//! Requests for many batches of the journal: which are under way together, and in which order.

use kvasir_store::layout::JournalLog;

use super::*;

/// Requests of one kind for batches of the journal, by log: their beginnings (`true`) and ends.
type Events = Arc<Mutex<Vec<(JournalLog, bool)>>>;

fn log_of(path: &Path) -> Option<JournalLog> {
    JournalLog::ALL.into_iter().find(|log| path.as_ref().contains(&format!("j/{}/", log.as_str())))
}

/// A store in which requests of one kind for batches take a moment. The first for `refused` fails at once.
fn watched(truth: &Arc<InMemory>, kind: Hooked, refused: Option<Path>) -> (HookedStore, Events) {
    let (events, refused) = (Events::default(), Arc::new(Mutex::new(refused)));
    let told = Arc::clone(&events);
    let hook: Hook = Arc::new(move |request: Hooked, path: Path| {
        let (told, refused) = (Arc::clone(&told), Arc::clone(&refused));
        async move {
            let Some(log) = log_of(&path).filter(|_| request == kind) else { return Ok(()) };
            if refused.lock().take_if(|refused| *refused == path).is_some() {
                let source = "not this one".into();
                return Err(object_store::Error::PermissionDenied { path: path.to_string(), source });
            }
            told.lock().push((log, true));
            tokio::time::sleep(Duration::from_millis(10)).await;
            told.lock().push((log, false));
            Ok(())
        }
        .boxed()
    });
    (HookedStore::new(Arc::clone(truth) as _, hook), events)
}

/// The logs in the order of their requests: one that comes twice had some under way beside those of another.
fn order(events: &Events) -> Vec<JournalLog> {
    let mut logs: Vec<_> = events.lock().iter().map(|(log, _)| *log).collect();
    logs.dedup();
    logs
}

fn most_at_once(events: &Events) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for (_, begins) in events.lock().iter() {
        now = if *begins { now + 1 } else { now - 1 };
        most = now.max(most);
    }
    most
}

/// Batches that nobody reads, `count` in each log.
async fn put_batches(storage: &Storage, count: u64) {
    for log in JournalLog::ALL {
        for n in 0..count {
            let path = batch(storage, log, n);
            storage.store().objects().put(&path, "a batch".into()).await.expect("writes");
        }
    }
}

fn batch(storage: &Storage, log: JournalLog, n: u64) -> Path {
    let replica = "a-replica".parse().expect("a name");
    storage.store().layout().path(&Key::Journal { log, replica, n })
}

/// The batches of a log, in order.
async fn batches(storage: &Storage, log: JournalLog) -> Vec<Path> {
    let folder = storage.store().layout().log_prefix(log);
    let listed: Vec<ObjectMeta> =
        storage.store().objects().list(Some(&folder)).try_collect().await.expect("lists");
    let mut paths: Vec<Path> = listed.into_iter().map(|meta| meta.location).collect();
    paths.sort_unstable();
    paths
}

fn keeps_no_batches() -> GcPolicy {
    GcPolicy { tombstone_retention: Duration::ZERO, journal_retention: Duration::ZERO, ..at_once() }
}

#[tokio::test(start_paused = true)]
async fn old_batches_are_deleted_many_at_once_and_those_of_removals_after_all_others() {
    let (store, events) = watched(&Arc::new(InMemory::new()), Hooked::Deleting, None);
    let storage = storage_over(store, |_| {});
    put_batches(&storage, 150).await;
    assert_eq!(collect(&storage, &keeps_no_batches()).await.batches_deleted, 450);
    for log in JournalLog::ALL {
        assert!(batches(&storage, log).await.is_empty());
    }
    assert!((2..=limits::GC_PARALLEL).contains(&most_at_once(&events)));
    assert_eq!(order(&events), [JournalLog::Stored, JournalLog::Counted, JournalLog::Removed]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_cannot_be_deleted_keeps_all_batches_of_removals() {
    let truth = Arc::new(InMemory::new());
    let healthy = storage_over(Arc::clone(&truth), |_| {});
    put_batches(&healthy, 40).await;
    let refused = batch(&healthy, JournalLog::Stored, 3);
    let storage = storage_over(watched(&truth, Hooked::Deleting, Some(refused.clone())).0, |_| {});
    let stopped = storage.lifecycle().collect_garbage(&keeps_no_batches(), &WorkShare::WHOLE, |_| {}).await;
    assert!(stopped.is_err(), "{stopped:?}");
    assert!(batches(&healthy, JournalLog::Stored).await.contains(&refused));
    assert_eq!(batches(&healthy, JournalLog::Removed).await.len(), 40);
}

/// Replicas that have each stored a chunk and removed it again.
async fn writers(truth: &Arc<InMemory>, count: u64) {
    let first = storage_over(Arc::clone(truth), |_| {});
    let root = prepare(&first).await;
    for seed in 0..count {
        let writer = storage_over(Arc::clone(truth), |_| {});
        // For the store's time, which names batches of removals.
        writer.store().probe().await.expect("answers");
        let key = put(&writer, &chunks::chunk(root, &chunks::tokens(seed, 256), 0, 256, 50)).await;
        writer.lifecycle().remove(&key).await.expect("removes");
        writer.changes().journal_append().await.expect("appends");
    }
}

#[tokio::test]
async fn batches_of_many_writers_are_read_at_once_and_removals_before_what_was_stored() {
    let truth = Arc::new(InMemory::new());
    writers(&truth, 40).await;
    let (store, events) = watched(&truth, Hooked::Reading, None);
    let reader = storage_over(store, |_| {});
    assert_eq!(reader.changes().journal_replay().await.expect("reads"), 80);
    assert!((2..=limits::JOURNAL_BATCHES_AHEAD).contains(&most_at_once(&events)));
    assert_eq!(order(&events), [JournalLog::Removed, JournalLog::Stored]);
}

/// The one that fails is answered before all others that are read with it.
#[tokio::test]
async fn a_batch_that_cannot_be_read_costs_none_before_it_and_the_next_read_begins_with_it() {
    let truth = Arc::new(InMemory::new());
    writers(&truth, 40).await;
    let healthy = storage_over(Arc::clone(&truth), |_| {});
    let mut removals = batches(&healthy, JournalLog::Removed).await;
    // A reader takes them writer by writer. Their names begin with the time, by each writer's own clock.
    removals.sort_by_key(|path| path.as_ref().rsplit_once('.').map(|(_, replica)| replica.to_owned()));
    let refused = removals.swap_remove(25);
    let (store, events) = watched(&truth, Hooked::Reading, Some(refused));
    let reader = storage_over(store, |_| {});
    assert!(reader.changes().journal_replay().await.is_err());
    assert_eq!(order(&events), [JournalLog::Removed], "nothing that was stored is read before the removals");
    assert_eq!(reader.changes().journal_replay().await.expect("reads"), 80 - 25);
}

/// Every replica reads each batch of removals.
#[tokio::test]
async fn what_a_pass_deletes_of_all_tenants_is_announced_in_one_batch() {
    const DELETED: u64 = 1_500;
    let storage = storage_over(InMemory::new(), |_| {});
    // For the store's time, which names batches of removals.
    storage.store().probe().await.expect("answers");
    for n in 0..DELETED {
        let hash = *blake3::hash(&n.to_le_bytes()).as_bytes();
        let (seq_hash, object_digest) = (hash.into(), hash.into());
        let tenant = format!("tenant-{}", n % 3).parse().expect("a name");
        let key = ChunkKey { tenant, model_id: chunks::spec().model_id(), seq_hash, object_digest };
        for (file, content) in [(Key::Chunk(key.clone()), "bytes"), (Key::Tombstone(key), "removed")] {
            let path = storage.store().layout().path(&file);
            storage.store().objects().put(&path, content.into()).await.expect("writes");
        }
    }
    assert_eq!(collect(&storage, &at_once()).await.deleted, DELETED);
    assert_eq!(batches(&storage, JournalLog::Removed).await.len(), 1);
}
