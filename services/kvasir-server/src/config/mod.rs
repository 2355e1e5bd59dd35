//! Configuration: the only code that reads the environment and the configuration file.
//!
//! Layers, each overriding the previous: defaults, the usual `AWS_*` variables, the TOML file, `KVASIR_*`
//! variables, flags. Every setting is one entry of the table in `settings`; all mistakes of all layers are
//! reported at once.

mod hot;
mod layers;
mod setting;
mod settings;

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use kvasir_storage::{Settings, gc::GcPolicy, limits};
use kvasir_store::{Secret, StoreConfig};
use url::Url;

pub use crate::cluster::{ClusterConfig, MemberSource};
pub use hot::HotConfig;
pub use layers::Layers;
#[cfg(any(test, fuzzing))]
pub use layers::fuzz_file;
pub use setting::Setting;
pub use settings::SETTINGS;

/// A complete, checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// HTTP server.
    pub server: ServerConfig,
    /// Authentication.
    pub auth: AuthConfig,
    /// The other replicas.
    pub cluster: ClusterConfig,
    /// Certificates; `None` for plain HTTP.
    pub tls: Option<TlsConfig>,
    /// File with the keys of encryption at rest; `None`: nothing is encrypted.
    pub keys_file: Option<PathBuf>,
    /// The keys given inline, instead of a file.
    pub keys: Option<Secret>,
    /// The object store.
    pub store: StoreConfig,
    /// Data on the replica's own disk.
    pub cache: CacheConfig,
    /// The hot tier.
    pub hot: HotConfig,
    /// Lookups, uploads and their limits.
    pub storage: Settings,
    /// The garbage collector.
    pub gc: GcConfig,
    /// Scrubs of stored objects.
    pub scrub: ScrubConfig,
    /// The journal.
    pub journal: JournalConfig,
    /// Logging.
    pub log: LogConfig,
}

/// HTTP server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Additional address for probes and metrics over plain HTTP; `None`: they are served only at
    /// [`listen`](Self::listen).
    pub ops_listen: Option<SocketAddr>,
    /// Address of the S3 front end; `None` disables it.
    pub s3_listen: Option<SocketAddr>,
    /// Domains whose subdomains the S3 front end treats as buckets.
    pub s3_domains: Vec<String>,
    /// Allow binding non-loopback addresses without authentication.
    pub allow_unauthenticated: bool,
    /// Maximum number of connections.
    pub connections_max: usize,
    /// Maximum number of connections per client address; 0: no limit.
    pub connections_per_address: usize,
    /// Maximum memory of one connection's buffers, in bytes.
    pub connection_memory_bytes: u64,
    /// Response bytes per second, shared by the tenants; 0: unknown.
    pub egress_bytes_per_second: u64,
    /// How long running requests may continue after a shutdown begins.
    pub drain_grace: Duration,
}

/// Authentication; if neither method is set, requests need no credential.
#[derive(Debug, Clone)]
pub struct AuthConfig {
    /// Bearer tokens and quotas.
    pub tenants_file: Option<PathBuf>,
    /// JSON Web Tokens.
    pub jwt: Option<JwtConfig>,
    /// Refused credentials per client address and minute, before it is rate-limited.
    pub failures_per_minute: u32,
}

/// JSON Web Tokens of one issuer.
#[derive(Debug, Clone)]
pub struct JwtConfig {
    /// Its public keys.
    pub jwks_file: PathBuf,
    /// Claim `iss` of its tokens.
    pub issuer: String,
    /// Claim `aud` of tokens for this service.
    pub audience: String,
    /// Claim with the tenant.
    pub tenant_claim: String,
    /// Claim with the role.
    pub role_claim: String,
}

/// Certificates, as PEM.
#[derive(Debug, Clone, Default)]
pub struct TlsConfig {
    /// The service's chain.
    pub certificate_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// CA of client certificates; `None`: clients need none.
    pub client_ca_file: Option<PathBuf>,
}

