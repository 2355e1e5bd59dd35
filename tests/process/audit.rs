//! The audit log: every call that requires an admin or an operator, whoever made it and whatever its result.

use kvasir_api::{Role, routes};
use kvasir_server::NewToken;
use kvasir_tests::process::Start;
use reqwest::Method;
use serde_json::Value;
use tempfile::TempDir;

use crate::{SERVER, file_store};

#[tokio::test]
async fn admin_calls_are_in_the_audit_log_and_no_credential_is() {
    let directory = TempDir::new().expect("a directory");
    let (store, cache) = (file_store(directory.path()), directory.path().join("cache"));
    let token = |name: &str, role| NewToken::generate(name, &"team".parse().expect("a name"), role);
    let (reader, operator) = (token("someone", Role::Read), token("on call", Role::Operator));
    let tenants = directory.path().join("tenants.toml");
    std::fs::write(&tenants, format!("{}{}", reader.entry, operator.entry)).expect("writes");
    let flag = format!("--auth.tenants_file={}", tenants.display());
    let process = Start::new(SERVER, &store, &cache).flags(&[&flag]).start().await;
    process.ready().await;
    let calls = [
        (&reader, Method::GET, routes::CONFIG, 200),
        (&reader, Method::GET, routes::JOBS, 403),
        (&operator, Method::GET, routes::JOBS, 200),
        (&operator, Method::POST, routes::NAMESPACE_ROTATION, 400),
    ];
    for (who, method, path, status) in calls {
        let url = format!("http://{}{path}", process.address);
        let answer = process.http.request(method, url).bearer_auth(&who.token).send().await;
        assert_eq!(answer.expect("an answer").status(), status, "{path}");
    }
    // The log comes through a pipe.
    let begun = std::time::Instant::now();
    while process.log().matches("kvasir::audit").count() < 3 && begun.elapsed().as_secs() < 20 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let log = process.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let audited = lines.filter(|line| line["target"] == "kvasir::audit").map(|line| {
        let fields = &line["fields"];
        let text = |name: &str| fields[name].as_str().unwrap_or_default().to_owned();
        (text("tenant"), text("credential"), text("method"), text("path"), fields["status"].as_u64())
    });
    let line = |credential: &str, method: &str, path: &str, status| {
        ("team".to_owned(), credential.to_owned(), method.to_owned(), path.to_owned(), Some(status))
    };
    let expected = [
        line("someone", "GET", routes::JOBS, 403),
        line("on call", "GET", routes::JOBS, 200),
        line("on call", "POST", routes::NAMESPACE_ROTATION, 400),
    ];
    assert_eq!(audited.collect::<Vec<_>>(), expected);
    assert!(!log.contains(&reader.token) && !log.contains(&operator.token), "{log}");
}
