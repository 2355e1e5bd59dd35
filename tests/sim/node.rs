//! A replica of the simulation, which can be killed at any moment and at any named transition.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use kvasir_eviction::{Moment, PolicyKind};
use kvasir_storage::{
    JournalReading, Settings, Storage,
    hot::{HotClock, HotSettings, HotTier, NoHotObserver},
    index::{Index, MemoryIndex},
    transitions::{CrashPointObserver, Transition},
};
use kvasir_store::{
    OpenStore, StoreAbilities, StoreConfig, StoreKind,
    observe::{RequestOutcome, StoreEvent, StoreObserver, StoreOp},
};
use kvasir_tests::{
    faulty::{Dice, FaultyStore, Life},
    model::Replica,
};
use object_store::path::Path;

/// How often each transition was the last thing that a replica did.
pub(crate) type Cuts = Arc<Mutex<BTreeMap<Transition, u64>>>;

/// How long batches of the journal stay.
pub(crate) const JOURNAL_RETENTION: Duration = Duration::from_secs(30);
/// How long removals are remembered: the grace and the retention of tombstones.
pub(crate) const REMOVALS_KEPT: Duration = Duration::from_secs(220);
/// Age at which parts of an upload that was not completed are collected: at the end of a simulation all of them are.
pub(crate) const UPLOAD_TTL: Duration = Duration::from_secs(120);
/// How far off a replica's idea of the store's time is at most. To the time for which removals are remembered this is what half an
/// hour is to a day, for which they are in service.
const CLOCK_ERROR_MAX_MS: usize = 5_000;

/// Kills its replica at one transition.
#[derive(Debug)]
struct Cutter {
    life: Life,
    at: Option<Transition>,
    cuts: Cuts,
}

impl CrashPointObserver for Cutter {
    fn reached(&self, transition: Transition) {
        if self.at == Some(transition) && !self.life.is_over() {
            // From here on nothing of it reaches the store, and its memory is thrown away.
            self.life.end();
            *self.cuts.lock().expect("not poisoned").entry(transition).or_default() += 1;
        }
    }
}

/// Takes note of requests that the store's client does not even send.
#[derive(Debug)]
struct Watcher(Life);

impl StoreObserver for Watcher {
    fn request(&self, _: StoreOp, _: RequestOutcome, _: u64, _: Duration) {}

    fn event(&self, event: StoreEvent) {
        if matches!(event, StoreEvent::RefusedByBreaker | StoreEvent::Busy) {
            self.0.note_fault();
        }
    }
}

/// The state that survives a replica's death, unless it is wiped: its index at the moment of death.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk(Arc<MemoryIndex>);

/// The simulation's clock.
#[derive(Debug)]
struct SimulatedClock(tokio::time::Instant);

impl HotClock for SimulatedClock {
    fn now(&self) -> Moment {
        Moment::from_micros(self.0.elapsed().as_micros() as u64)
    }
}

/// An error of either sign. It takes no number from the replica's dice: those that follow stay what they were.
fn clock_error_ms(seed: u64) -> i64 {
    Dice::new(!seed).below(2 * CLOCK_ERROR_MAX_MS + 1) as i64 - CLOCK_ERROR_MAX_MS as i64
}

/// Memory of a hot tier: a few chunks of the simulation, so that frames are evicted. It has no files, because
/// a simulated clock does not wait for a disk. `disk.rs` crashes those of the index; the hot tier's tests
/// crash its own.
const HOT_BYTES: u64 = 12 << 10;

fn hot_tier() -> Arc<HotTier> {
    let settings = HotSettings {
        ram_bytes: HOT_BYTES,
        disk_bytes: 0,
        directory: std::env::temp_dir(),
        policy: PolicyKind::Adaptive,
        tenant_share_max: 1.0,
        read_ahead_chunks: 2,
        keys: None,
    };
    let clock = Arc::new(SimulatedClock(tokio::time::Instant::now()));
    HotTier::open(settings, clock, Arc::new(NoHotObserver)).expect("no folder is needed")
}

/// How a replica starts.
pub(crate) struct Start {
    pub(crate) id: Replica,
    /// May be out of date in any way.
    pub(crate) disk: Disk,
    pub(crate) is_hot: bool,
    /// The transition at which it will die.
    pub(crate) cut: Option<Transition>,
    pub(crate) tracks_uses: bool,
}

