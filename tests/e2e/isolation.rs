//! Properties over all routes: rejected requests leave no trace in the bucket, and a tenant's answers neither
//! depend on other tenants' actions nor reveal anything of their data.

use std::{net::SocketAddr, time::Duration};

use futures::{StreamExt, TryStreamExt};
use kvasir_api::{Role, routes};
use kvasir_server::{Config, NewAccessKey};
use kvasir_types::RootHash;
use object_store::{
    Error, ObjectStore, ObjectStoreExt, aws::AmazonS3, multipart::MultipartStore, path::Path, signer::Signer,
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
pub(crate) fn quiet(config: &mut Config) {
    (config.journal.interval, config.gc.interval) = (Duration::ZERO, Duration::ZERO);
}

pub(crate) fn access_key(tenant: &str, role: Role) -> NewAccessKey {
    NewAccessKey::generate("s3", &tenant.parse().expect("a name"), role)
}

/// The S3 front, and entries of the tenants file in addition to the tokens.
pub(crate) fn with_s3_front(config: &mut Config, entries: &[&str]) {
    config.server.s3_listen = Some(([127, 0, 0, 1], 0).into());
    let file = config.auth.tenants_file.as_ref().expect("there are tokens");
    let tokens = std::fs::read_to_string(file).expect("reads");
    std::fs::write(file, tokens + &entries.concat()).expect("writes");
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
        with_s3_front(config, &[&reader.entry, &writer.entry, &stranger.entry]);
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
    let (keys, mut refused, mut allowed) = (bench.store.keys("").len(), 0, 0);
    assert!(keys > operations.len(), "{keys} keys");
    let callers = ["", "Bearer kv_0000", "expired"].map(Who::Nobody);
    // The reader is refused by its role, the other tenant by what it does not have.
    let callers = callers.into_iter().chain([Who::Own(Role::Read), Who::Other(Role::Operator)]);
    for who in callers {
        for (operation, (ids, chunk)) in operations.iter().zip(&seeds) {
            // What these callers may do, they do elsewhere.
            if is_allowed(who, operation) {
                continue;
            }
            let before = bench.store.contents();
            let answer = bench.ask(who, operation, ids, chunk).await;
            let place = format!("{} {who:?}: {}", operation.name, answer.status());
            assert!(answer.status().is_client_error(), "{place}");
            bench.store.assert_unchanged(&before, &place);
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
            let before = bench.store.contents();
            let answer = bench.guarded.send(token, operation.method.clone(), &path, wrong.clone()).await;
            let status = answer.status();
            // A change that changes nothing is sound.
            let is_sound = operation.name == "change_context" && wrong == b"{}";
            assert!(status.is_client_error() || is_sound, "{}: {status}", operation.name);
            if is_sound {
                continue;
            }
            bench.store.assert_unchanged(&before, &operation.name);
            refused += 1;
        }
    }
    // Its object is sound, and not there yet; the body goes on behind it.
    let head = json!({"objects": [{"key": "new", "bytes": 3}]}).to_string();
    let longer = [&(head.len() as u32).to_le_bytes()[..], head.as_bytes(), b"new, and more"].concat();
    let token = &bench.tokens[&("own", Role::Write)];
    let before = bench.store.contents();
    let answer = bench.guarded.send(token, Method::POST, "/v1/namespaces/n/objects:write", longer).await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    bench.store.assert_unchanged(&before, "a longer body");
    refused += 1;
    refused += refused_over_s3(&bench, front, &stored, [&reader, &writer, &stranger]).await;
    println!("{refused} refused requests, {keys} keys as before, {allowed} operations left out");
    bench.guarded.service.stop().await;
}

/// Over S3, by unknown callers, wrong signatures, a reader and another tenant, beside an object of the writer's tenant. Returns
/// the number of refused requests.
async fn refused_over_s3(
    bench: &Bench,
    front: SocketAddr,
    stored: &Path,
    [reader, writer, stranger]: [&NewAccessKey; 3],
) -> usize {
    let (new, before, mut refused) = (Path::from("refused"), bench.store.contents(), 0);
    let mut refuse = |by: &str, error: Error| {
        let error = format!("{error:?}");
        assert!(error.contains("status: 403"), "{by}: {error}");
        bench.store.assert_unchanged(&before, by);
        refused += 1;
    };
    for (id, secret, may_read) in [
        ("anyone", "anyone", false),
        (writer.id.as_str(), reader.secret.as_str(), false),
        (reader.id.as_str(), reader.secret.as_str(), true),
    ] {
        let client = s3_front::client(front, id, secret);
        refuse("a PUT", client.put(&new, "bytes".into()).await.expect_err("no PUT"));
        refuse("a DELETE", client.delete(stored).await.expect_err("no DELETE"));
        refuse("an upload", client.create_multipart(&new).await.expect_err("no upload"));
        if !may_read {
            refuse("a GET", client.get(stored).await.expect_err("no GET"));
            refuse("a list", client.list(None).try_collect::<Vec<_>>().await.expect_err("no list"));
        }
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
    for request in requests {
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{}", answer.url());
        bench.store.assert_unchanged(&before, answer.url().as_str());
        refused += 1;
    }
    // Another tenant's bucket of this name is another one. What is not there is removed, as S3 has it.
    let theirs = s3_front::client(front, &stranger.id, &stranger.secret);
    assert!(matches!(theirs.get(stored).await, Err(Error::NotFound { .. })));
    assert_eq!(theirs.list(None).try_collect::<Vec<_>>().await.expect("lists"), []);
    theirs.delete(stored).await.expect("removes nothing");
    bench.store.assert_unchanged(&before, "another tenant");
    writes.get(stored).await.expect("it is there");
    refused + 1
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

/// A request, and the status, headers and body of its answer.
type Answered = (String, u16, Vec<(String, String)>, String);

/// The answers that tenant `own` gets to every operation, with or without another tenant's requests in between.
async fn answers(with_other: bool) -> Vec<Answered> {
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

/// A text without words that may be ids, or times in ms.
fn masked(text: &str) -> String {
    let is_id = |word: &str| word.len() >= 8 && word.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let words = text.split_inclusive(|c| !is_of_word(c));
    words
        .map(|word| {
            let bare = word.trim_end_matches(|c| !is_of_word(c));
            if is_id(bare) { word.replace(bare, "ID") } else { word.to_owned() }
        })
        .collect()
}

/// An answer without ids and times, which differ between any two services.
async fn told(answer: Response, ids: &Ids) -> (u16, Vec<(String, String)>, String) {
    let (status, headers, text) = plain(answer, ids).await;
    let all = format!("{headers:?}{text}");
    assert!(!all.contains(CANARY), "{all}");
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

/// Requests of an S3 client, each with the status of its answer. Of an empty key the bucket is listed.
const OVER_S3: [(Method, &str, &str, u16); 13] = [
    (Method::GET, "", "", 200),
    (Method::PUT, "both", "ours", 200),
    (Method::PUT, "folder/ours", "ours", 200),
    (Method::GET, "", "", 200),
    (Method::GET, "both", "", 200),
    (Method::HEAD, "both", "", 200),
    (Method::GET, "theirs", "", 404),
    (Method::HEAD, "theirs", "", 404),
    (Method::PUT, "both", "more", 412),
    (Method::DELETE, "theirs", "", 204),
    (Method::DELETE, "both", "", 204),
    (Method::GET, "both", "", 404),
    (Method::GET, "", "", 200),
];

async fn over_s3(bench: &Bench, client: &AmazonS3, method: Method, key: &str, body: String) -> Response {
    let url = client.signed_url(method.clone(), &Path::from(key), Duration::from_secs(600)).await;
    let request = bench.guarded.service.http.request(method, url.expect("signs")).body(body);
    request.send().await.expect("an answer")
}

/// The answers to an S3 client of tenant `own`, with or without another tenant that does the same before and after it, in a
/// bucket of the same name.
async fn answers_over_s3(with_other: bool) -> Vec<Answered> {
    let other = format!("{CANARY}-tenant");
    let (ours, theirs) = (access_key("own", Role::Write), access_key(&other, Role::Write));
    let bench = Bench::start_with(&other, |config| {
        quiet(config);
        with_s3_front(config, &[&ours.entry, &theirs.entry]);
    })
    .await;
    let front = bench.guarded.service.s3().expect("it listens");
    let us = s3_front::client(front, &ours.id, &ours.secret);
    let them = s3_front::client(front, &theirs.id, &theirs.secret);
    let disturb = async |method: Method, key: &str| {
        if with_other {
            let body = if method == Method::PUT { CANARY } else { "" };
            over_s3(&bench, &them, method, key, body.to_owned()).await;
        }
    };
    for key in ["theirs", "folder/theirs", CANARY] {
        disturb(Method::PUT, key).await;
    }
    let mut answers: Vec<Answered> = Vec::new();
    for (method, key, body, expected) in OVER_S3 {
        disturb(method.clone(), key).await;
        let answer = over_s3(&bench, &us, method.clone(), key, body.to_owned()).await;
        disturb(method.clone(), key).await;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let text = answer.text().await.expect("text");
        let all = format!("{headers:?}{text}");
        assert!(!all.contains(CANARY), "{all}");
        assert_eq!(status, expected, "{method} {key:?}: {text}");
        let is_time_or_id = |name: &str| ["date", "last-modified", "x-request-id"].contains(&name);
        let headers = headers.iter().filter(|(name, _)| !is_time_or_id(name.as_str()));
        let headers = headers.map(|(name, value)| (name.to_string(), masked(&format!("{value:?}"))));
        // Each object of a list has a time.
        let mut parts = text.split("<LastModified>");
        let first = parts.next().unwrap_or_default();
        let behind = parts.map(|part| part.split_once("</LastModified>").map_or("", |(_, behind)| behind));
        let text: String = std::iter::once(first).chain(behind).collect();
        answers.push((format!("{method} {key:?}"), status, headers.collect(), masked(&text)));
    }
    let metrics = bench.guarded.service.metrics().await;
    assert!(!metrics.contains(CANARY), "{metrics}");
    bench.guarded.service.stop().await;
    answers
}

/// As over REST.
#[tokio::test]
async fn what_an_s3_client_is_answered_does_not_depend_on_others() {
    let (alone, beside) = (answers_over_s3(false).await, answers_over_s3(true).await);
    let (_, _, _, listed) = &alone[3];
    assert!(listed.contains("<Key>both</Key>") && listed.contains("<Key>folder/ours</Key>"), "{listed}");
    for (alone, beside) in alone.iter().zip(&beside) {
        assert_eq!(alone, beside, "alone, and beside another tenant");
    }
}

/// What the comparison leaves out: forged signatures over S3, the stream of events, and jobs.
#[tokio::test]
async fn no_list_error_event_or_job_names_another_tenant() {
    let other = format!("{CANARY}-tenant");
    let (ours, theirs) = (access_key("own", Role::Write), access_key(&other, Role::Write));
    let mut bench = Bench::start_with(&other, |config| {
        quiet(config);
        with_s3_front(config, &[&ours.entry, &theirs.entry]);
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
