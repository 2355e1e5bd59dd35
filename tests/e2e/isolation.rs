//! Properties over all routes: rejected requests leave no trace in the bucket, and a tenant's answers neither
//! depend on other tenants' actions nor reveal anything of their data.

use std::time::Duration;

use kvasir_api::{Role, routes};
use kvasir_server::Config;
use kvasir_types::RootHash;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::bench::{Bench, Ids, Operation, Who, body, operations, plain};

/// Part of every name and text that the other tenant has.
const CANARY: &str = "canary-5b1f";

/// Nothing but requests writes to the bucket.
fn quiet(config: &mut Config) {
    (config.journal.interval, config.gc.interval) = (Duration::ZERO, Duration::ZERO);
}

async fn document(bench: &Bench) -> Vec<Operation> {
    let document = bench.guarded.service.get(routes::OPENAPI, &[]).await;
    operations(&document.json::<Value>().await.expect("its JSON"))
}

#[tokio::test]
async fn refused_requests_leave_the_bucket_as_it_was() {
    let mut bench = Bench::start_with("other", quiet).await;
    let operations = document(&bench).await;
    let mut seeds = Vec::new();
    for operation in &operations {
        seeds.push(bench.seed(&operation.name).await);
    }
    // The first request of a tenant that may begin something makes its salt.
    let first = "/v1/namespaces/n/objects/nothing";
    let answer = bench.guarded.send(&bench.tokens[&("other", Role::Read)], Method::GET, first, "").await;
    assert_eq!(answer.status(), 404);
    let (before, mut refused, mut allowed) = (bench.store.keys(""), 0, 0);
    assert!(before.len() > operations.len(), "{} keys", before.len());
    let callers = ["", "Bearer kv_0000", "expired"].map(Who::Nobody);
    // The reader is refused by its role, the other tenant by what it does not have.
    let callers = callers.into_iter().chain([Who::Own(Role::Read), Who::Other(Role::Operator)]);
    for who in callers {
        for (operation, (ids, chunk)) in operations.iter().zip(&seeds) {
            // What these callers may do, they do elsewhere.
            if is_allowed(who, operation) {
                continue;
            }
            let answer = bench.ask(who, operation, ids, chunk).await;
            assert!(answer.status().is_client_error(), "{} {who:?}: {}", operation.name, answer.status());
            refused += 1;
        }
    }
    // Bodies that are none, by who may do everything.
    for (operation, (ids, chunk)) in operations.iter().zip(&seeds) {
        let Some(sound) = body(&operation.name, ids, chunk) else { continue };
        let mut path = operation.path.clone();
        for (name, value) in ids.texts() {
            path = path.replace(&format!("{{{name}}}"), &value);
        }
        // An object by key takes any bytes.
        if operation.name == "put_opaque_object" {
            allowed += 1;
            continue;
        }
        let token = &bench.tokens[&("own", Role::Operator)];
        for wrong in [sound[..sound.len() / 2].to_vec(), b"{}".to_vec(), b"[".repeat(100), Vec::new()] {
            let answer = bench.guarded.send(token, operation.method.clone(), &path, wrong.clone()).await;
            let status = answer.status();
            // A change that changes nothing is sound.
            let is_sound = operation.name == "change_context" && wrong == b"{}";
            assert!(status.is_client_error() || is_sound, "{}: {status}", operation.name);
            if is_sound {
                continue;
            }
            refused += 1;
        }
    }
    let after = bench.store.keys("");
    let changed: Vec<_> = after.iter().filter(|key| !before.contains(key)).collect();
    // The sound change of a context is a version.
    assert!(changed.iter().all(|key| key.contains("/x/")) && changed.len() <= 1, "{changed:?}");
    assert!(before.iter().all(|key| after.contains(key)));
    println!("{refused} refused requests, {} keys as before, {allowed} operations left out", before.len());
    bench.guarded.service.stop().await;
}

/// Whether a caller of the first half is admitted by role, and has the objects that the operation needs.
fn is_allowed(who: Who, operation: &Operation) -> bool {
    let Some(role) = &operation.role else { return true };
    match who {
        Who::Nobody(_) => false,
        Who::Own(held) => {
            role.parse::<Role>().is_ok_and(|needed| held >= needed) && operation.name != "register_model"
        }
        // Listings, keys and jobs are there for every tenant, whatever the ids.
        Who::Other(_) => {
            !operation.path.contains("{model_id}")
                && !matches!(
                    operation.name.as_str(),
                    "open_namespace"
                        | "rotate_namespace"
                        | "lookup"
                        | "announce_upload"
                        | "commit_upload"
                        | "create_context"
                        | "get_context"
                        | "change_context"
                        | "delete_context"
                        | "list_context_versions"
                        | "get_opaque_object"
                        | "delete_opaque_object"
                )
        }
    }
}

