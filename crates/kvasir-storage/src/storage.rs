//! The storage core: one store, its caches, and the operations over them in the modules beside this one.

use std::{
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use kvasir_api::StoredChunk;
use kvasir_types::{ModelId, Name, ObjectDigest, SeqHash};
use uuid::Uuid;

use crate::{
    cache::BoundedMap,
    events::EventLog,
    eviction::ClassId,
    hot::{HotCache, HotTier},
    index::{Index, IndexEntry, IndexRow, Scope},
    journal::Journal,
    ledger::Ledger,
    limits,
    memory::MemoryBudget,
    salt_rotation::SaltRotations,
    spool::SpoolPool,
    store::{OpenStore, StoreAbilities},
    transitions::{CrashPointObserver, NoCrashPointObserver, Transition},
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
    /// Whether to remember when objects were used: a collector with a capacity wants to know.
    pub track_uses: bool,
    /// Age at which the salts of a namespace are looked at again.
    pub salt_rotations_fresh: Duration,
    /// Sees every named state transition; tests cut there.
    pub crash_points: Arc<dyn CrashPointObserver>,
    /// The direct path.
    pub direct: DirectSettings,
}

/// The direct path between clients and the store.
#[derive(Debug, Clone)]
pub struct DirectSettings {
    /// Whether presigned URLs are given at all, where the store has such.
    pub enabled: bool,
    /// Life of a URL. At most the collector's grace: what a URL names must stay as long as the URL.
    pub url_ttl: Duration,
    /// Age at which an upload without a commit is collected.
    pub upload_ttl: Duration,
}

impl Default for DirectSettings {
    fn default() -> Self {
        Self { enabled: true, url_ttl: limits::URL_TTL, upload_ttl: limits::UPLOAD_TTL }
    }
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
            track_uses: false,
            salt_rotations_fresh: limits::SALT_ROTATIONS_FRESH,
            crash_points: Arc::new(NoCrashPointObserver),
            direct: DirectSettings::default(),
        }
    }
}

/// The last use of an object of the cold tier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastUse {
    pub(crate) at: tokio::time::Instant,
    pub(crate) class: ClassId,
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
    /// What the index took in lately, so that it can be taken out again.
    pub(crate) entries: BoundedMap<(Scope, ObjectDigest), Arc<IndexEntry>>,
    /// When objects were last found or read, and for whom; empty unless the cold tier has a capacity.
    pub(crate) uses: BoundedMap<(Scope, ObjectDigest), LastUse>,
    /// Chunks that were not in the store a moment ago.
    pub(crate) missing: BoundedMap<(Scope, SeqHash), ()>,
    /// Objects that turned out to be gone: their index rows are removed when met.
    pub(crate) dead: BoundedMap<(Scope, ObjectDigest), ()>,
    pub(crate) models: BoundedMap<(Name, ModelId), Arc<kvasir_types::ModelSpec>>,
    pub(crate) profiles: BoundedMap<(Scope, kvasir_types::ProfileHash), ()>,
    /// By tenant, and whether it was sealed when its salt was read: a tenant that gets a key gets another salt.
    pub(crate) salts: BoundedMap<(Name, bool), [u8; limits::SALT_BYTES]>,
    /// Later salts of namespaces, and when they were looked at.
    pub(crate) salt_rotations: BoundedMap<(Name, Name, bool), (tokio::time::Instant, SaltRotations)>,
    /// Expired salts whose chunks this replica has marked deleted.
    pub(crate) swept: BoundedMap<(Name, Name, [u8; limits::SALT_BYTES]), ()>,
    /// Chunks that were sent and not taken, and why.
    pub(crate) refused: BoundedMap<(Scope, SeqHash), Arc<str>>,
    /// Namespaces by the hashes that are known to be in them: their roots, and chunks that follow one.
    pub(crate) namespaces: BoundedMap<(Scope, [u8; 32]), Name>,
    /// Namespaces that are in the registry.
    pub(crate) registered: BoundedMap<(Name, Name), ()>,
    /// Direct uploads that were announced here, whose bytes this replica counts.
    pub(crate) announced: BoundedMap<(Name, Uuid), ()>,
    /// Direct uploads that were committed here, so that a commit may be sent again.
    pub(crate) committed: BoundedMap<(Name, Uuid), StoredChunk>,
    /// Objects whose URL was asked for once.
    pub(crate) direct_seen: BoundedMap<(Scope, ObjectDigest), ()>,
    pub(crate) events: EventLog,
    pub(crate) journal: Journal,
    /// What each tenant has in the store.
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) hot: Option<HotCache>,
    /// Itself, for what goes on beside the requests that began it.
    pub(crate) this: Weak<Self>,
}

