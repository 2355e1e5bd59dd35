//! Opening an object store from a typed configuration, and what it was found able to do.
//!
//! Decorators, innermost first: backend (retries inside, `object_store`'s own) ← [`ObservedStore`] ← `LimitStore`.

use std::{collections::BTreeMap, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, PutMode, PutPayload, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    limit::LimitStore,
    local::LocalFileSystem,
    memory::InMemory,
    path::Path,
};
use url::Url;
use uuid::Uuid;

use crate::{
    layout::{Key, Layout},
    limits,
    observe::{ObservedStore, StoreObserver},
    secret::Secret,
    trace::TracedConnector,
};

/// What is needed to open a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// `file:///path`, `s3://bucket/prefix` or `memory://`.
    pub url: Url,
    /// S3 endpoint, where it is not AWS's own.
    pub endpoint: Option<String>,
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
    /// Longest one request may take, its body included.
    pub request_timeout: Duration,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Retries of a failed request.
    pub retries_max: usize,
    /// Longest time from a request's first attempt to its last.
    pub retry_timeout: Duration,
}

impl StoreConfig {
    /// The defaults for a URL.
    pub fn new(url: Url) -> Self {
        Self {
            url,
            endpoint: None,
            region: None,
            access_key_id: None,
            secret_access_key: None,
            session_token: None,
            options: BTreeMap::new(),
            requests_max: limits::STORE_REQUESTS_MAX,
            request_timeout: Duration::from_secs(120),
            connect_timeout: Duration::from_secs(5),
            retries_max: 3,
            retry_timeout: Duration::from_secs(20),
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
                let store = LocalFileSystem::new_with_prefix(path)?.with_fsync(true);
                Ok(Self::with(store, &Path::default(), StoreKind::File, config, observer))
            }
            "s3" => {
                let bucket = url.host_str().filter(|h| !h.is_empty()).ok_or(wrong("names no bucket"))?;
                let prefix = Path::from_url_path(url.path()).map_err(object_store::Error::from)?;
                let store = s3_builder(config, bucket).build()?;
                Ok(Self::with(store, &prefix, StoreKind::S3, config, observer))
            }
            "memory" => {
                Ok(Self::with(InMemory::new(), &Path::default(), StoreKind::Memory, config, observer))
            }
            _ => Err(wrong("has an unknown scheme")),
        }
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
        let observed = ObservedStore::new(backend, observer);
        Self {
            store: Arc::new(LimitStore::new(observed, config.requests_max.max(1))),
            layout: Layout::new(root),
            kind,
            identity: *blake3::hash(identity.as_bytes()).as_bytes(),
        }
    }

    /// Reaches the store and finds out whether it honours conditional creates: the second of two creates of one
    /// key must fail and leave the first one's bytes.
    ///
    /// # Errors
    /// The store's own error when it cannot be reached, read and written.
    pub async fn probe(&self) -> Result<StoreAbilities, object_store::Error> {
        let path = self.layout.path(&Key::Probe(Uuid::new_v4()));
        let create = || {
            async |text: &'static str| {
                let payload = PutPayload::from_static(text.as_bytes());
                self.store.put_opts(&path, payload, PutMode::Create.into()).await
            }
        };
        create()("first").await?;
        let second = create()("second").await;
        let left = self.store.get(&path).await?.bytes().await?;
        self.store.delete(&path).await?;
        let refused = match second {
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => true,
            Err(error) => return Err(error),
            Ok(_) => false,
        };
        Ok(StoreAbilities { conditional_create: refused && left.as_ref() == b"first" })
    }
}

/// What a store was found able to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreAbilities {
    /// Conditional creates are honoured. Correctness does not need them.
    pub conditional_create: bool,
}

fn s3_builder(config: &StoreConfig, bucket: &str) -> AmazonS3Builder {
    let client = ClientOptions::new()
        .with_timeout(config.request_timeout)
        .with_connect_timeout(config.connect_timeout)
        // Who names an http:// endpoint has said so; requests are signed, secrets are not sent.
        .with_allow_http(config.endpoint.as_deref().is_some_and(|e| e.starts_with("http://")));
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries: config.retries_max,
        retry_timeout: config.retry_timeout,
    };
    let mut builder =
        AmazonS3Builder::new().with_client_options(client).with_http_connector(TracedConnector::default());
    for (name, value) in &config.options {
        // Settings of AWS tools that object_store does not know are not ours to refuse.
        if let Ok(key) = AmazonS3ConfigKey::from_str(name) {
            builder = builder.with_config(key, value.expose());
        }
    }
    builder = builder.with_bucket_name(bucket).with_retry(retry);
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint).with_virtual_hosted_style_request(false);
    }
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    }
    if let Some(key) = &config.access_key_id {
        builder = builder.with_access_key_id(key);
    }
    if let Some(secret) = &config.secret_access_key {
        builder = builder.with_secret_access_key(secret.expose());
    }
    if let Some(token) = &config.session_token {
        builder = builder.with_token(token.expose());
    }
    builder
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
