//! Configuration: the only place that reads the environment and the configuration file.
//!
//! Layers, each over the one before: defaults, the usual `AWS_*` variables, the TOML file, `KVASIR_*` variables, flags.
//! Every setting is one line of the table in `settings`; all mistakes of all layers are reported at once.

mod hot;
mod layers;
mod renamed;
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
pub use renamed::{RENAMED as RENAMED_SETTINGS, Renamed as RenamedSetting};
pub use setting::Setting;
pub use settings::SETTINGS;

/// A complete, checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The HTTP side.
    pub server: ServerConfig,
    /// Who may call.
    pub auth: AuthConfig,
    /// The other replicas.
    pub cluster: ClusterConfig,
    /// Certificates; none: plain HTTP.
    pub tls: Option<TlsConfig>,
    /// Keys of encryption at rest; none: nothing is encrypted.
    pub keys_file: Option<PathBuf>,
    /// The same, given outright: what holds where there is no file.
    pub keys: Option<Secret>,
    /// The object store.
    pub store: StoreConfig,
    /// What lives on the replica's own disk.
    pub cache: CacheConfig,
    /// The hot tier.
    pub hot: HotConfig,
    /// Lookups, uploads and their limits.
    pub storage: Settings,
    /// The garbage collector.
    pub gc: GcConfig,
    /// Re-reading what is stored.
    pub scrub: ScrubConfig,
    /// The journal.
    pub journal: JournalConfig,
    /// Logging.
    pub log: LogConfig,
    /// What was taken although it will not be for long: settings under old names, and values that are in the product
    /// no longer. Logged at start.
    pub warnings: Vec<Mistake>,
}

/// The HTTP side.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where probes and metrics are served over plain HTTP, beside [`listen`](Self::listen); none: only there.
    pub ops_listen: Option<SocketAddr>,
    /// Where the S3 front listens; none: there is none.
    pub s3_listen: Option<SocketAddr>,
    /// Domains whose subdomains are buckets to it.
    pub s3_domains: Vec<String>,
    /// Whether addresses other than loopback are bound although there is no authentication.
    pub allow_unauthenticated: bool,
    /// Connections at once.
    pub connections_max: usize,
    /// Connections of one address at once; 0: no limit.
    pub connections_per_address: usize,
    /// Bytes that one connection's buffers hold at most.
    pub connection_memory_bytes: u64,
    /// Bytes of answers a second that tenants share; 0: not known.
    pub egress_bytes_per_second: u64,
    /// How long requests may go on after a shutdown begins.
    pub drain_grace: Duration,
}

/// Who may call: nobody is asked where neither is given.
#[derive(Debug, Clone)]
pub struct AuthConfig {
    /// Bearer tokens and quotas.
    pub tenants_file: Option<PathBuf>,
    /// JSON Web Tokens.
    pub jwt: Option<JwtConfig>,
    /// Refused credentials of one address in a minute, before it has to wait.
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
    /// CA of client certificates; none: clients need none.
    pub client_ca_file: Option<PathBuf>,
}

/// What lives on the replica's own disk; all of it may be deleted while the service is down.
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
    /// Pause between passes; zero: this replica collects nothing.
    pub interval: Duration,
    /// What a pass does.
    pub policy: GcPolicy,
}

/// Re-reading what is stored, and comparing it with its name.
#[derive(Debug, Clone)]
pub struct ScrubConfig {
    /// Pause between scrubs; zero: this replica scrubs nothing.
    pub interval: Duration,
    /// Bytes read a second.
    pub bytes_per_second: u64,
}

/// The journal.
#[derive(Debug, Clone)]
pub struct JournalConfig {
    /// Pause between batches, and between looks at those of other replicas; zero: neither.
    pub interval: Duration,
}

/// Logging.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// Filter in the syntax of `tracing-subscriber`'s `EnvFilter`.
    pub filter: String,
    /// Form of the lines.
    pub format: LogFormat,
}

/// Form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON document a line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        // Replaced before use: a configuration without a store does not get through `check`.
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
            warnings: Vec::new(),
        }
    }
}

const NO_STORE: &str = "unset:";

impl Config {
    /// A service of its own for one process: a file store and everything else under `directory`.
    ///
    /// # Errors
    /// [`ConfigError`] when the path cannot be made absolute.
    pub fn embedded(directory: &Path) -> Result<Self, ConfigError> {
        let url = std::path::absolute(directory.join("store")).ok();
        let url = url.and_then(|path| Url::from_file_path(path).ok());
        let mut config = Self::default();
        config.store.url = url.ok_or_else(|| {
            ConfigError::one("embedded", format!("{} is no usable path", directory.display()))
        })?;
        config.cache.directory = directory.join("cache");
        config.storage.spool_directory = config.cache.directory.join("spool");
        Ok(config)
    }

    /// Checks what no single setting can check. Called by [`Layers::load`].
    fn check(&mut self, mistakes: &mut Vec<Mistake>) {
        let is_known = matches!(self.store.url.scheme(), "file" | "s3" | "memory");
        if self.store.url.as_str() != NO_STORE && !is_known {
            mistakes.push(Mistake::new(
                "store.url",
                "has an unknown scheme; use file:///path or s3://bucket/prefix",
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
        let (url_ttl, grace) = (self.storage.direct.url_ttl, self.gc.policy.grace);
        if self.storage.direct.enabled && (url_ttl > grace || url_ttl.as_secs() == 0) {
            let problem = format!(
                "is {url_ttl:?}; a URL lives 1s to gc.grace ({grace:?}), so that what it names is there"
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

    /// URLs are logged and printed, so nothing that is secret may be in one.
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

    /// Why `address` must not be listened at, if so.
    pub fn refuses_to_bind(&self, address: SocketAddr) -> Option<String> {
        let refused = !address.ip().is_loopback() && !self.has_auth() && !self.server.allow_unauthenticated;
        refused.then(|| {
            format!(
                "is {address}, which is not loopback, and there is no authentication: whoever reaches the port can read \
                 and write everything. Set auth.tenants_file or auth.jwks_file, listen at 127.0.0.1, or set \
                 server.allow_unauthenticated = true"
            )
        })
    }

    /// The configuration as TOML, secrets as `***`: what `kvasir config` prints.
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

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Where: a setting, and the layer that set it.
    pub place: String,
    /// What is wrong and what to do.
    pub problem: String,
}

impl Mistake {
    fn new(place: &str, problem: &str) -> Self {
        Self { place: place.to_owned(), problem: problem.to_owned() }
    }
}

/// A configuration that cannot be used: all of its mistakes.
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