/// Data on the replica's own disk; all of it may be deleted while the service is down.
#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// The directory.
    pub directory: PathBuf,
    /// Memory of the hot index's page cache.
    pub index_memory_bytes: u64,
}

/// The garbage collector.
#[derive(Debug, Clone)]
pub struct GcConfig {
    /// Interval between passes; zero: this replica does not collect.
    pub interval: Duration,
    /// Policy of a pass.
    pub policy: GcPolicy,
}

/// Scrubs: read every stored object and verify it against its name.
#[derive(Debug, Clone)]
pub struct ScrubConfig {
    /// Interval between scrubs; zero: this replica does not scrub.
    pub interval: Duration,
    /// Bytes read per second.
    pub bytes_per_second: u64,
}

/// The journal.
#[derive(Debug, Clone)]
pub struct JournalConfig {
    /// Interval between batches, and between reads of other replicas' batches; zero disables both.
    pub interval: Duration,
}

/// Logging.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// Filter in the syntax of `tracing-subscriber`'s `EnvFilter`.
    pub filter: String,
    /// Format of log lines.
    pub format: LogFormat,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON document per line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        // Replaced before use: `check` rejects a configuration without a store.
        let url = Url::parse(NO_STORE).unwrap_or_else(|_| unreachable!("a constant that parses"));
        Self {
            server: ServerConfig {
                listen: SocketAddr::from(([127, 0, 0, 1], 7480)),
                ops_listen: None,
                s3_listen: None,
                s3_domains: Vec::new(),
                allow_unauthenticated: false,
                connections_max: 1024,
                connections_per_address: 0,
                connection_memory_bytes: crate::limits::CONNECTION_MEMORY_BYTES,
                egress_bytes_per_second: 0,
                drain_grace: Duration::from_secs(25),
            },
            auth: AuthConfig { tenants_file: None, jwt: None, failures_per_minute: 30 },
            cluster: ClusterConfig::default(),
            tls: None,
            keys_file: None,
            keys: None,
            store: StoreConfig::new(url),
            cache: CacheConfig {
                directory: "kvasir-data".into(),
                index_memory_bytes: limits::INDEX_CACHE_BYTES,
            },
            hot: HotConfig::default(),
            storage: Settings::new("kvasir-data/spool".into()),
            gc: GcConfig { interval: Duration::from_secs(600), policy: GcPolicy::default() },
            scrub: ScrubConfig { interval: Duration::ZERO, bytes_per_second: 16 << 20 },
            journal: JournalConfig { interval: Duration::from_secs(1) },
            log: LogConfig { filter: "info".to_owned(), format: LogFormat::Text },
        }
    }
}

const NO_STORE: &str = "unset:";

impl Config {
    /// An embedded service for one process: a file store and all other data under `directory`.
    ///
    /// # Errors
    /// [`ConfigError`] if the path cannot be made absolute.
    pub fn embedded(directory: &Path) -> Result<Self, ConfigError> {
        let url = std::path::absolute(directory.join("store")).ok();
        let url = url.and_then(|path| Url::from_file_path(path).ok());
        let mut config = Self::default();
        config.store.url = url.ok_or_else(|| {
            ConfigError::one("embedded", format!("{} is not a usable path", directory.display()))
        })?;
        config.cache.directory = directory.join("cache");
        config.storage.spool_directory = config.cache.directory.join("spool");
        Ok(config)
    }

