//! The storage core: its settings and its parts.

use std::{path::PathBuf, sync::Arc, time::Duration};

use kvasir_api::{ExplainObjectsResponse, ExplainRequest, ExplainResponse, LookupResponse};
use kvasir_store::{OpenStore, StoreAbilities};
use kvasir_types::{Name, ObjectKey};

use crate::{
    bucket::Bucket,
    catalog::Catalog,
    changes::Changes,
    contexts::Contexts,
    error::{CatalogError, ObjectError},
    explain::Explain,
    hot::{HotCache, HotTier},
    index::{Index, PrefixIndex},
    ingest::{DirectUploads, Ingest},
    lifecycle::{Lifecycle, gc::GcPolicy},
    limits,
    lookup::{Lookup, Lookups, Probes},
    read::{DirectPath, DirectReads, Reads, Tombstones},
    transitions::{CrashPointObserver, NoCrashPointObserver},
};

/// The operator's settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Directory of uploads that are not verified yet.
    pub spool_directory: PathBuf,
    /// Memory for unverified uploads, in bytes.
    pub spool_memory_bytes: usize,
    /// Largest accepted chunk object.
    pub chunk_bytes_max: u64,
    /// Largest accepted profile.
    pub profile_bytes_max: u64,
    /// How long a miss is remembered; zero: not at all.
    pub negative_ttl: Duration,
    /// Chunk length in tokens that a cold lookup tries first.
    pub probe_chunk_tokens: usize,
    /// Concurrent store requests of one lookup.
    pub lookup_parallel: usize,
    /// Whether to record when objects were used, for a collector with a capacity.
    pub track_uses: bool,
    /// How long removals are remembered: [`GcPolicy::removals_kept`](crate::gc::GcPolicy::removals_kept) of the collector.
    pub removals_kept: Duration,
    /// Age at which the salts of a namespace are read again.
    pub salt_rotations_fresh: Duration,
    /// Distinguishes this replica's opaque objects from other writers' objects with the same bytes; random
    /// unless a test sets it.
    pub writer: u64,
    /// Observes every named state transition; tests inject crashes there.
    pub crash_points: Arc<dyn CrashPointObserver>,
    /// Direct access.
    pub direct: DirectSettings,
}

/// Direct access between clients and the store.
#[derive(Debug, Clone)]
pub struct DirectSettings {
    /// Whether presigned URLs are issued, if the store supports them.
    pub enabled: bool,
    /// Lifetime of a URL. At most the collector's grace: the object of a URL must exist as long as the URL.
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
            lookup_parallel: limits::LOOKUP_PARALLEL,
            track_uses: false,
            removals_kept: GcPolicy::default().removals_kept(),
            salt_rotations_fresh: limits::SALT_ROTATIONS_FRESH,
            writer: rand::random(),
            crash_points: Arc::new(NoCrashPointObserver),
            direct: DirectSettings::default(),
        }
    }
}

/// The storage core: its parts, each behind a method. Cheap to share; every method may be called
/// concurrently.
#[derive(Debug)]
pub struct Storage {
    bucket: Arc<Bucket>,
    settings: Settings,
    catalog: Arc<Catalog>,
    reads: Arc<Reads>,
    direct_reads: DirectReads,
    lookups: Arc<Lookups>,
    changes: Arc<Changes>,
    ingest: Arc<Ingest>,
    uploads: Arc<DirectUploads>,
    contexts: Arc<Contexts>,
    lifecycle: Lifecycle,
    explain: Explain,
}

