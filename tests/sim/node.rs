//! A replica of the simulation, which can be killed at any moment and at any named transition.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use kvasir_storage::{
    Settings, Storage,
    index::Index,
    observe::NoObserver,
    store::{OpenStore, StoreAbilities, StoreConfig, StoreKind},
    transitions::{Transition, Witness},
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

impl Witness for Cutter {
    fn passed(&self, transition: Transition) {
        if self.at == Some(transition) && !self.life.is_over() {
            // From here on nothing of it reaches the store, and its memory is thrown away.
            self.life.end();
            *self.cuts.lock().expect("not poisoned").entry(transition).or_default() += 1;
        }
    }
}

/// A replica and its life.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) storage: Arc<Storage>,
    pub(crate) life: Life,
}

impl Node {
    /// A replica with nothing but the store, doomed to end at `cut`.
    pub(crate) fn start(store: &FaultyStore, dice: &mut Dice, cut: Option<Transition>, cuts: &Cuts) -> Self {
        let (store, life) = store.for_replica();
        let url = "memory://".parse().expect("a url");
        let config = StoreConfig { jitter_seed: dice.number(), ..StoreConfig::new(url) };
        let abilities = StoreAbilities { conditional_create: !store.ignores_conditions() };
        let observer = Arc::new(NoObserver);
        let open = OpenStore::with(store, &Path::default(), StoreKind::Memory, &config, observer);
        let mut settings = Settings::new(std::env::temp_dir());
        settings.witness = Arc::new(Cutter { life: life.clone(), at: cut, cuts: Arc::clone(cuts) });
        Self { storage: Storage::new(open, abilities, Index::memory(), settings), life }
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
