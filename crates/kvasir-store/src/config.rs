//! The typed configuration of a store.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use url::Url;

use crate::{limits, secret::Secret};

/// The parameters for opening a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// `file:///path`, `s3://bucket/prefix` or `memory://`.
    pub url: Url,
    /// S3 endpoint, if not AWS.
    pub endpoint: Option<String>,
    /// S3 endpoint in presigned URLs, if clients reach the store at a different one.
    pub public_endpoint: Option<String>,
    /// S3 region.
    pub region: Option<String>,
    /// S3 access key id; without one the identity of the pod or process is used.
    pub access_key_id: Option<String>,
    /// S3 secret key.
    pub secret_access_key: Option<Secret>,
    /// S3 session token.
    pub session_token: Option<Secret>,
    /// Other `AWS_*` settings by lower-case name, as in `object_store`.
    pub options: BTreeMap<String, Secret>,
    /// Whether to query the machine's metadata service for credentials if none are set.
    pub instance_credentials: bool,
    /// Maximum concurrent requests to the store.
    pub requests_max: usize,
    /// Timeout of one attempt: until the head of the response, or the end of a write.
    pub request_timeout: Duration,
    /// Retries of a failed request.
    pub retries_max: usize,
    /// Longest time from a request's first attempt to the start of its last; a call ends within this plus one
    /// attempt.
    pub retry_timeout: Duration,
    /// Seed of the jitter of pauses; simulations set it.
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
            retries_max: 3,
            retry_timeout: Duration::from_secs(20),
            jitter_seed: rand::random(),
        }
    }

    /// Whether the bucket is in the host name of requests to S3. The words are those of `object_store`, which
    /// does not export how it reads them; it refuses what is no boolean when the store is opened.
    pub fn is_virtual_hosted(&self) -> bool {
        let option = self.options.get("aws_virtual_hosted_style_request");
        let is_off = |value: &str| {
            ["0", "false", "off", "no", "n"].iter().any(|word| value.eq_ignore_ascii_case(word))
        };
        option.is_some_and(|value| !is_off(value.expose()))
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
    /// The name on the wire.
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
    /// The URL's scheme or form is not supported.
    #[error("store url {url}: {problem}; use file:///path, s3://bucket/prefix or memory://")]
    Url {
        /// The given URL.
        url: Url,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The directory cannot be created.
    #[error("store directory {}: {source}; check that it can be created and is writable", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// There are no credentials for S3.
    #[error(
        "store {url}: there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, give the pod an identity, \
         or set store.instance_credentials = true to use those of the machine"
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