impl Storage {
    /// Over an open store that was probed, with an index and no hot tier.
    pub fn new(store: OpenStore, abilities: StoreAbilities, index: Index, settings: Settings) -> Arc<Self> {
        Self::with_hot(store, abilities, index, settings, None)
    }

    /// As [`new`](Self::new), reading through a hot tier.
    pub fn with_hot(
        store: OpenStore,
        abilities: StoreAbilities,
        index: Index,
        settings: Settings,
        hot: Option<Arc<HotTier>>,
    ) -> Arc<Self> {
        let journal = Journal::new();
        Arc::new_cyclic(|this| Self {
            hot: hot.map(HotCache::new),
            this: Weak::clone(this),
            store,
            abilities,
            index,
            spools: Arc::new(SpoolPool::new(&settings)),
            catalog: BoundedMap::new(limits::CATALOG_ENTRIES_MAX, None),
            entries: BoundedMap::new(limits::INDEX_ENTRIES_MAX, None),
            uses: BoundedMap::new(limits::USES_MAX, None),
            missing: BoundedMap::new(limits::NEGATIVE_ENTRIES_MAX, Some(settings.negative_ttl)),
            dead: BoundedMap::new(limits::DEAD_ENTRIES_MAX, None),
            models: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            profiles: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            salts: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            salt_rotations: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            swept: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            refused: BoundedMap::new(limits::REFUSALS_MAX, Some(limits::REFUSALS_KEPT)),
            namespaces: BoundedMap::new(limits::LINEAGE_MAX, None),
            registered: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            announced: BoundedMap::new(limits::COMMITS_KEPT, None),
            committed: BoundedMap::new(limits::COMMITS_KEPT, None),
            direct_seen: BoundedMap::new(limits::DIRECT_SEEN_MAX, None),
            events: EventLog::new(journal.replica.as_str()),
            journal,
            ledger: Arc::default(),
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

    /// What bodies of unfinished uploads may hold in memory, and do; parts on their way to the store are beside it.
    pub fn upload_memory(&self) -> &Arc<MemoryBudget> {
        self.spools.memory()
    }

    /// The hot index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Reports a transition to the crash-point observer.
    pub(crate) fn reached(&self, transition: Transition) {
        self.settings.crash_points.reached(transition);
    }

    /// Takes note of a use by a request of `class`; where that is not known, of the class of the use before.
    pub(crate) fn used(&self, scope: Scope, object: ObjectDigest, class: Option<ClassId>) {
        if self.settings.track_uses {
            let before = || self.uses.get(&(scope, object)).map(|before| before.class);
            let class = class.or_else(before).unwrap_or(ClassId::OTHER);
            self.uses.insert((scope, object), LastUse { at: tokio::time::Instant::now(), class });
        }
    }

    /// Takes note of an object that is there.
    pub(crate) fn remember(&self, scope: Scope, entry: &Arc<IndexEntry>) {
        self.index.insert(scope, entry);
        self.missing.remove(&(scope, entry.row.seq_hash));
        self.catalog.insert((scope, entry.row.object_digest), Arc::clone(&entry.row));
        self.entries.insert((scope, entry.row.object_digest), Arc::clone(entry));
    }

    /// Takes note of an object that is not there any more.
    pub(crate) fn forget(&self, scope: Scope, object: ObjectDigest) {
        if let Some(entry) = self.entries.get(&(scope, object)) {
            self.index.remove(scope, &entry);
            self.entries.remove(&(scope, object));
        }
        self.catalog.remove(&(scope, object));
        self.dead.insert((scope, object), ());
        if let Some(hot) = &self.hot {
            hot.forget(scope, object);
        }
    }
}
