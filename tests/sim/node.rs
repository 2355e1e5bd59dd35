//! A replica of the simulation, which can be killed at any moment and at any named transition.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use kvasir_eviction::{Moment, PolicyKind};
use kvasir_storage::{
    Settings, Storage,
    hot::{HotClock, HotSettings, HotTier, NoHotObserver},
    index::{Index, MemoryIndex},
    observe::NoObserver,
    store::{OpenStore, StoreAbilities, StoreConfig, StoreKind},
    transitions::{CrashPointObserver, Transition},
};
use kvasir_tests::faulty::{Dice, FaultyStore, Life};
use object_store::path::Path;

/// How often each transition was the last thing that a replica did.
pub(crate) type Cuts = Arc<Mutex<BTreeMap<Transition, u64>>>;

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

/// What outlives a replica, unless it is wiped: its index, as the moment of its death left it.
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

/// Memory of a hot tier: a few chunks of the simulation, so that frames come and go. It has no files: a simulated clock
/// waits for no disk. Those are crashed in `disk.rs`, of the index, and in the hot tier's own tests.
const HOT_BYTES: u64 = 12 << 10;

fn hot_tier() -> Arc<HotTier> {
    let settings = HotSettings {
        ram_bytes: HOT_BYTES,
        disk_bytes: 0,
        directory: std::env::temp_dir(),
        policy: PolicyKind::AdaptiveCost,
        tenant_share_max: 1.0,
        read_ahead_chunks: 2,
        keys: None,
    };
    let clock = Arc::new(SimulatedClock(tokio::time::Instant::now()));
    HotTier::open(settings, clock, Arc::new(NoHotObserver)).expect("no folder is needed")
}

/// A replica, its life and its disk.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) storage: Arc<Storage>,
    pub(crate) life: Life,
    pub(crate) disk: Disk,
}

impl Node {
    /// A replica with nothing but the store, doomed to end at `cut`.
    pub(crate) fn start(store: &FaultyStore, dice: &mut Dice, cut: Option<Transition>, cuts: &Cuts) -> Self {
        Self::start_on(Disk::default(), false, store, dice, cut, cuts)
    }

    /// A replica with what is on `disk`, which may be out of date in any way, with or without a hot tier.
    pub(crate) fn start_on(
        disk: Disk,
        is_hot: bool,
        store: &FaultyStore,
        dice: &mut Dice,
        cut: Option<Transition>,
        cuts: &Cuts,
    ) -> Self {
        let (store, life) = store.for_replica();
        let url = "memory://".parse().expect("a url");
        let config = StoreConfig { jitter_seed: dice.number(), ..StoreConfig::new(url) };
        let abilities = StoreAbilities { conditional_create: !store.ignores_conditions() };
        let observer = Arc::new(NoObserver);
        let open = OpenStore::with(store, &Path::default(), StoreKind::Memory, &config, observer);
        let mut settings = Settings::new(std::env::temp_dir());
        // Large bodies go in parts, as they do where memory is short.
        settings.spool_memory_bytes = 1 << 20;
        // Looked at again beside the requests, salts would be read at moments that no seed decides.
        settings.salt_rotations_fresh = std::time::Duration::MAX;
        settings.crash_points = Arc::new(Cutter { life: life.clone(), at: cut, cuts: Arc::clone(cuts) });
        let index = Index::over(Arc::clone(&disk.0) as Arc<_>);
        let storage = Storage::new(open, abilities, index, settings, is_hot.then(hot_tier));
        Self { storage, life, disk }
    }

    /// What the replica answers; nothing when it dies before.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.life.over() => None,
            done = work => Some(done),
        }
    }
}

/// The transition that was cut least, of those that can be passed here.
pub(crate) fn least_cut(cuts: &Cuts, pending: &[Option<Transition>], store: &FaultyStore) -> Transition {
    let cuts = cuts.lock().expect("not poisoned");
    let possible =
        Transition::ALL.into_iter().filter(|t| *t != Transition::SaltProposed || store.ignores_conditions());
    let weight = |t: &Transition| {
        let aimed_at = pending.iter().filter(|p| **p == Some(*t)).count() as u64;
        cuts.get(t).copied().unwrap_or(0) + aimed_at
    };
    possible.min_by_key(weight).expect("there are some")
}
