//! The repeated scrub of a replica that restarts.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::FutureExt;
use kvasir_storage::{
    PutChunk, ScrubReport, Settings, Storage, WorkShare,
    index::{HotIndex, Index, MemoryIndex},
};
use kvasir_tests::{
    chunks,
    hooked::{Hook, Hooked},
};
use kvasir_types::{ModelSpec, ProfileHash};
use object_store::{ObjectStoreExt, path::Path};
use tokio::sync::Notify;

use crate::{
    Backend,
    storage_core::{body, name, prepare, put},
};

const HOUR: Duration = Duration::from_secs(3600);
/// The row of the index that has the position.
const ROW: &[u8] = b"s";

/// A process of a replica; those of one test have the same index, one after the other.
struct Process {
    storage: Arc<Storage>,
    begun: Arc<Mutex<Vec<String>>>,
    stuck: Arc<Notify>,
}

impl Process {
    /// Its read of the object `stuck_at` never ends.
    async fn start(backend: &Backend, rows: &Arc<MemoryIndex>, stuck_at: Option<&String>) -> Self {
        let (begun, stuck) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Notify::new()));
        let (reads, told, stuck_at) = (Arc::clone(&begun), Arc::clone(&stuck), stuck_at.cloned());
        let hook: Hook = Arc::new(move |request, path| {
            let is_read = request == Hooked::Reading && path.as_ref().contains("/c/");
            if is_read {
                reads.lock().expect("nobody panicked").push(path.to_string());
            }
            let is_stuck = is_read && stuck_at.as_deref() == Some(path.as_ref());
            let told = Arc::clone(&told);
            async move {
                if is_stuck {
                    told.notify_one();
                    std::future::pending::<()>().await;
                }
                Ok(())
            }
            .boxed()
        });
        let store = backend.open_hooked(hook);
        let abilities = store.probe().await.expect("the store answers");
        let settings = Settings::new(backend.directory.path().join("spool"));
        let index = Index::over(Arc::clone(rows) as _);
        Self { storage: Storage::new(store, abilities, index, settings, None), begun, stuck }
    }

    /// The report, and the numbers of objects that were told on the way.
    async fn scrub(
        &self,
        share: &WorkShare,
        interval: Duration,
        up: Duration,
    ) -> (Option<ScrubReport>, Vec<u64>) {
        let (mut told, lifecycle) = (Vec::new(), self.storage.lifecycle());
        let scrubbed = lifecycle.continue_scrub(share, interval, up, 0, |now| told.push(now.objects)).await;
        (scrubbed.expect("lists"), told)
    }

    /// Begins a pass, and ends with it where a read does not end.
    async fn scrub_until_stuck(self, share: &WorkShare) {
        tokio::select! {
            ended = self.scrub(share, Duration::ZERO, Duration::ZERO) => panic!("it waits: {ended:?}"),
            () = self.stuck.notified() => {}
        }
    }

    /// The objects that it began to read.
    fn read(&self) -> Vec<String> {
        let mut read = self.begun.lock().expect("nobody panicked").clone();
        read.dedup();
        read
    }
}

/// Stores chunks; their paths, in order, and their bytes together.
async fn store(backend: &Backend, count: u64) -> (Vec<String>, u64) {
    let storage = backend.replica().await;
    let (root, mut bytes) = (prepare(&storage).await, 0);
    for n in 0..count {
        let chunk = chunks::chunk(root, &chunks::tokens(9_300 + n, 64), 0, 64, 50);
        put(&storage, &chunk).await;
        bytes += chunk.bytes.len() as u64;
    }
    (backend.paths("/c/").await, bytes)
}

/// Stores 48 chunks, of two models for two tenants. `a` is before `a-b`, and `a-b/` before `a/`.
async fn store_for_tenants(backend: &Backend) {
    let storage = backend.replica().await;
    let (ingest, profile) = (storage.ingest(), ProfileHash::of(chunks::PROFILE));
    for tenant in ["a", "a-b"].map(name) {
        for revision in ["1", "2"] {
            let spec = ModelSpec { revision: revision.to_owned(), ..chunks::spec() };
            let model_id = spec.model_id();
            ingest.register_model(&tenant, spec.clone(), None).await.expect("registers");
            let stored = ingest.put_profile(&tenant, &model_id, &profile, None, body(chunks::PROFILE)).await;
            stored.expect("stores");
            let root = storage.catalog().root(&tenant, &name("n"), &model_id).await.expect("a root");
            for n in 0..12 {
                let chunk = chunks::chunk_of(&spec, root, &chunks::tokens(9_400 + n, 64), 0, 64, 50);
                let put = PutChunk::new(&tenant, &model_id, &chunk.seq_hash);
                ingest.put_chunk(put, body(&chunk.bytes)).await.expect("stores");
            }
        }
    }
}

