use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::State;
use bytes::Bytes;
use futures::{TryStreamExt, stream};
use kvasir_api::{JobKind, JobRequest, JobState};
use kvasir_storage::{PutObject, Settings, Storage, hot::RequestHint, index::Index};
use kvasir_store::{OpenStore, StoreConfig, StoreKind, layout::JournalLog, observe::NoObserver};
use kvasir_tests::hooked::{Hook, Hooked, HookedStore};
use object_store::{ObjectStore, memory::InMemory, path::Path};
use parking_lot::Mutex;

use super::*;
use crate::{
    auth::Authenticator,
    cluster::{Cluster, ClusterConfig, MemberSource},
    config::AuthConfig,
    handlers::ops,
    jobs,
    journal_sync::JournalSync,
    metrics::Metrics,
};

/// Replica `nth` of a cluster over one store. The tenant `a` has a quota.
async fn member(nth: usize, members: usize, backend: &Arc<InMemory>) -> (AppState, Arc<Storage>) {
    member_over(nth, members, Arc::clone(backend)).await
}

async fn member_over(nth: usize, members: usize, backend: impl ObjectStore) -> (AppState, Arc<Storage>) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "[tenant.a]\nstored_bytes = 1\n").expect("writes");
    let auth = AuthConfig { tenants_file: Some(file.path().to_owned()), jwt: None, failures_per_minute: 3 };
    let authenticator = Authenticator::open(&Config { auth, ..Config::default() }).expect("a file");
    let urls: Vec<_> = (0..members).map(|nth| format!("http://r{nth}:7480")).collect();
    let members = Some(MemberSource::parse(&urls.join(",")).expect("a list"));
    let cluster = ClusterConfig { members, advertise: Some(urls[nth].clone()), zone: None };
    let (metrics, journal) = (Arc::new(Metrics::new()), JournalSync::new(Duration::from_secs(1)));
    let cluster = Cluster::new(cluster, false);
    let state = AppState::new(metrics, authenticator, None, None, None, journal, cluster);
    let config = StoreConfig::new("memory://".parse().expect("a url"));
    let (kind, observer) = (StoreKind::Memory, Arc::new(NoObserver));
    let store = OpenStore::with(backend, &Path::default(), kind, &config, observer);
    let abilities = store.probe().await.expect("answers");
    let settings = Settings::new(std::env::temp_dir());
    let storage = Storage::new(store, abilities, Index::memory(), settings, None);
    state.set_storage(Arc::clone(&storage));
    (state, storage)
}

/// Stores an object of the tenant `a`.
async fn store(storage: &Arc<Storage>, nth: usize) {
    let put = PutObject {
        tenant: "a".parse().expect("a name"),
        namespace: "n".parse().expect("a name"),
        key: format!("key-{nth}").parse().expect("a key"),
        bytes: 5,
        hint: RequestHint::default(),
        listed: false,
        reservation: None,
    };
    let body = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"bytes"))]);
    storage.ingest().put_object(put, body).await.expect("stores");
}

/// Batches of a log in the store.
async fn batches(storage: &Storage, log: JournalLog) -> usize {
    let prefix = storage.store().layout().log_prefix(log);
    let listed: Vec<_> = storage.store().objects().list(Some(&prefix)).try_collect().await.expect("lists");
    listed.len()
}

/// Whoever keeps the accounts reads each batch.
#[tokio::test]
async fn in_a_large_cluster_what_was_stored_is_written_every_second_turn_and_at_the_end() {
    for (members, expected) in [(8, [1, 2, 3, 4, 4]), (9, [1, 1, 2, 2, 3])] {
        let (state, storage) = member(0, members, &Arc::default()).await;
        let mut written = Vec::new();
        for nth in 0..4 {
            store(&storage, nth).await;
            sync_journal(state.clone()).await;
            written.push(batches(&storage, JournalLog::Stored).await);
        }
        flush(&state).await;
        written.push(batches(&storage, JournalLog::Stored).await);
        assert_eq!(written, expected, "{members} members");
    }
}