/// The answers that tenant `own` gets to every operation, with or without another tenant's requests in between.
async fn answers(with_other: bool) -> Vec<(String, u16, Vec<(String, String)>, String)> {
    let mut bench = Bench::start_with(&format!("{CANARY}-tenant"), quiet).await;
    let operations = document(&bench).await;
    let other = if with_other {
        let writer = bench.tokens[&("other", Role::Write)].clone();
        let (_, root) = bench.guarded.prepare(&writer).await;
        canaries(&bench, &writer).await;
        Some(root)
    } else {
        None
    };
    let mut answers = Vec::new();
    for operation in operations.iter().filter(|operation| operation.role.is_some()) {
        // Jobs and series are the replica's, and a stream of events has no end.
        if operation.path.contains("jobs") || matches!(operation.name.as_str(), "events" | "get_series") {
            continue;
        }
        let (ids, chunk) = bench.seed(&operation.name).await;
        if let Some(root) = other {
            disturb(&bench, root, operation, &ids).await;
        }
        // Operators see who changed what in any tenant.
        let strong = if operation.name == "list_audited_calls" { Role::Admin } else { Role::Operator };
        for role in [Role::Read, strong] {
            let answer = bench.ask(Who::Own(role), operation, &ids, &chunk).await;
            let (status, headers, text) = told(answer, &ids).await;
            answers.push((format!("{} as {role:?}", operation.name), status, headers, text));
            if let Some(root) = other {
                disturb(&bench, root, operation, &ids).await;
            }
        }
    }
    let metrics = bench.guarded.service.metrics().await;
    assert!(!metrics.contains(CANARY), "{metrics}");
    bench.guarded.service.stop().await;
    answers
}

/// The named data of the other tenant.
async fn canaries(bench: &Bench, writer: &str) {
    let spec = kvasir_types::ModelSpec { revision: CANARY.to_owned(), ..kvasir_tests::chunks::spec() };
    let spec = serde_json::to_vec(&spec).expect("serialises");
    let registered = bench.guarded.send(writer, Method::POST, routes::MODELS, spec).await;
    assert!(registered.status().is_success());
    let key = format!("/v1/namespaces/{CANARY}-n/objects/{CANARY}-key");
    assert_eq!(bench.guarded.send(writer, Method::PUT, &key, CANARY).await.status(), 201);
}

/// The other tenant does the same with the same names, and tries it with ids that are not its own.
async fn disturb(bench: &Bench, root: RootHash, operation: &Operation, theirs: &Ids) {
    let (mut ids, chunk) = bench.seed_as("other", root, &operation.name).await;
    let labelled = json!({"model_id": ids.model, "namespace": "n", "chunks": [ids.seq_hash],
        "labels": {CANARY: CANARY}});
    let writer = &bench.tokens[&("other", Role::Write)];
    let labelled = bench.guarded.send(writer, Method::POST, routes::CONTEXTS, labelled.to_string()).await;
    assert!(labelled.status().is_success(), "{}", labelled.text().await.expect("text"));
    bench.ask(Who::Other(Role::Operator), operation, theirs, &chunk).await;
    // The key is the same, and so is what it removes; only the tenant is not.
    ids.cell = theirs.cell;
    bench.ask(Who::Other(Role::Operator), operation, &ids, &chunk).await;
}

/// An answer without ids and times, which differ between any two services.
async fn told(answer: Response, ids: &Ids) -> (u16, Vec<(String, String)>, String) {
    let (status, headers, text) = plain(answer, ids).await;
    let all = format!("{headers:?}{text}");
    assert!(!all.contains(CANARY), "{all}");
    let is_id = |word: &str| word.len() >= 8 && word.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let masked = |text: &str| -> String {
        let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let words = text.split_inclusive(|c| !is_of_word(c));
        words
            .map(|word| {
                let bare = word.trim_end_matches(|c| !is_of_word(c));
                if is_id(bare) { word.replace(bare, "ID") } else { word.to_owned() }
            })
            .collect()
    };
    // Of bytes that hold hashes, which begin with the tenant's salt, the length is in the headers.
    // Presigned URLs have ports and dates of their own, and a checksum is of bytes that hold hashes.
    let text = ["http://", "sha256\":\""].iter().fold(text, |text, &begin| {
        let Some((before, value)) = text.split_once(begin) else { return text };
        format!("{before}VALUE{}", value.split_once('"').map_or("", |(_, after)| after))
    });
    let is_text = headers.iter().any(|(name, value)| name == "content-type" && value.contains("json"));
    let text = if is_text { masked(&text) } else { String::new() };
    let headers = headers.iter().map(|(name, value)| (name.clone(), masked(value))).collect();
    (status, headers, text)
}

/// Two tenants' views are independent: the answers are the same whether or not the other one exists, and none
/// contains a name of the other.
#[tokio::test]
async fn what_a_tenant_is_answered_does_not_depend_on_others() {
    let (alone, beside) = (answers(false).await, answers(true).await);
    assert_eq!(alone.len(), beside.len());
    for (alone, beside) in alone.iter().zip(&beside) {
        assert_eq!(alone, beside, "alone, and beside another tenant");
    }
    println!("{} answers, each the same beside another tenant", alone.len());
}