    /// Checks that involve several settings. Called by [`Layers::load`].
    fn check(&mut self, mistakes: &mut Vec<Mistake>) {
        let is_known = matches!(self.store.url.scheme(), "file" | "s3" | "memory");
        if self.store.url.as_str() != NO_STORE && !is_known {
            mistakes.push(Mistake::new(
                "store.url",
                "has an unknown scheme; use file:///path or s3://bucket/prefix",
            ));
        }
        if self.store.url.scheme() == "file" && self.store.url.has_host() {
            mistakes.push(Mistake::new(
                "store.url",
                "names a host; a path begins after three slashes: file:///path",
            ));
        }
        if self.store.url.as_str() == NO_STORE {
            mistakes.push(Mistake::new(
                "store.url",
                "is not set; give file:///path or s3://bucket/prefix here, or KVASIR_STORE_URL",
            ));
        }
        self.check_auth(mistakes);
        self.check_cluster(mistakes);
        self.check_store_urls(mistakes);
        self.check_virtual_hosts(mistakes);
        let (url_ttl, grace) = (self.storage.direct.url_ttl, self.gc.policy.grace);
        // No other store signs URLs.
        let url_ttl_max = match self.store.url.scheme() {
            "s3" => grace.min(crate::limits::URL_TTL_MAX),
            _ => grace,
        };
        if self.storage.direct.enabled && !(Duration::from_secs(1)..=url_ttl_max).contains(&url_ttl) {
            let problem = format!(
                "is {url_ttl:?}; it must be 1s to gc.grace ({grace:?}), so that no URL outlives its object, and for S3 at most \
                 168h, beyond which it refuses the URL"
            );
            mistakes.push(Mistake::new("direct.url_ttl", &problem));
        }
        let addresses = [("server.listen", Some(self.server.listen)), ("s3.listen", self.server.s3_listen)];
        for (setting, address) in addresses {
            if let Some(problem) = address.and_then(|address| self.refuses_to_bind(address)) {
                mistakes.push(Mistake::new(setting, &problem));
            }
        }
        self.storage.spool_directory = self.cache.directory.join("spool");
        self.storage.track_uses = self.gc.policy.capacity_bytes.is_some();
        self.storage.removals_kept = self.gc.policy.removals_kept();
    }

    /// URLs are logged and printed, so they must not contain secrets.
    fn check_store_urls(&self, mistakes: &mut Vec<Mistake>) {
        let is_bare = |url: &Url| {
            url.username().is_empty()
                && url.password().is_none()
                && url.query().is_none()
                && url.fragment().is_none()
        };
        let is_endpoint = |text: &String| {
            let url = Url::parse(text);
            url.is_ok_and(|url| matches!(url.scheme(), "http" | "https") && is_bare(&url))
        };
        let (endpoint, public) = (&self.store.endpoint, &self.store.public_endpoint);
        let checked = [
            ("store.url", is_bare(&self.store.url)),
            ("store.endpoint", endpoint.as_ref().is_none_or(is_endpoint)),
            ("store.public_endpoint", public.as_ref().is_none_or(is_endpoint)),
        ];
        mistakes.extend(checked.into_iter().filter(|(_, is_sound)| !is_sound).map(|(name, _)| {
            Mistake::new(
                name,
                "must be a URL without user, password, query and fragment; give credentials as AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY",
            )
        }));
    }