/// Every replica reads each count.
#[tokio::test]
async fn the_replica_that_keeps_the_accounts_reads_and_tells_every_second_turn() {
    let backend = Arc::default();
    let (mut keepers, mut others) = (Vec::new(), Vec::new());
    for nth in 0..9 {
        let (state, storage) = member(nth, 9, &backend).await;
        let of_kind = if state.cluster().keeps_accounts() { &mut keepers } else { &mut others };
        of_kind.push((state, storage));
    }
    let [(keeper, accounts)] = &keepers[..] else { panic!("there is one") };
    let (_, writer) = &others[0];
    let write = async |nth| {
        store(writer, nth).await;
        writer.changes().journal_append().await.expect("appends");
    };
    // It begins with what is stored from here on.
    sync_journal(keeper.clone()).await;
    write(0).await;
    let mut counts = Vec::new();
    for _ in 0..4 {
        sync_journal(keeper.clone()).await;
        count_usage(keeper, accounts).await;
        counts.push(batches(accounts, JournalLog::Counted).await);
    }
    // It reads in the second of these turns, counts, and tells in the fourth.
    assert_eq!(counts, [0, 0, 0, 1]);
    // Those who read events wait for no turn.
    let has_applied = |entries: u64| {
        let text = String::from_utf8(keeper.metrics().render()).expect("text");
        text.contains(&format!("kvasir_journal_entries_total{{direction=\"applied\"}} {entries}\n"))
    };
    write(1).await;
    let _reader = accounts.changes().events().changes();
    assert!(has_applied(1));
    sync_journal(keeper.clone()).await;
    assert!(has_applied(2));
    assert_eq!(batches(accounts, JournalLog::Counted).await, 1);
}

/// Otherwise what was stored would wait for two turns more.
#[tokio::test]
async fn a_turn_that_cannot_write_or_read_what_was_stored_is_repeated() {
    let (backend, refused) = (Arc::new(InMemory::new()), Arc::new(Mutex::new(None::<Hooked>)));
    let refuses = Arc::clone(&refused);
    let hook: Hook = Arc::new(move |request: Hooked, path: Path| {
        let of_log = format!("j/{}/", JournalLog::Stored.as_str());
        let is_it = |refused: &mut Hooked| *refused == request && path.as_ref().contains(&of_log);
        let is_refused = refuses.lock().take_if(is_it).is_some();
        async move {
            if is_refused {
                let source = "not this time".into();
                return Err(object_store::Error::PermissionDenied { path: path.to_string(), source });
            }
            Ok(())
        }
        .boxed()
    });
    let (mut keeper, mut others) = (None, Vec::new());
    for nth in 0..9 {
        let (state, storage) = member(nth, 9, &backend).await;
        if state.cluster().keeps_accounts() {
            keeper = Some(nth);
        } else {
            others.push(storage);
        }
    }
    let hooked = HookedStore::new(Arc::clone(&backend) as _, hook);
    let (state, storage) = member_over(keeper.expect("there is one"), 9, hooked).await;
    let turn = async |now_refused: Option<Hooked>| {
        *refused.lock() = now_refused;
        sync_journal(state.clone()).await;
        assert!(refused.lock().is_none(), "nothing was refused");
    };
    turn(None).await;
    turn(None).await;
    store(&storage, 0).await;
    turn(Some(Hooked::Writing)).await;
    turn(None).await;
    assert_eq!(batches(&storage, JournalLog::Stored).await, 1);
    turn(None).await;
    let writer = &others[0];
    store(writer, 1).await;
    writer.changes().journal_append().await.expect("appends");
    turn(Some(Hooked::Reading)).await;
    turn(None).await;
    let text = String::from_utf8(state.metrics().render()).expect("text");
    assert!(text.contains("kvasir_journal_entries_total{direction=\"applied\"} 1\n"), "{text}");
}