impl Start {
    /// Starts it as the service does: it reaches the store and empties an index that is too old.
    pub(crate) async fn over(self, store: &FaultyStore, dice: &mut Dice, cuts: &Cuts) -> Node {
        let Self { id, disk, is_hot, cut, tracks_uses } = self;
        let (store, life) = store.for_replica();
        let jitter_seed = dice.number();
        life.set_clock_error_ms(clock_error_ms(jitter_seed));
        let url = "memory://".parse().expect("a url");
        let config = StoreConfig { jitter_seed, ..StoreConfig::new(url) };
        let abilities = StoreAbilities { conditional_create: !store.ignores_conditions() };
        let observer = Arc::new(Watcher(life.clone()));
        let open = OpenStore::with(store, &Path::default(), StoreKind::Memory, &config, observer);
        // For the store's time alone: what a store that fails seems to be able to do is another test's matter.
        while open.probe().await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let mut settings = Settings::new(std::env::temp_dir());
        // Large bodies that are not announced wait in a file, as they do where memory is short.
        settings.spool_memory_bytes = 4 << 20;
        settings.writer = dice.number();
        settings.track_uses = tracks_uses;
        settings.removals_kept = REMOVALS_KEPT;
        settings.direct.upload_ttl = UPLOAD_TTL;
        // Looked at again beside the requests, salts would be read at moments that no seed decides.
        settings.salt_rotations_fresh = Duration::MAX;
        settings.crash_points = Arc::new(Cutter { life: life.clone(), at: cut, cuts: Arc::clone(cuts) });
        let index = Index::over(Arc::clone(&disk.0) as Arc<_>);
        let storage = Storage::new(open, abilities, index, settings, is_hot.then(hot_tier));
        storage.changes().empty_outdated_index();
        Node { id, storage, life, disk, turns: Arc::default() }
    }
}

/// A replica, its life and its disk.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// Of this life.
    pub(crate) id: Replica,
    pub(crate) storage: Arc<Storage>,
    pub(crate) life: Life,
    pub(crate) disk: Disk,
    /// Of the journal so far.
    turns: Arc<AtomicU32>,
}

impl Node {
    /// Begins a turn of the journal. Whether what was stored is written and read in it: of a large cluster every second time, as
    /// in the service.
    pub(crate) fn begin_turn(&self) -> bool {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        self.reading() == JournalReading::Rows || turn.is_multiple_of(2)
    }

    /// What it reads of the others' journals: in a small cluster all of it, in a large one some removals alone. The promises are
    /// the same, whoever reads what.
    pub(crate) fn reading(&self) -> JournalReading {
        match self.id % 3 {
            0 => JournalReading::Rows,
            1 => JournalReading::Stored,
            _ => JournalReading::Removals,
        }
    }

    /// A replica with nothing but the store.
    pub(crate) async fn cold(id: Replica, store: &FaultyStore, dice: &mut Dice) -> Self {
        let cuts = Cuts::default();
        let cold = Start { id, disk: Disk::default(), is_hot: false, cut: None, tracks_uses: false };
        cold.over(store, dice, &cuts).await
    }

    /// The replica's answer; `None` if it dies before.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.life.over() => None,
            done = work => Some(done),
        }
    }
}

/// Whether a transition is passed only by who collects.
pub(crate) fn is_of_collector(transition: Transition) -> bool {
    matches!(
        transition,
        Transition::IntentWritten
            | Transition::EpochBegun
            | Transition::ObjectDeleted
            | Transition::GoneNoted
            | Transition::TombstoneDeleted
            | Transition::BatchDeleted
    )
}

/// The transition that was cut least, of those that can be passed here; of several the first from `turn` on.
pub(crate) fn least_cut(
    cuts: &Cuts,
    pending: &[Option<Transition>],
    store: &FaultyStore,
    turn: usize,
) -> Transition {
    let cuts = cuts.lock().expect("not poisoned");
    let all = Transition::ALL.into_iter().cycle().skip(turn % Transition::ALL.len());
    let possible = all
        .take(Transition::ALL.len())
        .filter(|t| *t != Transition::SaltProposed || store.ignores_conditions());
    let weight = |t: &Transition| {
        let aimed_at = pending.iter().filter(|p| **p == Some(*t)).count() as u64;
        cuts.get(t).copied().unwrap_or(0) + aimed_at
    };
    possible.min_by_key(weight).expect("there are some")
}

/// Otherwise all replicas would agree about the time again, and nothing would say so.
#[test]
fn clocks_of_replicas_differ_within_their_bound() {
    crate::on_simulated_time(async {
        let store = FaultyStore::new(1, 0, false);
        let (mut dice, begun) = (Dice::new(1), tokio::time::Instant::now());
        let mut since = Vec::new();
        for id in 0..20 {
            let node = Node::cold(id, &store, &mut dice).await;
            let now = node.storage.store().now_ms().expect("was probed");
            since.push(now - begun.elapsed().as_millis() as i64);
        }
        let spread = since.iter().max().expect("some") - since.iter().min().expect("some");
        // Twice the error, and what a probe takes.
        let most = 2 * CLOCK_ERROR_MAX_MS as i64 + 1_000;
        assert!((CLOCK_ERROR_MAX_MS as i64..=most).contains(&spread), "{since:?}");
    });
}
