//! The storage core: one store, its caches, and the operations over them in the modules beside this one.

use std::{path::PathBuf, sync::Arc, time::Duration};

use kvasir_types::{ModelId, Name, ObjectDigest, SeqHash};

use crate::{
    cache::BoundedMap,
    index::{Index, IndexRow, Scope},
    journal::Journal,
    limits,
    spool::SpoolPool,
    store::{OpenStore, StoreAbilities},
    transitions::{NoWitness, Transition, Witness},
};

/// What an operator may set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where uploads wait until they are verified.
    pub spool_directory: PathBuf,
    /// Bytes of waiting uploads in memory.
    pub spool_memory_bytes: usize,
    /// Largest chunk object taken.
    pub chunk_bytes_max: u64,
    /// Largest profile taken.
    pub profile_bytes_max: u64,
    /// How long a miss is remembered; zero: not at all.
    pub negative_ttl: Duration,
    /// Tokens of a chunk that a cold lookup assumes first.
    pub probe_chunk_tokens: usize,
    /// Whether a cold lookup also tries the other chunk lengths that the format allows.
    pub probe_all_lengths: bool,
    /// Store requests of one lookup at once.
    pub lookup_parallel: usize,
    /// Sees every named state transition; tests cut there.
    pub witness: Arc<dyn Witness>,
}

impl Settings {
    /// The defaults, spooling into `directory`.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            spool_directory: directory,
            spool_memory_bytes: limits::SPOOL_MEMORY_TOTAL_BYTES,
            chunk_bytes_max: limits::CHUNK_BYTES_MAX,
            profile_bytes_max: limits::PROFILE_BYTES_MAX,
            negative_ttl: limits::NEGATIVE_TTL,
            probe_chunk_tokens: kvasir_types::CHUNK_TOKENS_DEFAULT,
            probe_all_lengths: true,
            lookup_parallel: limits::LOOKUP_PARALLEL,
            witness: Arc::new(NoWitness),
        }
    }
}

/// The storage core. Cheap to share; every method may be called at once from anywhere.
#[derive(Debug)]
pub struct Storage {
    pub(crate) store: OpenStore,
    pub(crate) abilities: StoreAbilities,
    pub(crate) index: Index,
    pub(crate) settings: Settings,
    pub(crate) spools: Arc<SpoolPool>,
    /// Objects met, so that a ranged read or a level needs no second request.
    pub(crate) catalog: BoundedMap<(Scope, ObjectDigest), Arc<IndexRow>>,
    /// Chunks that were not in the store a moment ago.
    pub(crate) missing: BoundedMap<(Scope, SeqHash), ()>,
    /// Objects that turned out to be gone: their index rows are removed when met.
    pub(crate) dead: BoundedMap<(Scope, ObjectDigest), ()>,
    pub(crate) models: BoundedMap<(Name, ModelId), Arc<kvasir_types::ModelSpec>>,
    pub(crate) profiles: BoundedMap<(Scope, kvasir_types::ProfileHash), ()>,
    pub(crate) salts: BoundedMap<Name, [u8; limits::SALT_BYTES]>,
    pub(crate) journal: Journal,
}

impl Storage {
    /// Over an open store that was probed, with an index.
    pub fn new(store: OpenStore, abilities: StoreAbilities, index: Index, settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            store,
            abilities,
            index,
            spools: Arc::new(SpoolPool::new(&settings)),
            catalog: BoundedMap::new(limits::CATALOG_ENTRIES_MAX, None),
            missing: BoundedMap::new(limits::NEGATIVE_ENTRIES_MAX, Some(settings.negative_ttl)),
            dead: BoundedMap::new(limits::DEAD_ENTRIES_MAX, None),
            models: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            profiles: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            salts: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            journal: Journal::new(),
            settings,
        })
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The store.
    pub fn store(&self) -> &OpenStore {
        &self.store
    }

    /// What the store was found able to do.
    pub fn abilities(&self) -> StoreAbilities {
        self.abilities
    }

    /// The hot index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Tells the witness.
    pub(crate) fn passed(&self, transition: Transition) {
        self.settings.witness.passed(transition);
    }

    /// Takes note of an object that is there.
    pub(crate) fn remember(&self, scope: Scope, row: &Arc<IndexRow>) {
        self.index.insert(scope, row);
        self.missing.remove(&(scope, row.seq_hash));
        self.catalog.insert((scope, row.object_digest), Arc::clone(row));
    }

    /// Takes note of an object that is not there any more.
    pub(crate) fn forget(&self, scope: Scope, object: ObjectDigest) {
        if let Some(row) = self.catalog.get(&(scope, object)) {
            self.index.remove(scope, &row);
            self.catalog.remove(&(scope, object));
        }
        self.dead.insert((scope, object), ());
    }
}
