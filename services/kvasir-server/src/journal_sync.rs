//! Decides when this replica reads the other replicas' journals, and what of them.
//!
//! While it serves requests, it reads every `journal.interval`. Without requests it reads less and less
//! often, so that an idle replica sends almost no requests to the store. A lookup that finds the last read
//! too old reads first, so that removed chunks are not offered: the bound on removals holds however idle a
//! replica was.
//!
//! In a large cluster every second turn is for removals alone: nothing waits for what was stored but quotas and events.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use kvasir_storage::{JournalReading, Storage};
use kvasir_store::StoreError;
use kvasir_types::Name;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{limits, state::AppState};

/// Paces the reads of the journal.
#[derive(Debug)]
pub(crate) struct JournalSync {
    /// Zero: there is no journal.
    interval: Duration,
    turns: AtomicU32,
    /// Whether a request came since the last read.
    is_in_use: AtomicBool,
    last_read: Mutex<Option<Instant>>,
    counts_read: Mutex<Option<Instant>>,
    reading: tokio::sync::Mutex<()>,
}

impl JournalSync {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            interval,
            turns: AtomicU32::new(0),
            is_in_use: AtomicBool::new(false),
            last_read: Mutex::default(),
            counts_read: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
        }
    }

    /// The interval between reads under traffic, in a cluster of `members`: all of them together read no more often than
    /// [`limits::JOURNAL_READS_PER_SECOND`] while that keeps the bound on removals.
    pub(crate) fn interval(&self, members: usize) -> Duration {
        let shared = Duration::from_secs_f64(members as f64 / limits::JOURNAL_READS_PER_SECOND);
        self.interval.max(shared.min(limits::JOURNAL_SHARED_INTERVAL_MAX))
    }

    /// Begins a turn. Returns whether it is one to write what was stored and read it: each, unless the cluster is large.
    pub(crate) fn begin_turn(&self, is_large: bool) -> bool {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        !is_large || turn.is_multiple_of(limits::JOURNAL_STORED_TURNS)
    }

    /// Makes the next turn one to write what was stored and read it: this one was, and could not.
    pub(crate) fn repeat_turn(&self) {
        self.turns.store(0, Ordering::Relaxed);
    }

    /// The longest time until another replica has an event of this one: it is written and read, each at most as many turns later
    /// as a large cluster takes for it. Another replica may take its cluster for large where this one does not.
    pub(crate) fn lag_max(&self, members: usize) -> Duration {
        self.interval(members).saturating_mul(9 * limits::JOURNAL_STORED_TURNS) / 4
    }

    /// Age of the last read at which a lookup reads first: more than the interval with its jitter and a read.
    fn age_max(&self, members: usize) -> Duration {
        limits::JOURNAL_AGE_MAX.max(self.interval(members).mul_f64(1.25)).min(limits::JOURNAL_AGE_MAX * 2)
    }

    /// Whether there is a journal.
    pub(crate) fn is_on(&self) -> bool {
        !self.interval.is_zero()
    }

    /// Records a request.
    pub(crate) fn note_request(&self) {
        self.is_in_use.store(true, Ordering::Relaxed);
    }

    /// Whether the next read is due; called at most an interval apart.
    pub(crate) fn is_due(&self, state: &AppState, storage: &Storage) -> bool {
        let is_in_use = self.is_in_use.swap(false, Ordering::Relaxed)
            || storage.changes().events().has_readers()
            || reading(state, storage) == JournalReading::Stored;
        is_in_use || self.age().is_none_or(|age| age >= limits::JOURNAL_IDLE_INTERVAL)
    }

    fn age(&self) -> Option<Duration> {
        self.last_read.lock().map(|read| read.elapsed())
    }

    /// Reads other replicas' new entries. `is_stored_due`: also what was stored, where the index has no rows of it. If that fails,
    /// it is due in the next turn.
    pub(crate) async fn read(
        &self,
        state: &AppState,
        storage: &Storage,
        reading: JournalReading,
        is_stored_due: bool,
    ) {
        let _one_at_a_time = self.reading.lock().await;
        let mut is_read = self.read_removals(state, storage, reading).await;
        let changes = storage.changes();
        // Readers of events wait for no turn.
        let reads_stored = is_stored_due || changes.events().has_readers();
        if reading != JournalReading::Stored || !reads_stored {
            return;
        }
        if is_read {
            // To list and read what a hundred replicas stored takes seconds. Lookups wait for removals alone, and for this once the
            // last read is too old for them.
            let (begun, read) = (Instant::now(), changes.journal_tail(reading).await);
            is_read = self.note_read(state, storage, reading, begun, read);
        }
        if !is_stored_due {
            return;
        }
        if !is_read {
            self.repeat_turn();
        } else if state.cluster().keeps_accounts() {
            changes.publish_usage(|tenant| has_quota(state, tenant));
        }
    }

    /// Reads other replicas' new entries if the last read is too old for lookups. If the store does not
    /// respond in time, the lookup uses the present state.
    pub(crate) async fn catch_up(&self, state: &AppState, storage: &Storage) {
        let age_max = self.age_max(state.cluster().len());
        let is_recent = || self.interval.is_zero() || self.age().is_some_and(|age| age < age_max);
        if is_recent() {
            return;
        }
        let catch_up = async {
            let _one_at_a_time = self.reading.lock().await;
            if !is_recent() {
                self.read_removals(state, storage, reading(state, storage)).await;
            }
        };
        if tokio::time::timeout(limits::JOURNAL_CATCH_UP_TIME_MAX, catch_up).await.is_err() {
            tracing::warn!("the store is slow: lookups proceed without other replicas' latest removals");
        }
    }

    /// Reads what others stored, if this replica did not until now but has readers of events. Where the store does not respond in
    /// time, the next read does it.
    pub(crate) async fn hear_stored(&self, state: &AppState, storage: &Storage) {
        if storage.changes().events().is_complete() || !self.is_on() {
            return;
        }
        let read = self.read(state, storage, reading(state, storage), false);
        let _ = tokio::time::timeout(limits::JOURNAL_CATCH_UP_TIME_MAX, read).await;
    }

    /// Reads all but what was stored, where the index has no rows of it. Returns whether it could.
    async fn read_removals(&self, state: &AppState, storage: &Storage, mut reading: JournalReading) -> bool {
        let are_counts_recent =
            self.counts_read.lock().is_some_and(|read| read.elapsed() < limits::JOURNAL_COUNTS_EVERY);
        if reading == JournalReading::Counts && are_counts_recent {
            reading = JournalReading::Removals;
        }
        let (begun, read) = (Instant::now(), storage.changes().journal_tail_leaving_stored(reading).await);
        self.note_read(state, storage, reading, begun, read)
    }

    /// Takes note of a read that began then. Returns whether it succeeded.
    fn note_read(
        &self,
        state: &AppState,
        storage: &Storage,
        reading: JournalReading,
        begun: Instant,
        read: Result<usize, StoreError>,
    ) -> bool {
        match read {
            Ok(entries) => {
                state.metrics().journal("applied", entries);
                state.metrics().journal_skipped(storage.changes().journal_skipped());
                *self.last_read.lock() = Some(begun);
                if reading != JournalReading::Removals {
                    *self.counts_read.lock() = Some(begun);
                }
                true
            }
            Err(error) => {
                tracing::warn!(%error, "reading other replicas' journals failed; it will be retried");
                false
            }
        }
    }
}

