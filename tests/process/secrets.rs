//! The secrets of a running service: in no log line of any level, no metric, no answer, no printed setting and
//! no panic; and which of its files other users of the machine can reach.

use std::{
    fmt::Debug,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use kvasir_api::{Role, routes};
use kvasir_client::rest::BearerToken;
use kvasir_server::{Layers, NewAccessKey, NewToken};
use kvasir_store::{OpenStore, StoreConfig, observe::NoObserver, seal::FileKeys};
use kvasir_tests::{process::Start, proxy::FaultProxy, s3::S3Server};
use reqwest::{Method, StatusCode};
use tempfile::TempDir;

use crate::SERVER;

const STORE_SECRET: &str = "test-secret";
const SEALING_KEY: &str = "c0ffee00c0ffee11c0ffee22c0ffee33c0ffee44c0ffee55c0ffee66c0ffee77";
/// The beginning of the key, where its bytes are printed.
const SEALING_BYTES: &str = "192, 255, 238";
const GUESS: &str = "kv_guess-5b1f5b1f5b1f5b1f";
/// For the pipe of the log.
const PATIENCE: Duration = Duration::from_secs(60);
/// Copies standard error to the file `$0`. Every line counts, and a `Process` keeps the last ones alone.
const KEEP_LOG: &str = "exec \"$@\" 2> >(exec tee \"$0\" >&2)";

/// What the program prints under these variables, on both streams.
async fn printed(words: &[&str], env: &[(&str, &str)]) -> String {
    let mut command = Command::new(SERVER);
    command.args(words).env_clear().envs(env.iter().copied()).stdin(Stdio::null());
    // The store is in this thread.
    let ended = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic");
    let Output { status, stdout, stderr } = ended.expect("starts");
    let both = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{words:?}: {both}");
    both
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("is there").permissions().mode() & 0o777
}

/// Files below a folder that other users could read if they could enter it.
fn reachable(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        match entry.file_type().expect("a type").is_dir() {
            _ if mode(&path) & 0o077 == 0 => {}
            true => found.extend(reachable(&path)),
            false => found.push(path.display().to_string()),
        }
    }
    found
}