#[tokio::test]
async fn a_restarted_replica_goes_on_with_its_scrub() {
    let (backend, rows, whole) = (Backend::memory(), Arc::<MemoryIndex>::default(), &WorkShare::WHOLE);
    let (all, bytes) = store(&backend, 6).await;
    // Found by the first process, and in the report of the second.
    let (open, damaged) = (backend.open(), Path::from(all[0].as_str()));
    let mut flipped =
        open.objects().get(&damaged).await.expect("is there").bytes().await.expect("reads").to_vec();
    *flipped.last_mut().expect("not empty") ^= 1;
    open.objects().put(&damaged, flipped.into()).await.expect("writes");
    // The interval counts from the first of these starts.
    for up in [Duration::ZERO, HOUR] {
        let process = Process::start(&backend, &rows, None).await;
        assert_eq!(process.scrub(whole, HOUR, up).await, (None, Vec::new()));
    }
    Process::start(&backend, &rows, Some(&all[3])).await.scrub_until_stuck(whole).await;
    let process = Process::start(&backend, &rows, None).await;
    let (report, told) = process.scrub(whole, HOUR, Duration::ZERO).await;
    let (report, read) = (report.expect("one is under way"), process.read());
    // The first object is recorded at once, and others where they took ten seconds.
    let before = all.len() - read.len();
    assert!((1..=3).contains(&before) && all.ends_with(&read), "{read:?} of {all:?}");
    assert_eq!(report, ScrubReport { objects: 6, bytes, quarantined: 1, ..ScrubReport::default() });
    assert_eq!(told, (before as u64..=6).collect::<Vec<_>>());
    // It has ended: the next one is due in an hour, and begins at the first object.
    let process = Process::start(&backend, &rows, None).await;
    assert_eq!(process.scrub(whole, HOUR, HOUR).await, (None, Vec::new()));
    assert_eq!(process.scrub(whole, Duration::ZERO, Duration::ZERO).await.1.first(), Some(&0));
    assert!(process.read().ends_with(&all[1..]));
}

#[tokio::test]
async fn a_position_that_cannot_be_read_counts_as_none() {
    let (backend, rows, whole) = (Backend::memory(), Arc::<MemoryIndex>::default(), &WorkShare::WHOLE);
    let (all, _) = store(&backend, 4).await;
    Process::start(&backend, &rows, Some(&all[1])).await.scrub_until_stuck(whole).await;
    let kept = rows.get(ROW).expect("memory").expect("is kept");
    let mut flipped = kept.clone();
    flipped[kept.len() - 5] ^= 1;
    let damaged = [Vec::new(), kept[1..].to_vec(), kept[..kept.len() - 1].to_vec(), flipped];
    for (row, expected) in damaged.iter().map(|row| (row, &all[..])).chain([(&kept, &all[1..])]) {
        rows.put(ROW, row).expect("there is room");
        let process = Process::start(&backend, &rows, None).await;
        let (report, _) = process.scrub(whole, Duration::ZERO, Duration::ZERO).await;
        assert_eq!((report.map(|report| report.objects), &process.read()[..]), (Some(4), expected));
        assert_eq!(process.storage.index().replaced(), 0, "the index stays");
    }
}

/// While a cluster is rolled, DNS leaves out one member or another for a moment.
#[tokio::test]
async fn a_pass_waits_for_the_list_that_it_began_with_and_begins_anew_after_an_hour() {
    let (backend, rows) = (Backend::memory(), Arc::<MemoryIndex>::default());
    store_for_tenants(&backend).await;
    let member = |n: usize| (format!("http://r{n}:7480"), 1.0);
    let mut shares = Vec::new();
    for this in 0..3 {
        let share = WorkShare::of((0..3).map(member).collect(), this, false);
        let own = names_of(&backend, &share).await;
        // Another order would skip what is before the position.
        assert!(own.is_sorted(), "{own:?}");
        shares.push((own, this, share));
    }
    // It has a third of the objects at least.
    let (own, this, share) = shares.into_iter().max_by_key(|(own, ..)| own.len()).expect("three");
    let away = (this + 1) % 3;
    let left = (0..3).filter(|n| *n != away).map(member).collect();
    let other = WorkShare::of(left, this - usize::from(away < this), false);
    let own_of_other = names_of(&backend, &other).await;
    Process::start(&backend, &rows, Some(&own[1])).await.scrub_until_stuck(&share).await;
    let kept = rows.get(ROW).expect("memory").expect("is kept");
    let process = Process::start(&backend, &rows, None).await;
    assert_eq!(process.scrub(&other, 2 * HOUR, Duration::ZERO).await, (None, Vec::new()));
    let (report, _) = process.scrub(&share, 2 * HOUR, Duration::ZERO).await;
    assert_eq!((report.expect("goes on").objects, process.read()), (own.len() as u64, own[1..].to_vec()));
    // The member stays away.
    rows.put(ROW, &kept).expect("there is room");
    let process = Process::start(&backend, &rows, None).await;
    let (report, _) = process.scrub(&other, 2 * HOUR, HOUR).await;
    assert_eq!((report.expect("begins").objects, process.read()), (own_of_other.len() as u64, own_of_other));
}

/// The objects of a share, in the order in which they are read.
async fn names_of(backend: &Backend, share: &WorkShare) -> Vec<String> {
    let process = Process::start(backend, &Arc::default(), None).await;
    process.storage.lifecycle().scrub(share, 0, false, |_| {}).await.expect("lists");
    process.read()
}