/// What this replica reads now.
pub(crate) fn reading(state: &AppState, storage: &Storage) -> JournalReading {
    if !state.cluster().is_large() {
        return JournalReading::Rows;
    }
    let has_quotas = state.authenticator().has_stored_quotas();
    let counts = has_quotas && (state.cluster().keeps_accounts() || storage.changes().is_counting());
    if counts || storage.changes().events().has_readers() {
        JournalReading::Stored
    } else if has_quotas {
        JournalReading::Counts
    } else {
        JournalReading::Removals
    }
}

/// Counts tenants with a quota for the others, if this replica keeps the accounts.
pub(crate) async fn count_usage(state: &AppState, storage: &Storage) {
    if reading(state, storage) != JournalReading::Stored || !state.cluster().keeps_accounts() {
        return;
    }
    if let Err(error) = storage.changes().count_uncounted(|tenant| has_quota(state, tenant)).await {
        tracing::warn!(%error, "the usage of a tenant could not be counted for the other replicas; it will be retried");
    }
}

fn has_quota(state: &AppState, tenant: &Name) -> bool {
    !state.authenticator().quota(tenant).stored().is_open()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::{
        body::Body,
        http::{Request, StatusCode, header},
    };
    use kvasir_api::routes;
    use kvasir_storage::{Settings, index::Index};
    use kvasir_store::{
        OpenStore, StoreConfig, StoreKind,
        layout::{ChunkKey, Key},
        observe::NoObserver,
    };
    use object_store::{ObjectStoreExt, PutPayload, memory::InMemory, path::Path};
    use tower::ServiceExt;

    use super::*;
    use crate::{
        auth::Authenticator,
        cluster::{Cluster, ClusterConfig, MemberSource},
        config::{AuthConfig, Config},
        metrics::Metrics,
        router::router,
    };

    fn url(nth: usize) -> String {
        format!("http://r{nth}:7480")
    }

    /// Replica `nth` of a cluster of `members`.
    fn replica(nth: usize, members: usize, tenants: &str) -> AppState {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), tenants).expect("writes");
        let auth =
            AuthConfig { tenants_file: Some(file.path().to_owned()), jwt: None, failures_per_minute: 3 };
        let list = (0..members).map(url).collect::<Vec<_>>().join(",");
        let members = Some(MemberSource::parse(&list).expect("a list"));
        AppState::new(
            Arc::new(Metrics::new()),
            Authenticator::open(&Config { auth, ..Config::default() }).expect("a file"),
            None,
            None,
            None,
            JournalSync::new(Duration::from_secs(1)),
            Cluster::new(ClusterConfig { members, advertise: Some(url(nth)), zone: None }, false),
        )
    }

    #[tokio::test]
    async fn in_a_large_cluster_one_replica_reads_for_all() {
        let config = StoreConfig::new("memory://".parse().expect("a url"));
        let store = OpenStore::open(&config, Arc::new(NoObserver)).expect("opens");
        let abilities = store.probe().await.expect("answers");
        let settings = Settings::new(std::env::temp_dir());
        let storage = Storage::new(store, abilities, Index::memory(), settings, None);
        let reading = |nth, members, tenants| reading(&replica(nth, members, tenants), &storage);
        let limited = "[tenant.a]\nstored_bytes = 1\n";
        for tenants in ["", limited] {
            assert!((0..8).all(|nth| reading(nth, 8, tenants) == JournalReading::Rows));
        }
        let rates = "[tenant.a]\nrequests_per_second = 1\n";
        for tenants in ["", rates] {
            assert!((0..9).all(|nth| reading(nth, 9, tenants) == JournalReading::Removals));
        }
        let count = |wanted| (0..9).filter(|nth| reading(*nth, 9, limited) == wanted).count();
        assert_eq!((count(JournalReading::Stored), count(JournalReading::Counts)), (1, 8));
        assert_eq!(reading(10, 9, limited), JournalReading::Counts, "it is not in the list");
        // A reader of events.
        let reader = storage.changes().events().changes();
        assert!((0..9).all(|nth| reading(nth, 9, "") == JournalReading::Stored));
        drop(reader);
    }

    /// It may not have read the journal for a minute.
    #[tokio::test]
    async fn an_idle_replica_has_no_status_of_what_another_one_removed() {
        let backend = Arc::new(InMemory::new());
        let config = StoreConfig::new("memory://".parse().expect("a url"));
        let storage = async || {
            let observer = Arc::new(NoObserver);
            let kind = StoreKind::Memory;
            let store = OpenStore::with(Arc::clone(&backend), &Path::default(), kind, &config, observer);
            let abilities = store.probe().await.expect("answers");
            Storage::new(store, abilities, Index::memory(), Settings::new(std::env::temp_dir()), None)
        };
        let key = ChunkKey {
            tenant: "default".parse().expect("a name"),
            model_id: [1; 32].into(),
            seq_hash: [2; 32].into(),
            object_digest: [3; 32].into(),
        };
        let other = storage().await;
        let path = other.store().layout().path(&Key::Chunk(key.clone()));
        backend.put(&path, PutPayload::from_static(b"bytes")).await.expect("writes");
        other.lifecycle().remove(&key).await.expect("is removed");
        let idle = AppState::new(
            Arc::new(Metrics::new()),
            Authenticator::open(&Config::default()).expect("no files"),
            None,
            None,
            None,
            JournalSync::new(Duration::from_secs(1)),
            Cluster::default(),
        );
        idle.set_storage(storage().await);
        let asked = routes::object_status(&key.model_id, &key.seq_hash, &key.object_digest);
        let request = Request::get(asked).header(header::HOST, "localhost").body(Body::empty());
        let answer = router(idle).oneshot(request.expect("a request")).await.expect("routers do not fail");
        assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn what_was_stored_is_due_every_second_turn_and_at_once_where_a_cluster_becomes_small() {
        let journal = JournalSync::new(Duration::from_secs(1));
        let due = [true, true, true, false, false, true].map(|is_large| journal.begin_turn(is_large));
        assert_eq!(due, [true, false, true, true, true, false]);
        journal.repeat_turn();
        assert_eq!([true; 4].map(|is_large| journal.begin_turn(is_large)), [true, false, true, false]);
        journal.repeat_turn();
        assert!(journal.begin_turn(true));
        // Written and read.
        let lags = [8, 100].map(|members| journal.lag_max(members).as_secs_f64());
        assert_eq!(lags, [4.5, 56.25]);
    }

    #[test]
    fn a_cluster_reads_no_more_often_than_its_share_while_removals_keep_their_bound() {
        let journal = JournalSync::new(Duration::from_secs(1));
        let intervals = [0, 1, 8, 40, 100, 1_000].map(|members| journal.interval(members).as_secs_f64());
        assert_eq!(intervals, [1.0, 1.0, 1.0, 5.0, 12.5, 12.5]);
        // What a lookup does not know, and how long it waits for that, is less than what is promised.
        let ages = [0, 8, 40, 100, 1_000].map(|members| journal.age_max(members).as_secs_f64());
        assert_eq!(ages, [10.0, 10.0, 10.0, 15.625, 15.625]);
        assert!(journal.age_max(1_000) + limits::JOURNAL_CATCH_UP_TIME_MAX < Duration::from_secs(30));
    }
}