#[tokio::test]
async fn no_secret_is_in_logs_metrics_answers_or_printed_settings() {
    let directory = TempDir::new().expect("a directory");
    let (tenants, log) = (directory.path().join("tenants.toml"), directory.path().join("log"));
    let cache = directory.path().join("cache");
    // Made by somebody who did not think of other users.
    fs::create_dir(&cache).expect("writes");
    fs::set_permissions(&cache, Permissions::from_mode(0o755)).expect("changes");
    let token = |tenant: &str, role| NewToken::generate("someone", &tenant.parse().expect("a name"), role);
    let (writer, sealed) = (token("team", Role::Write), token("sealed", Role::Write));
    let (admin, operator) = (token("team", Role::Admin), token("team", Role::Operator));
    let access = NewAccessKey::generate("bucket", &"team".parse().expect("a name"), Role::Write);
    let entries = [&writer.entry, &sealed.entry, &admin.entry, &operator.entry, &access.entry];
    fs::write(&tenants, entries.map(String::as_str).concat()).expect("writes");
    let keys = format!("sealed:2026-11:{SEALING_KEY}");
    let secrets = [
        STORE_SECRET,
        SEALING_KEY,
        GUESS,
        &writer.token,
        &sealed.token,
        &admin.token,
        &operator.token,
        &access.secret,
    ];

    let server = S3Server::start(Default::default()).await;
    let proxy = FaultProxy::start(server.address, 1, 0).await;
    let endpoint = Some(format!("http://{}", proxy.address));
    let store = StoreConfig { endpoint, ..server.config("secrets") };
    let from = format!("--auth.tenants_file={}", tenants.display());
    let flags = [&from, "--log.filter=trace", "--s3.listen=127.0.0.1:0", "--store.retry_timeout=1s"];
    let mut start = Start::new(SERVER, &store, &cache).flags(&flags).env("KVASIR_ENCRYPTION_KEYS", &keys);
    start.under = ["bash", "-c", KEEP_LOG, &log.display().to_string()].map(str::to_owned).to_vec();
    let process = start.start().await;
    process.ready().await;
    let (url, s3) = (format!("http://{}", process.address), process.s3_address().await);
    let s3 = format!("http://{s3}");
    let aws = [("AWS_ACCESS_KEY_ID", access.id.as_str()), ("AWS_SECRET_ACCESS_KEY", &access.secret)];
    let mut said = vec![
        printed(&["selftest", "--url", &url], &[("KVASIR_TOKEN", &writer.token)]).await,
        printed(&["selftest", "--s3", &s3], &aws).await,
        printed(
            &["config", "--store.url", store.url.as_str(), &from],
            &[("AWS_SECRET_ACCESS_KEY", STORE_SECRET), ("KVASIR_ENCRYPTION_KEYS", &keys)],
        )
        .await,
    ];
    let mut ask = async |token: &str, method: Method, path: &str| {
        let body = if method == Method::PUT { "value" } else { "" };
        let request = process.http.request(method, format!("{url}{path}")).bearer_auth(token);
        let answer = request.body(body).send().await.expect("an answer");
        let (status, headers) = (answer.status(), answer.headers().clone());
        said.push(format!("{path} {status} {headers:?} {}", answer.text().await.expect("text")));
        status
    };
    assert_eq!(ask(GUESS, Method::GET, routes::CONFIG).await, StatusCode::UNAUTHORIZED);
    // The stream of events has no end, and templates name nothing.
    let asked = routes::ALL.iter().filter(|path| **path != routes::EVENTS && !path.contains('{'));
    for path in asked {
        for token in [&writer.token, &admin.token, &operator.token] {
            ask(token, Method::GET, path).await;
        }
    }
    let object = "/v1/namespaces/n/objects/k";
    for token in [&writer.token, &sealed.token] {
        assert_eq!(ask(token, Method::PUT, object).await, StatusCode::CREATED);
    }
    // Errors are logged with their causes.
    proxy.away(true);
    assert_eq!(ask(&writer.token, Method::PUT, "/v1/namespaces/n/objects/other").await.as_u16(), 503);
    let begun = Instant::now();
    let whole = || fs::read_to_string(&log).expect("the log");
    while !whole().contains("a request to the object store failed") {
        assert!(begun.elapsed() < PATIENCE, "{}", whole());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let reached = reachable(&cache);
    let modes = (mode(&cache), fs::read_dir(&cache).expect("reads").count());
    process.kill();
    let log = whole();
    assert!(log.matches("\"level\":\"TRACE\"").count() > 100, "{} lines", log.lines().count());
    said.push(log);
    for text in &said {
        for secret in secrets {
            let line = text.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "has {secret}");
        }
    }
    assert!(modes.0 == 0o700 && modes.1 > 0, "{modes:?}");
    assert_eq!(reached, Vec::<String>::new());
}

fn fail(value: &dyn Debug) {
    panic!("{value:?}");
}

/// The message of a panic about a value, which the process logs.
fn panic_about(value: &dyn Debug) -> String {
    let panic = catch_unwind(AssertUnwindSafe(|| fail(value))).expect_err("it panics");
    *panic.downcast::<String>().expect("a text")
}

/// Panics are logged as they are, so no value that holds a secret prints it.
#[tokio::test]
async fn no_secret_is_in_a_panic_about_what_holds_it() {
    let list = format!("sealed:2026-11:{SEALING_KEY}");
    let layers = |url: &str| {
        let env = [
            ("KVASIR_STORE_URL", url),
            ("KVASIR_ENCRYPTION_KEYS", list.as_str()),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", STORE_SECRET),
            ("AWS_SESSION_TOKEN", GUESS),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Layers { env, ..Layers::default() }
    };
    let given = layers("s3://bucket/prefix").with_flags([("encryption.keys", list.as_str())]);
    let config = given.clone().load().expect("sound");
    let refused = layers(&format!("s3://id:{STORE_SECRET}@bucket/prefix")).load().expect_err("a password");
    let store = OpenStore::open(&config.store, Arc::new(NoObserver)).expect("opens");
    let store = store.sealed(Arc::new(FileKeys::parse_list(&list).expect("keys")));
    let credential = BearerToken::new(GUESS).expect("characters of a header");
    let tenant = "team".parse().expect("a name");
    let token = NewToken::generate("someone", &tenant, Role::Write);
    let access = NewAccessKey::generate("bucket", &tenant, Role::Write);
    let secrets = [STORE_SECRET, SEALING_KEY, SEALING_BYTES, GUESS, &token.token, &access.secret];
    let values: [&dyn Debug; 7] = [&given, &config, &refused, &store, &credential, &token, &access];
    for value in values {
        let said = panic_about(value);
        for secret in secrets {
            assert!(!said.contains(secret), "has {secret}: {said}");
        }
    }
}
