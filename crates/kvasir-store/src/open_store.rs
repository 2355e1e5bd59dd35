//! An open store: its backend with its decorators.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use kvasir_types::Name;
use object_store::{ObjectStore, memory::InMemory, path::Path};
use tokio::time::Instant;

use crate::{
    config::{OpenError, StoreConfig, StoreKind},
    error::StoreError,
    file_folders::create_root,
    file_store::FileStore,
    file_thread::FileThreads,
    layout::Layout,
    limits,
    observe::{ObservedStore, StoreObserver},
    presign::Presigner,
    resilient::ResilientStore,
    s3,
    seal::{KeyService, Keyring, SealedStore},
    unfinished::UnfinishedUploads,
};

/// An open store.
#[derive(Debug, Clone)]
pub struct OpenStore {
    objects: Arc<dyn ObjectStore>,
    layout: Layout,
    kind: StoreKind,
    identity: [u8; 32],
    presigner: Option<Presigner>,
    keyring: Arc<Keyring>,
    directory: Option<PathBuf>,
    threads: FileThreads,
    unfinished: Option<UnfinishedUploads>,
    /// Set once the store was found not to implement conditional creates: they are made without the
    /// condition.
    pub(crate) plain_creates: Arc<AtomicBool>,
    /// The store's time at an instant of this process, once it was probed.
    pub(crate) probed_at: Arc<OnceLock<(i64, Instant)>>,
}

impl OpenStore {
    /// Opens the store that `config` names. Does not use the network; [`probe`](Self::probe) does.
    ///
    /// # Errors
    /// [`OpenError`] if the URL or the settings are invalid.
    pub fn open(config: &StoreConfig, observer: Arc<dyn StoreObserver>) -> Result<Self, OpenError> {
        let url = &config.url;
        let wrong = |problem| OpenError::Url { url: url.clone(), problem };
        match url.scheme() {
            "file" => {
                let path = url.to_file_path().map_err(|()| wrong("is not a local absolute path"))?;
                create_root(&path).map_err(|source| OpenError::Directory { path: path.clone(), source })?;
                let store = FileStore::new(&path).map_err(OpenError::backend)?;
                let open = Self::with(store, &Path::default(), StoreKind::File, config, observer);
                Ok(Self { directory: Some(path), ..open })
            }
            "s3" => {
                let bucket = url.host_str().filter(|h| !h.is_empty()).ok_or(wrong("names no bucket"))?;
                // The backend would query a metadata address for a minute, although nothing answers there
                // outside a cloud.
                if !config.has_credentials() {
                    return Err(OpenError::NoCredentials { url: url.clone() });
                }
                let prefix = Path::from_url_path(url.path()).map_err(OpenError::backend)?;
                let store = s3::builder(config, bucket).build().map_err(OpenError::backend)?;
                let presigner = s3::presigner(config, bucket, &store).map_err(OpenError::backend)?;
                let unfinished =
                    s3::unfinished(config, &store, Arc::clone(&observer)).map_err(OpenError::backend)?;
                let open = Self::with(store, &prefix, StoreKind::S3, config, observer);
                Ok(Self { presigner: Some(presigner), unfinished: Some(unfinished), ..open })
            }
            "memory" => {
                Ok(Self::with(InMemory::new(), &Path::default(), StoreKind::Memory, config, observer))
            }
            _ => Err(wrong("has an unknown scheme")),
        }
    }

    /// Seals chunk objects and records of the tenants for which `keys` has a key. They have no direct access:
    /// clients have no keys.
    #[must_use]
    pub fn sealed(self, keys: Arc<dyn KeyService>) -> Self {
        let keyring = Arc::new(self.keyring.with(keys));
        Self { objects: Arc::new(SealedStore::new(Arc::clone(&keyring))), keyring, ..self }
    }

