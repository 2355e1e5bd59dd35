//! The real S3 servers that `tests/servers/run` has started for the tests.

use std::sync::Once;

use kvasir_server::Layers;
use kvasir_store::StoreConfig;

/// Expected servers; those named by `KVASIR_REQUIRE_SERVERS` must be available.
pub const EXPECTED: [&str; 2] = ["minio", "radosgw"];

/// One skip is said once.
static SKIPPED: Once = Once::new();

/// A running server.
#[derive(Debug, Clone)]
pub struct RealServer {
    /// Its name.
    pub name: String,
    /// `http://` and its address.
    pub endpoint: String,
    bucket: String,
    key: String,
    secret: String,
}

impl RealServer {
    /// Those that run.
    pub fn named_in_environment() -> Vec<Self> {
        variable("KVASIR_TEST_SERVERS").unwrap_or_default().split(';').filter_map(Self::parse).collect()
    }

    /// All of them. Says on standard output which are left out.
    ///
    /// # Panics
    /// Where one is missing that must be there.
    pub fn all() -> Vec<Self> {
        let servers = Self::named_in_environment();
        for name in EXPECTED.iter().filter(|name| servers.iter().all(|s| s.name != **name)) {
            let required = variable("KVASIR_REQUIRE_SERVERS").unwrap_or_default();
            let missing = required.split_whitespace().any(|r| r == *name);
            assert!(!missing, "KVASIR_REQUIRE_SERVERS has {name}, which is not in KVASIR_TEST_SERVERS");
            SKIPPED
                .call_once(|| say(&format!("SKIPPED: {name} is not running; `tests/servers/run` starts it")));
        }
        servers
    }

    fn parse(text: &str) -> Option<Self> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let [name, endpoint, bucket, key, secret] = words.try_into().ok()?;
        Some(Self { name, endpoint, bucket, key, secret })
    }

    /// How to open it, under a prefix.
    pub fn config(&self, prefix: &str) -> StoreConfig {
        let url = format!("s3://{}/{prefix}", self.bucket).parse().expect("a url");
        StoreConfig {
            endpoint: Some(self.endpoint.clone()),
            region: Some("us-east-1".to_owned()),
            access_key_id: Some(self.key.clone()),
            secret_access_key: Some(self.secret.clone().into()),
            ..StoreConfig::new(url)
        }
    }
}

fn variable(name: &str) -> Option<String> {
    Layers::from_process().env.into_iter().find(|(n, _)| n == name).map(|(_, value)| value)
}

#[allow(clippy::print_stdout, reason = "a skip is counted by whoever reads the output")]
fn say(text: &str) {
    println!("{text}");
}
