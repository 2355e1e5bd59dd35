//! Properties over all routes: rejected requests leave no trace in the bucket, and a tenant's answers neither
//! depend on other tenants' actions nor reveal anything of their data.

use std::{net::SocketAddr, time::Duration};

use futures::{StreamExt, TryStreamExt};
use kvasir_api::{Role, routes};
use kvasir_server::{Config, NewAccessKey};
use kvasir_types::RootHash;
use object_store::{
    Error, ObjectStore, ObjectStoreExt, multipart::MultipartStore, path::Path, signer::Signer,
};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::{
    bench::{Bench, Ids, Operation, Who, body, operations, plain},
    s3_front,
};

/// Part of every name and text that the other tenant has.
const CANARY: &str = "canary-5b1f";

/// Nothing but requests writes to the bucket.
fn quiet(config: &mut Config) {
    (config.journal.interval, config.gc.interval) = (Duration::ZERO, Duration::ZERO);
}

fn access_key(tenant: &str, role: Role) -> NewAccessKey {
    NewAccessKey::generate("s3", &tenant.parse().expect("a name"), role)
}

/// The S3 front, and access keys for it in addition to the tokens.
fn with_s3_front(config: &mut Config, keys: &[&NewAccessKey]) {
    config.server.s3_listen = Some(([127, 0, 0, 1], 0).into());
    let file = config.auth.tenants_file.as_ref().expect("there are tokens");
    let keys: String = keys.iter().map(|key| key.entry.as_str()).collect();
    std::fs::write(file, std::fs::read_to_string(file).expect("reads") + &keys).expect("writes");
}

async fn document(bench: &Bench) -> Vec<Operation> {
    let document = bench.guarded.service.get(routes::OPENAPI, &[]).await;
    operations(&document.json::<Value>().await.expect("its JSON"))
}

#[tokio::test]
async fn refused_requests_leave_the_bucket_as_it_was() {
    let (reader, writer) = (access_key("own", Role::Read), access_key("own", Role::Write));
    let stranger = access_key("other", Role::Write);
    let mut bench = Bench::start_with("other", |config| {
        quiet(config);
        with_s3_front(config, &[&reader, &writer, &stranger]);
    })
    .await;
    let operations = document(&bench).await;
    let mut seeds = Vec::new();
    for operation in &operations {
        seeds.push(bench.seed(&operation.name).await);
    }
    // The first request of a tenant that may begin something makes its salt.
    let first = "/v1/namespaces/n/objects/nothing";
    let answer = bench.guarded.send(&bench.tokens[&("other", Role::Read)], Method::GET, first, "").await;
    assert_eq!(answer.status(), 404);
    let front = bench.guarded.service.s3().expect("it listens");
    let stored = Path::from("over-s3");
    s3_front::client(front, &writer.id, &writer.secret).put(&stored, "bytes".into()).await.expect("stores");
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
    // Its object is sound, and not there yet; the body goes on behind it.
    let head = json!({"objects": [{"key": "new", "bytes": 3}]}).to_string();
    let longer = [&(head.len() as u32).to_le_bytes()[..], head.as_bytes(), b"new, and more"].concat();
    let token = &bench.tokens[&("own", Role::Write)];
    let answer = bench.guarded.send(token, Method::POST, "/v1/namespaces/n/objects:write", longer).await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    refused += 1;
    refused += refused_over_s3(front, &stored, [&reader, &writer, &stranger]).await;
    let after = bench.store.keys("");
    let changed: Vec<_> = after.iter().filter(|key| !before.contains(key)).collect();
    // The sound change of a context is a version.
    assert!(changed.iter().all(|key| key.contains("/x/")) && changed.len() <= 1, "{changed:?}");
    assert!(before.iter().all(|key| after.contains(key)));
    println!("{refused} refused requests, {} keys as before, {allowed} operations left out", before.len());
    bench.guarded.service.stop().await;
}