/// Each pass of each replica would announce some.
#[tokio::test(start_paused = true)]
async fn known_tails_in_the_units_of_others_are_collected_once_an_hour() {
    let once_an_hour = [true, false, false, false, false, false, true, false];
    for (members, expected) in [(8, [false; 8]), (9, once_an_hour)] {
        let (state, _) = member(0, members, &Arc::default()).await;
        let (policy, mut last) = (GcPolicy::default(), None);
        let mut passes = Vec::new();
        for _ in 0..8 {
            let before = last;
            collect_garbage(&state, &policy, &mut last).await;
            passes.push(last != before);
            tokio::time::advance(Duration::from_secs(600)).await;
        }
        assert_eq!(passes, expected, "{members} members");
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_runs_again_later_and_later_and_is_missed_where_it_is_needed() {
    let authenticator = Authenticator::open(&Config::default()).expect("no files");
    let journal = JournalSync::new(Duration::ZERO);
    let state =
        AppState::new(Arc::new(Metrics::new()), authenticator, None, None, None, journal, Cluster::default());
    for (task, missed) in [(BackgroundTask::Journal, Some("journal")), (BackgroundTask::Scrub, None)] {
        let (begun, turns) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&turns);
        let turn = async move |_| {
            let turn = {
                let mut seen = seen.lock();
                seen.push(begun.elapsed().as_secs());
                seen.len()
            };
            blocking(move || assert!(turn > 5, "turn {turn}")).await;
        };
        let running = tokio::spawn(repeat(task, state.clone(), || Duration::from_secs(1), turn));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(state.failing_task(), missed);
        // Without a store it is not ready either way.
        let Err(refused) = ops::readyz(State(state.clone())).await else { panic!("it is ready") };
        assert_eq!(refused.problem().detail.contains("keeps panicking"), missed.is_some());
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(*turns.lock(), [1, 3, 6, 11, 20, 37, 38, 39]);
        assert_eq!(state.failing_task(), None, "it is well again");
        running.abort();
        let text = String::from_utf8(state.metrics().render()).expect("text");
        let line = format!("kvasir_background_panics_total{{task=\"{}\"}} 5", task.as_str());
        assert!(text.contains(&line), "{text}");
    }
}

/// It would appear to run forever, and no other of its kind could.
#[tokio::test]
async fn a_job_that_panics_has_failed_and_the_next_one_may_run() {
    let is_broken = Arc::new(AtomicBool::new(false));
    let breaks = Arc::clone(&is_broken);
    let hook: Hook = Arc::new(move |request: Hooked, _: Path| {
        let panics = request == Hooked::Listed && breaks.load(Ordering::Relaxed);
        async move {
            assert!(!panics, "a bug");
            Ok::<_, object_store::Error>(())
        }
        .boxed()
    });
    let hooked = HookedStore::new(Arc::new(InMemory::new()), hook);
    let (state, storage) = member_over(0, 1, hooked).await;
    let ended = async || {
        let (jobs, request) = (state.jobs(), JobRequest::new(JobKind::Scrub));
        let started = jobs::start(jobs, Arc::clone(&storage), Arc::clone(state.metrics()), &request);
        let job_id = started.expect("no other runs").job_id;
        loop {
            let job = jobs.get(job_id).expect("it is kept");
            if job.state != JobState::Running {
                return (job.state, job.error.unwrap_or_default());
            }
            tokio::task::yield_now().await;
        }
    };
    is_broken.store(true, Ordering::Relaxed);
    let (failed, why) = ended().await;
    assert!(failed == JobState::Failed && why.contains("panicked"), "{failed:?}: {why}");
    is_broken.store(false, Ordering::Relaxed);
    assert_eq!(ended().await, (JobState::Done, String::new()));
    let text = String::from_utf8(state.metrics().render()).expect("text");
    assert!(text.contains("kvasir_background_panics_total{task=\"job\"} 1\n"), "{text}");
}

/// An index that is emptied after a pass in an old process must not make the next one due at once.
#[tokio::test]
async fn a_scrub_that_ended_restarts_the_interval_and_one_that_is_not_due_does_not() {
    let (state, _) = member(0, 1, &Arc::default()).await;
    let started = Instant::now();
    let mut begun = started;
    assert_eq!(scrub(&state, Duration::from_secs(3600), &mut begun, 0).await, Ok(()));
    assert_eq!(begun, started, "nothing was due");
    assert_eq!(scrub(&state, Duration::ZERO, &mut begun, 0).await, Ok(()));
    assert!(begun > started);
}

#[test]
fn scrubs_that_fail_and_read_nothing_are_tried_ever_more_rarely() {
    let interval = limits::SCRUB_DUE_EVERY * 5;
    let mut delay = Duration::ZERO;
    let attempts = [
        (Err(0), 1),
        (Err(0), 2),
        (Err(0), 4),
        (Err(0), 5),
        (Err(9), 1),
        (Err(0), 2),
        (Ok(()), 0),
        (Err(0), 1),
    ];
    for (attempt, expected) in attempts {
        delay = scrub_delay(delay, interval, attempt);
        assert_eq!(delay, limits::SCRUB_DUE_EVERY * expected);
    }
}
