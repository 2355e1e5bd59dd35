//! The typed configuration of a store.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use url::Url;

use crate::{limits, secret::Secret};

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
    /// S3 access key id; without one the identity of the pod or process is used.
    pub access_key_id: Option<String>,
    /// S3 secret key.
    pub secret_access_key: Option<Secret>,
    /// S3 session token.
    pub session_token: Option<Secret>,
    /// Other `AWS_*` settings by lower-case name, as `object_store` knows them.
    pub options: BTreeMap<String, Secret>,
    /// Whether the machine's metadata address is asked for credentials where none are given.
    pub instance_credentials: bool,
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
            instance_credentials: false,
            requests_max: limits::STORE_REQUESTS_MAX,
            request_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            retries_max: 3,
            retry_timeout: Duration::from_secs(20),
            jitter_seed: rand::random(),
        }
    }

    /// Whether requests to S3 can be signed, or need no signature.
    pub(crate) fn has_credentials(&self) -> bool {
        let is_set = |name| self.options.contains_key(name);
        self.access_key_id.is_some()
            || self.instance_credentials
            || is_set("aws_web_identity_token_file")
            || is_set("aws_container_credentials_relative_uri")
            || is_set("aws_container_credentials_full_uri")
            || is_set("aws_skip_signature")
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
    /// Nothing says who this service is to S3.
    #[error(
        "store {url}: there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, give the pod an identity, \
         or set store.instance_credentials = true to take those of the machine"
    )]
    NoCredentials {
        /// The store.
        url: Url,
    },
    /// The backend refused its settings.
    #[error("store settings: {0}")]
    Backend(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl OpenError {
    pub(crate) fn backend(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Backend(Box::new(error))
    }
}