/// Over S3, by unknown callers, wrong signatures, a reader and another tenant, beside an object of the writer's tenant. Returns
/// the number of refused requests.
async fn refused_over_s3(
    front: SocketAddr,
    stored: &Path,
    [reader, writer, stranger]: [&NewAccessKey; 3],
) -> usize {
    let new = Path::from("refused");
    let mut errors = Vec::new();
    for (id, secret, may_read) in [
        ("anyone", "anyone", false),
        (writer.id.as_str(), reader.secret.as_str(), false),
        (reader.id.as_str(), reader.secret.as_str(), true),
    ] {
        let client = s3_front::client(front, id, secret);
        errors.push(client.put(&new, "bytes".into()).await.expect_err("no PUT"));
        errors.push(client.delete(stored).await.expect_err("no DELETE"));
        errors.push(client.create_multipart(&new).await.expect_err("no upload"));
        if !may_read {
            errors.push(client.get(stored).await.expect_err("no GET"));
            errors.push(client.list(None).try_collect::<Vec<_>>().await.expect_err("no list"));
        }
    }
    for error in &errors {
        let error = format!("{error:?}");
        assert!(error.contains("status: 403"), "{error}");
    }
    // A URL is signed for one method and one key.
    let writes = s3_front::client(front, &writer.id, &writer.secret);
    let url = writes.signed_url(Method::GET, stored, Duration::from_secs(600)).await.expect("signs");
    let elsewhere = url.as_str().replace(stored.as_ref(), new.as_ref());
    let (unsigned, bucket) = (format!("http://{front}/n/{new}"), format!("http://{front}/n"));
    let http = reqwest::Client::new();
    let requests = [
        http.put(url.clone()).body("bytes"),
        http.delete(url),
        http.put(&elsewhere).body("bytes"),
        http.get(&elsewhere),
        http.put(&unsigned).body("bytes"),
        http.delete(&unsigned),
        http.get(&bucket),
    ];
    let refused = errors.len() + requests.len() + 1;
    for request in requests {
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{}", answer.url());
    }
    // Another tenant's bucket of this name is another one. What is not there is removed, as S3 has it.
    let theirs = s3_front::client(front, &stranger.id, &stranger.secret);
    assert!(matches!(theirs.get(stored).await, Err(Error::NotFound { .. })));
    assert_eq!(theirs.list(None).try_collect::<Vec<_>>().await.expect("lists"), []);
    theirs.delete(stored).await.expect("removes nothing");
    writes.get(stored).await.expect("it is there");
    refused
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

/// What the comparison leaves out: the S3 front, the stream of events, and jobs.
#[tokio::test]
async fn no_list_error_event_or_job_names_another_tenant() {
    let other = format!("{CANARY}-tenant");
    let (ours, theirs) = (access_key("own", Role::Write), access_key(&other, Role::Write));
    let mut bench = Bench::start_with(&other, |config| {
        quiet(config);
        with_s3_front(config, &[&ours, &theirs]);
    })
    .await;
    let writer = bench.tokens[&("other", Role::Write)].clone();
    let (_, root) = bench.guarded.prepare(&writer).await;
    let reader = &bench.tokens[&("own", Role::Read)];
    let mut events = bench.guarded.send(reader, Method::GET, routes::EVENTS, "").await.bytes_stream();
    canaries(&bench, &writer).await;
    // The other tenant first: its event is before the one that is waited for.
    bench.seed_as("other", root, "put_chunk").await;
    let (ids, _) = bench.seed("put_chunk").await;
    let told = async {
        let mut text = String::new();
        while !text.contains(&ids.seq_hash.to_string()) {
            let part = events.next().await.expect("not the end").expect("reads");
            text.push_str(&String::from_utf8_lossy(&part));
        }
        text
    };
    let mut texts = vec![tokio::time::timeout(Duration::from_secs(60), told).await.expect("its own event")];

    let front = bench.guarded.service.s3().expect("it listens");
    let us = s3_front::client(front, &ours.id, &ours.secret);
    let them = s3_front::client(front, &theirs.id, &theirs.secret);
    for key in ["both", "theirs", CANARY] {
        them.put(&Path::from(key), CANARY.into()).await.expect("stores");
    }
    us.put(&Path::from("both"), "ours".into()).await.expect("stores");
    let forged = s3_front::client(front, &theirs.id, &ours.secret);
    // Of an empty path the bucket is listed.
    for (client, path, status) in
        [(&us, "", 200), (&us, "both", 200), (&us, "theirs", 404), (&forged, "both", 403)]
    {
        let url = client.signed_url(Method::GET, &Path::from(path), Duration::from_secs(600)).await;
        let answer = bench.guarded.service.http.get(url.expect("signs")).send().await.expect("an answer");
        assert_eq!(answer.status(), status, "{path}");
        texts.push(whole(answer).await);
    }
    assert!(texts[1].contains("<Key>both</Key>"), "{}", texts[1]);

    let job = bench.finished_job("other").await;
    for path in [routes::JOBS, routes::job(&job).as_str()] {
        let answer = bench.answer(("own", Role::Operator), Method::GET, path, &Value::Null).await;
        assert_eq!(answer.status(), 200, "{path}");
        texts.push(whole(answer).await);
    }
    for text in &texts {
        assert!(!text.contains(CANARY), "{text}");
    }
    bench.guarded.service.stop().await;
}

/// Headers and body.
async fn whole(answer: Response) -> String {
    format!("{:?}", answer.headers()) + &answer.text().await.expect("text")
}
