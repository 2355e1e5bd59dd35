//! Opening an object store from a typed configuration, and what it was found able to do.
//!
//! Decorators, innermost first: backend (its own retries off) ← [`ObservedStore`] ← [`ResilientStore`] ← `SealedStore`,
//! where tenants have keys.

mod body;
mod breaker;
mod budget;
mod caller;
mod gate;
mod probe;
mod resilient;
mod s3;
mod unfinished;
mod upload;
mod verdict;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use kvasir_types::Name;
use object_store::{ObjectStore, local::LocalFileSystem, memory::InMemory, path::Path};
use url::Url;

pub(crate) use self::resilient::once;
pub use self::{
    probe::StoreAbilities, resilient::ResilientStore, unfinished::UnfinishedUploads, verdict::Refusal,
};
use crate::{
    layout::Layout,
    limits,
    observe::{ObservedStore, StoreObserver},
    presign::Presigner,
    seal::{KeyService, SealedStore},
    secret::Secret,
};

/// What is needed to open a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// `file:///path`, `s3://bucket/prefix` or `memory://`.
    pub url: Url,
    /// S3 endpoint, where it is not AWS's own.
    pub endpoint: Option<String>,
    /// S3 endpoint as clients see it, for presigned URLs, where it is another one.
    pub public_endpoint: Option<String>,
    /// S3 region.
    pub region: Option<String>,
    /// S3 access key id; without one the backend's own credential chain is used.
    pub access_key_id: Option<String>,
    /// S3 secret key.
    pub secret_access_key: Option<Secret>,
    /// S3 session token.
    pub session_token: Option<Secret>,
    /// Other `AWS_*` settings by lower-case name, as `object_store` knows them.
    pub options: BTreeMap<String, Secret>,
    /// Requests to the store at once.
    pub requests_max: usize,
    /// Longest one attempt may take: to the head of an answer, or to the end of a write.
    pub request_timeout: Duration,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Retries of a failed request.
    pub retries_max: usize,
    /// Longest time from a request's first attempt to its last; a call ends within this and one attempt more.
    pub retry_timeout: Duration,
    /// Where the jitter of pauses begins; simulations fix it.
    pub jitter_seed: u64,
}

impl StoreConfig {
    /// The defaults for a URL.
    pub fn new(url: Url) -> Self {
        Self {
            url,
            endpoint: None,
            public_endpoint: None,
            region: None,
            access_key_id: None,
            secret_access_key: None,
            session_token: None,
            options: BTreeMap::new(),
            requests_max: limits::STORE_REQUESTS_MAX,
            request_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            retries_max: 3,
            retry_timeout: Duration::from_secs(20),
            jitter_seed: rand::random(),
        }
    }
}

/// Which backend a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// A directory.
    File,
    /// A bucket.
    S3,
    /// This process's memory; for tests.
    Memory,
}

impl StoreKind {
    /// As on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::S3 => "s3",
            Self::Memory => "memory",
        }
    }
}