    /// Its objects, through all decorators.
    pub fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }

    /// Its keys.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its backend.
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Identifies the store: an index belongs to one store.
    pub fn identity(&self) -> [u8; 32] {
        self.identity
    }

    /// Signs URLs, if the backend supports them.
    pub fn presigner(&self) -> Option<&Presigner> {
        self.presigner.as_ref()
    }

    /// Keys of tenants that are sealed.
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Its path, if it is a directory.
    pub fn directory(&self) -> Option<&PathBuf> {
        self.directory.as_ref()
    }

    /// Runs work that writes about `bytes`, in several requests one after another, to its end, whether or not the caller waits
    /// for it. Over a directory, short work has a thread for all of them, while such threads are free: handing over each
    /// request costs more than most of them.
    ///
    /// # Errors
    /// [`StoreError::Request`] if a disk does not respond; the work goes on, and may still succeed. [`StoreError::Task`] if it
    /// panics.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        bytes: u64,
        work: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        self.threads.run(operation, bytes, work)
    }

    /// Unfinished multipart uploads, if the backend supports them.
    pub fn unfinished(&self) -> Option<&UnfinishedUploads> {
        self.unfinished.as_ref()
    }

    /// Whether new objects of `tenant` are sealed.
    pub fn seals(&self, tenant: &Name) -> bool {
        self.keyring.seals(tenant)
    }

    /// The store's time in ms: as of the probe, advanced by this process's monotonic clock; `None` before the
    /// probe.
    pub fn now_ms(&self) -> Option<i64> {
        let (store_ms, since) = self.probed_at.get()?;
        Some(store_ms.saturating_add(i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX)))
    }

    /// Wraps an existing backend, for tests and fault injection.
    pub fn with<T: ObjectStore>(
        backend: T,
        root: &Path,
        kind: StoreKind,
        config: &StoreConfig,
        observer: Arc<dyn StoreObserver>,
    ) -> Self {
        let identity = format!("{}\n{}", config.url, config.endpoint.as_deref().unwrap_or_default());
        let observed = ObservedStore::new(backend, Arc::clone(&observer));
        let is_directory = kind == StoreKind::File;
        // A walk of folders has no order in which a listing could resume.
        let resilient = ResilientStore::new(observed, config, !is_directory, observer);
        // Where a disk hangs, work on threads keeps its permits of requests. Others, which may be reads, need some.
        let most = limits::STORE_FILE_THREADS_MAX.min(config.requests_max / 2);
        let threads = FileThreads::new(if is_directory { most } else { 0 }, resilient.executor());
        let plain_creates = resilient.plain_creates();
        let layout = Layout::new(root);
        let keyring = Arc::new(Keyring::new(Arc::new(resilient), layout.clone(), None));
        Self {
            objects: Arc::new(SealedStore::new(Arc::clone(&keyring))),
            layout,
            kind,
            identity: *blake3::hash(identity.as_bytes()).as_bytes(),
            presigner: None,
            keyring,
            directory: None,
            threads,
            unfinished: None,
            plain_creates,
            probed_at: Arc::default(),
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
            let left = futures::TryStreamExt::try_collect::<Vec<_>>(store.objects().list(None)).await;
            assert_eq!(left.expect("lists"), vec![]);
        }
    }

    /// Requests of work that has a thread have no deadline, and must leave some to others.
    #[test]
    fn work_on_threads_has_at_most_half_of_the_requests() {
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}", directory.path().display());
        for (requests_max, most) in [(1, 0), (2, 1), (5, 2), (1_000, limits::STORE_FILE_THREADS_MAX)] {
            let mut config = StoreConfig::new(url.parse().expect("a url"));
            config.requests_max = requests_max;
            let store = OpenStore::open(&config, Arc::new(NoObserver)).expect("opens");
            assert_eq!(store.threads.free(), most, "{requests_max}");
        }
        assert_eq!(open("memory://").expect("opens").threads.free(), 0);
    }

    #[test]
    fn s3_without_credentials_is_refused_at_once_unless_the_machine_s_are_named() {
        let mut config = StoreConfig::new("s3://bucket/prefix".parse().expect("a url"));
        let open = |config: &StoreConfig| OpenStore::open(config, Arc::new(NoObserver));
        let text = open(&config).expect_err("nobody's").to_string();
        assert!(text.contains("AWS_ACCESS_KEY_ID") && text.contains("store.instance_credentials"), "{text}");
        config.instance_credentials = true;
        assert!(open(&config).is_ok());
        config.instance_credentials = false;
        let pod = ("aws_container_credentials_relative_uri".to_owned(), "/role".to_owned().into());
        config.options.extend([pod]);
        assert!(open(&config).is_ok());
    }

    #[test]
    fn impossible_urls_say_what_to_use() {
        for url in ["http://x/y", "s3:///prefix", "file://host/path"] {
            let text = open(url).expect_err(url).to_string();
            assert!(text.contains("s3://bucket/prefix"), "{text}");
        }
    }
}