impl Storage {
    /// Over an open, probed store, with an index, and optionally a hot tier.
    pub fn new(
        store: OpenStore,
        abilities: StoreAbilities,
        index: Index,
        settings: Settings,
        tier: Option<Arc<HotTier>>,
    ) -> Arc<Self> {
        let bucket = Arc::new(Bucket::new(store, abilities, Arc::clone(&settings.crash_points)));
        let catalog = Arc::new(Catalog::new(Arc::clone(&bucket), settings.salt_rotations_fresh));
        let index = Arc::new(PrefixIndex::new(index, settings.negative_ttl, settings.track_uses));
        let tombstones = Arc::new(Tombstones::new(Arc::clone(&bucket)));
        let tier = tier.map(|tier| Arc::new(HotCache::new(tier)));
        let (b, c) = (Arc::clone(&bucket), Arc::clone(&catalog));
        let reads = Arc::new(Reads::new(b, c, index, tombstones, tier, settings.removals_kept));
        let parts = || (Arc::clone(&bucket), Arc::clone(&catalog), Arc::clone(&reads));
        let probes = Probes { chunk_tokens: settings.probe_chunk_tokens, parallel: settings.lookup_parallel };
        let lookups = Arc::new(Lookups::new(Arc::clone(&catalog), Arc::clone(&reads), probes));
        let changes = Arc::new(Changes::new(
            Arc::clone(&bucket),
            Arc::clone(&catalog),
            Arc::clone(&reads),
            settings.removals_kept,
        ));
        let (b, c, r) = parts();
        let ingest = Arc::new(Ingest::new(b, c, r, Arc::clone(&changes), &settings));
        let path = Arc::new(DirectPath::new(Arc::clone(&bucket), settings.direct.clone()));
        let direct_reads = DirectReads::new(Arc::clone(&path), Arc::clone(&bucket), Arc::clone(&reads));
        let uploads = Arc::new(DirectUploads::new(Arc::clone(&bucket), path, Arc::clone(&ingest)));
        let (b, c, r) = parts();
        let contexts = Arc::new(Contexts::new(b, c, r, Arc::clone(&changes)));
        let (b, c, r) = parts();
        let lifecycle =
            Lifecycle::new(b, c, r, Arc::clone(&changes), Arc::clone(&contexts), Arc::clone(&uploads));
        let (b, c, r) = parts();
        let explain = Explain::new(b, c, r, Arc::clone(&lookups), Arc::clone(&ingest));
        Arc::new(Self {
            bucket,
            settings,
            catalog,
            reads,
            direct_reads,
            lookups,
            changes,
            ingest,
            uploads,
            contexts,
            lifecycle,
            explain,
        })
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The store.
    pub fn store(&self) -> &OpenStore {
        self.bucket.open()
    }

    /// The store's probed capabilities.
    pub fn abilities(&self) -> StoreAbilities {
        self.bucket.abilities()
    }

    /// The hot index.
    pub fn index(&self) -> &Index {
        self.reads.index().index()
    }

    /// The hot tier, if there is one.
    pub fn tier(&self) -> Option<&Arc<HotCache>> {
        self.reads.tier()
    }

    /// The longest usable prefix of the query.
    ///
    /// # Errors
    /// [`CatalogError::UnknownModel`]; [`Store`](CatalogError::Store) if the store cannot be asked and the
    /// index knows nothing.
    pub async fn lookup(&self, lookup: &Lookup) -> Result<LookupResponse, CatalogError> {
        self.lookups.lookup(lookup).await
    }

    /// Explains a lookup of tokens to its tenant, using only that tenant's data.
    ///
    /// # Errors
    /// [`CatalogError::InvalidSpec`] for an invalid spec; [`Store`](CatalogError::Store).
    pub async fn explain(
        &self,
        tenant: &Name,
        request: &ExplainRequest,
    ) -> Result<ExplainResponse, CatalogError> {
        self.explain.explain(tenant, request).await
    }

    /// Reports how many of the leading keys have an object, and why the next one has none.
    ///
    /// # Errors
    /// [`ObjectError::Chunk`] if the store cannot be asked.
    pub async fn explain_objects(
        &self,
        tenant: &Name,
        namespace: &Name,
        keys: &[ObjectKey],
    ) -> Result<ExplainObjectsResponse, ObjectError> {
        self.explain.explain_objects(tenant, namespace, keys).await
    }

    /// Models, profiles, namespaces.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Reads of objects through the service.
    pub fn reads(&self) -> &Arc<Reads> {
        &self.reads
    }

    /// Reads of objects with presigned URLs.
    pub fn direct_reads(&self) -> &DirectReads {
        &self.direct_reads
    }

    /// Writes of chunk objects, profiles, and the records of models and namespaces.
    pub fn ingest(&self) -> &Arc<Ingest> {
        &self.ingest
    }

    /// Uploads that clients send directly to the store.
    pub fn direct_uploads(&self) -> &DirectUploads {
        &self.uploads
    }

    /// Named contexts.
    pub fn contexts(&self) -> &Contexts {
        &self.contexts
    }

    /// Journal, events, and tenants' usage.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Removal, the collector, scrubbing, rebuilding the index.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }
}