    /// The S3 client does not add the bucket to the host name of an endpoint: without it the first part of each key
    /// would be the bucket.
    fn check_virtual_hosts(&self, mistakes: &mut Vec<Mistake>) {
        if self.store.url.scheme() != "s3" || !self.store.is_virtual_hosted() {
            return;
        }
        let Some(bucket) = self.store.url.host_str() else { return };
        let names_bucket = |endpoint: &Url| {
            let rest = endpoint.host_str().and_then(|host| host.strip_prefix(bucket));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let (endpoint, public) = (&self.store.endpoint, &self.store.public_endpoint);
        for (name, endpoint) in [("store.endpoint", endpoint), ("store.public_endpoint", public)] {
            // What does not parse is a mistake already.
            let endpoint = endpoint.as_ref().and_then(|text| Url::parse(text).ok());
            if endpoint.is_some_and(|endpoint| !names_bucket(&endpoint)) {
                let problem = format!(
                    "has a host name that does not begin with the bucket, where AWS_VIRTUAL_HOSTED_STYLE_REQUEST puts it; \
                     use one like https://{bucket}.s3.example.com, or unset the variable: then the bucket is in the path"
                );
                mistakes.push(Mistake::new(name, &problem));
            }
        }
    }

    fn check_auth(&self, mistakes: &mut Vec<Mistake>) {
        if let Some(jwt) = &self.auth.jwt {
            let settings = [
                ("auth.jwks_file", jwt.jwks_file.as_os_str().is_empty()),
                ("auth.jwt_issuer", jwt.issuer.is_empty()),
                ("auth.jwt_audience", jwt.audience.is_empty()),
            ];
            let missing = settings.iter().filter(|(_, is_missing)| *is_missing);
            mistakes.extend(
                missing.map(|(name, _)| Mistake::new(name, "is not set, but other settings of JWT are")),
            );
        }
        if let Some(tls) = &self.tls {
            let settings = [("tls.certificate_file", &tls.certificate_file), ("tls.key_file", &tls.key_file)];
            let missing = settings.iter().filter(|(_, path)| path.as_os_str().is_empty());
            mistakes.extend(
                missing.map(|(name, _)| Mistake::new(name, "is not set, but other settings of TLS are")),
            );
        }
    }

    fn check_cluster(&self, mistakes: &mut Vec<Mistake>) {
        if let Some(this) = self.cluster.stranger() {
            let problem = format!("is {this}, which is not one of cluster.members");
            mistakes.push(Mistake::new("cluster.advertise", &problem));
        }
    }

    /// Whether callers need a credential.
    pub fn has_auth(&self) -> bool {
        self.auth.tenants_file.is_some() || self.auth.jwt.is_some()
    }

    /// Why the service must not listen at `address`, if so.
    pub fn refuses_to_bind(&self, address: SocketAddr) -> Option<String> {
        let refused = !address.ip().is_loopback() && !self.has_auth() && !self.server.allow_unauthenticated;
        refused.then(|| {
            format!(
                "is {address}, which is not loopback, and there is no authentication: anyone who reaches the port can read \
                 and write everything. Set auth.tenants_file or auth.jwks_file, listen at 127.0.0.1, or set \
                 server.allow_unauthenticated = true"
            )
        })
    }

    /// The configuration as TOML with secrets as `***`, as `kvasir config` prints it.
    pub fn to_toml(&self) -> String {
        settings::print(self, |setting, value| match value {
            Some(value) => format!("{} = {value}\n", setting.name()),
            None => format!("# {} is not set\n", setting.name()),
        })
    }

    /// The commented example: every setting with its meaning and this configuration's value, commented out.
    pub fn to_example(&self) -> String {
        let text = settings::print(self, |setting, value| {
            let value = value.filter(|_| setting.key != "store.url");
            let value = value.unwrap_or_else(|| setting.example.to_owned());
            format!("# {}\n#{} = {value}\n", setting.help, setting.name())
        });
        format!("{}\n{text}", EXAMPLE_HEAD.trim_start())
    }
}

const EXAMPLE_HEAD: &str = "
# Kvasir server. Every setting with its default; settings without one show an example.
# Each may also be given as an environment variable KVASIR_<SECTION>_<KEY> or a flag --<section>.<key> VALUE.
# Only store.url is required.
";

/// A configuration mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The setting, and the layer that set it.
    pub place: String,
    /// What is wrong and what to do.
    pub problem: String,
}

impl Mistake {
    fn new(place: &str, problem: &str) -> Self {
        Self { place: place.to_owned(), problem: problem.to_owned() }
    }
}

/// An invalid configuration, with all of its mistakes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The mistakes, in the order of the layers.
    pub mistakes: Vec<Mistake>,
}

impl ConfigError {
    fn one(place: &str, problem: impl Into<String>) -> Self {
        Self { mistakes: vec![Mistake::new(place, &problem.into())] }
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.mistakes.len();
        write!(f, "the configuration has {count} mistake{}", if count == 1 { "" } else { "s" })?;
        self.mistakes.iter().try_for_each(|m| write!(f, "\n  {}: {}", m.place, m.problem))
    }
}

#[cfg(test)]
mod tests;