/// A store that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL's scheme or form is not one we know.
    #[error("store url {url}: {problem}; use file:///path, s3://bucket/prefix or memory://")]
    Url {
        /// What was given.
        url: Url,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The directory cannot be made.
    #[error("store directory {}: {source}; check that it can be created and written", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The backend refused its settings.
    #[error("store settings: {0}")]
    Backend(#[from] object_store::Error),
}

/// An open store.
#[derive(Debug, Clone)]
pub struct OpenStore {
    /// The store, with its decorators.
    pub store: Arc<dyn ObjectStore>,
    /// Its keys.
    pub layout: Layout,
    /// Its backend.
    pub kind: StoreKind,
    /// Tells one store from another: an index of one is no index of the other.
    pub identity: [u8; 32],
    /// Signs URLs, where the backend has such.
    pub presigner: Option<Presigner>,
    /// Keys of tenants whose objects are sealed.
    pub keys: Option<Arc<dyn KeyService>>,
    /// Where it is, if it is a directory.
    pub directory: Option<PathBuf>,
    /// Uploads in parts that nobody finished, where the backend has such.
    pub unfinished: Option<UnfinishedUploads>,
    /// Set once the store was found to refuse conditional creates altogether: they are made without the condition.
    pub(crate) plain_creates: Arc<AtomicBool>,
}

impl OpenStore {
    /// Opens the store that `config` names. Reaches no network; [`probe`](Self::probe) does.
    ///
    /// # Errors
    /// [`OpenError`] when the URL or the settings are impossible.
    pub fn open(config: &StoreConfig, observer: Arc<dyn StoreObserver>) -> Result<Self, OpenError> {
        let url = &config.url;
        let wrong = |problem| OpenError::Url { url: url.clone(), problem };
        match url.scheme() {
            "file" => {
                let path = url.to_file_path().map_err(|()| wrong("is no local absolute path"))?;
                std::fs::create_dir_all(&path)
                    .map_err(|source| OpenError::Directory { path: path.clone(), source })?;
                let store = LocalFileSystem::new_with_prefix(&path)?.with_fsync(true);
                let open = Self::with(store, &Path::default(), StoreKind::File, config, observer);
                Ok(Self { directory: Some(path), ..open })
            }
            "s3" => {
                let bucket = url.host_str().filter(|h| !h.is_empty()).ok_or(wrong("names no bucket"))?;
                let prefix = Path::from_url_path(url.path()).map_err(object_store::Error::from)?;
                let store = s3::builder(config, bucket).build()?;
                let presigner = s3::presigner(config, bucket, &store)?;
                let unfinished = s3::unfinished(config, &store, Arc::clone(&observer))?;
                let open = Self::with(store, &prefix, StoreKind::S3, config, observer);
                Ok(Self { presigner: Some(presigner), unfinished: Some(unfinished), ..open })
            }
            "memory" => {
                Ok(Self::with(InMemory::new(), &Path::default(), StoreKind::Memory, config, observer))
            }
            _ => Err(wrong("has an unknown scheme")),
        }
    }

    /// Seals chunk objects of the tenants that `keys` has a key for. They have no direct path: clients hold no keys.
    #[must_use]
    pub fn sealed(self, keys: Arc<dyn KeyService>) -> Self {
        let store = SealedStore::new(Arc::clone(&self.store), self.layout.clone(), Arc::clone(&keys));
        Self { store: Arc::new(store), keys: Some(keys), ..self }
    }

    /// Whether chunk objects of `tenant` are sealed.
    pub fn seals(&self, tenant: &Name) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.current(tenant).is_some())
    }

    /// Wraps a backend that exists already: tests and fault injection.
    pub fn with<T: ObjectStore>(
        backend: T,
        root: &Path,
        kind: StoreKind,
        config: &StoreConfig,
        observer: Arc<dyn StoreObserver>,
    ) -> Self {
        let identity = format!("{}\n{}", config.url, config.endpoint.as_deref().unwrap_or_default());
        let observed = ObservedStore::new(backend, Arc::clone(&observer));
        // A walk of folders has no order that a listing could go on in.
        let ordered = kind != StoreKind::File;
        let resilient = ResilientStore::new(observed, config, ordered, observer);
        let plain_creates = resilient.plain_creates();
        Self {
            store: Arc::new(resilient),
            layout: Layout::new(root),
            kind,
            identity: *blake3::hash(identity.as_bytes()).as_bytes(),
            presigner: None,
            keys: None,
            directory: None,
            unfinished: None,
            plain_creates,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::NoObserver;

    fn open(url: &str) -> Result<OpenStore, OpenError> {
        let config = StoreConfig::new(url.parse().expect("a url"));
        OpenStore::open(&config, Arc::new(NoObserver))
    }

    #[tokio::test]
    async fn the_probe_tells_conditional_creates_and_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        for url in ["memory://", &format!("file://{}/new", directory.path().display())] {
            let store = open(url).expect("opens");
            assert!(store.probe().await.expect("probes").conditional_create, "{url}");
            let left = futures::TryStreamExt::try_collect::<Vec<_>>(store.store.list(None)).await;
            assert_eq!(left.expect("lists"), vec![]);
        }
    }

    #[test]
    fn impossible_urls_say_what_to_use() {
        for url in ["http://x/y", "s3:///prefix", "file://host/path"] {
            let text = open(url).expect_err(url).to_string();
            assert!(text.contains("s3://bucket/prefix"), "{text}");
        }
    }
}
