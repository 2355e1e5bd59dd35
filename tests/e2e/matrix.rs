//! Every route × role × own or other tenant × kind of credential, from the document that the running service serves.
//!
//! A route of the document that [`TABLE`] does not know fails the test, as does one of the table that is gone, and one
//! whose role in the document is not the table's.

use std::collections::BTreeMap;

use kvasir_api::{Role, routes};
use kvasir_tests::{
    chunks::{self, Chunk},
    s3::{Lacks, S3Server},
};
use kvasir_types::{ModelId, ObjectDigest, ProfileHash, RootHash, SeqHash};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::guarded::{Guarded, token};

use Outcome::{ByRole, Is, Problem};

/// How an allowed request ends.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    /// With a status.
    Is(u16),
    /// As a problem.
    Problem(&'static str),
    /// As a problem for readers, with a status for the others.
    ByRole(&'static str, u16),
}

/// An operation: its role (none: open to anybody), its end for whom the ids belong to, and for another tenant.
type Row = (&'static str, Option<Role>, Outcome, Outcome);

const READ: Option<Role> = Some(Role::Read);
const WRITE: Option<Role> = Some(Role::Write);
const ADMIN: Option<Role> = Some(Role::Admin);
const OPERATOR: Option<Role> = Some(Role::Operator);

/// What everybody should meet. Written by hand: that is the point of it.
const TABLE: &[Row] = &[
    ("livez", None, Is(200), Is(200)),
    ("readyz", None, Is(200), Is(200)),
    ("metrics", None, Is(200), Is(200)),
    ("openapi", None, Is(200), Is(200)),
    ("get_config", READ, Is(200), Is(200)),
    ("register_model", READ, ByRole("unknown_model", 201), ByRole("unknown_model", 201)),
    ("get_model", READ, Is(200), Problem("unknown_model")),
    ("list_profiles", READ, Is(200), Problem("unknown_model")),
    ("put_profile", WRITE, Is(200), Problem("unknown_model")),
    ("get_profile", READ, Is(200), Problem("unknown_profile")),
    ("open_namespace", READ, Is(200), Problem("unknown_model")),
    ("rotate_namespace", ADMIN, Is(200), Problem("unknown_model")),
    // Keys are a tenant's own: another one's are there, or not, whatever these are.
    ("put_opaque_object", WRITE, Is(200), Is(201)),
    ("get_opaque_object", READ, Is(200), Problem("unknown_object")),
    ("delete_opaque_object", WRITE, Is(204), Problem("unknown_object")),
    ("lookup_opaque_objects", READ, Is(200), Is(200)),
    ("read_opaque_objects", READ, Is(200), Is(200)),
    ("write_opaque_objects", WRITE, Is(200), Is(200)),
    ("explain_opaque_objects", READ, Is(200), Is(200)),
    ("lookup", READ, Is(200), Problem("unknown_model")),
    ("explain", READ, Is(200), Is(200)),
    ("sample_chunks", ADMIN, Is(200), Problem("unknown_model")),
    ("put_chunk", WRITE, Is(200), Problem("unknown_model")),
    ("get_chunk", READ, Is(200), Problem("unknown_chunk")),
    ("delete_chunk", WRITE, Is(204), Problem("unknown_chunk")),
    ("get_object", READ, Is(200), Problem("unknown_chunk")),
    ("delete_object", WRITE, Is(204), Problem("unknown_chunk")),
    ("get_object_url", READ, Is(200), Problem("unknown_chunk")),
    ("announce_upload", WRITE, Is(201), Problem("unknown_model")),
    ("commit_upload", WRITE, Is(200), Problem("unknown_upload")),
    ("create_context", WRITE, Is(201), Problem("unknown_model")),
    ("list_contexts", READ, Is(200), Is(200)),
    ("get_context", READ, Is(200), Problem("unknown_context")),
    ("change_context", WRITE, Is(200), Problem("unknown_context")),
    ("delete_context", WRITE, Is(204), Problem("unknown_context")),
    ("list_context_versions", READ, Is(200), Problem("unknown_context")),
    ("events", READ, Is(200), Is(200)),
    ("get_usage", READ, Is(200), Is(200)),
    ("report_load", READ, Is(204), Is(204)),
    ("start_job", OPERATOR, Is(202), Is(202)),
    ("list_jobs", OPERATOR, Is(200), Is(200)),
    // A job is the replica's, not a tenant's.
    ("get_job", OPERATOR, Is(200), Is(200)),
];

/// Ids that stand in paths and bodies.
#[derive(Debug, Clone)]
struct Ids {
    model: ModelId,
    profile: ProfileHash,
    seq_hash: SeqHash,
    object: ObjectDigest,
    upload: Uuid,
    context: Uuid,
    job: Uuid,
    /// Tells requests apart that must not be each other's repetition.
    cell: u64,
}

impl Ids {
    fn random(cell: u64, job: Uuid) -> Self {
        let hash = |with: u8| *blake3::hash(&[&cell.to_le_bytes()[..], &[with]].concat()).as_bytes();
        Self {
            model: hash(0).into(),
            profile: hash(1).into(),
            seq_hash: hash(2).into(),
            object: hash(3).into(),
            upload: Uuid::now_v7(),
            context: Uuid::now_v7(),
            job,
            cell,
        }
    }

    /// Key of an opaque object in the namespace `n`.
    fn key(&self) -> String {
        format!("key-{}", self.cell)
    }

    fn texts(&self) -> [(&'static str, String); 9] {
        [
            ("namespace", "n".to_owned()),
            ("key", self.key()),
            ("model_id", self.model.to_string()),
            ("profile_hash", self.profile.to_string()),
            ("seq_hash", self.seq_hash.to_string()),
            ("object_digest", self.object.to_string()),
            ("upload_id", self.upload.to_string()),
            ("context_id", self.context.to_string()),
            ("job_id", self.job.to_string()),
        ]
    }
}

/// The body of an operation; none where it has none.
fn body(operation: &str, ids: &Ids, chunk: &Chunk) -> Option<Vec<u8>> {
    let json = match operation {
        "register_model" => {
            let spec = kvasir_types::ModelSpec { revision: format!("cell {}", ids.cell), ..chunks::spec() };
            serde_json::to_value(spec).expect("serialises")
        }
        "put_profile" => return Some(chunks::PROFILE.to_vec()),
        "put_chunk" | "put_opaque_object" => return Some(chunk.bytes.clone()),
        "write_opaque_objects" => {
            let head = json!({"objects": [{"key": ids.key(), "bytes": chunk.bytes.len()}]}).to_string();
            return Some([&(head.len() as u32).to_le_bytes(), head.as_bytes(), &chunk.bytes[..]].concat());
        }
        "lookup_opaque_objects" | "read_opaque_objects" | "explain_opaque_objects" => {
            json!({"keys": [ids.key()]})
        }
        "open_namespace" | "rotate_namespace" => json!({"namespace": "other", "model_id": ids.model}),
        "lookup" => json!({"model_id": ids.model, "namespace": "n", "chunk_ids": [ids.seq_hash]}),
        "explain" => json!({"model_id": ids.model, "namespace": "n", "tokens": [1, 2, 3]}),
        "announce_upload" => {
            json!({"model_id": ids.model, "seq_hash": ids.seq_hash, "object_digest": ids.object,
            "bytes": chunk.bytes.len(), "sha256": ids.object.to_string()})
        }
        "create_context" => json!({"model_id": ids.model, "namespace": "n", "chunks": [ids.seq_hash]}),
        "change_context" => json!({"pinned": true}),
        "report_load" => json!({"slo_ms": 1, "elapsed_ms": 1, "loaded_tokens": 1, "recomputed_tokens": 0}),
        "start_job" => json!({"kind": "gc", "dry_run": true}),
        _ => return None,
    };
    Some(serde_json::to_vec(&json).expect("serialises"))
}

struct Operation {
    name: String,
    method: Method,
    path: String,
    role: Option<String>,
}

/// Every operation of the document, and `HEAD` beside each `GET` of an object.
fn operations(document: &Value) -> Vec<Operation> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, spec) in item.as_object().expect("an item") {
            let name = spec["operationId"].as_str().expect("a name").to_owned();
            let role = spec["x-kvasir-role"].as_str().map(str::to_owned);
            let mut add = |method| {
                all.push(Operation { name: name.clone(), method, path: path.clone(), role: role.clone() });
            };
            if matches!(name.as_str(), "get_chunk" | "get_object" | "get_opaque_object") {
                add(Method::HEAD);
            }
            add(method.to_uppercase().parse().expect("a method"));
        }
    }
    all
}

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Who {
    /// Without a credential, or with one that is none.
    Nobody(&'static str),
    Own(Role),
    Other(Role),
}

fn callers() -> Vec<Who> {
    let nobodies = ["", "Bearer kv_0000", "Basic YTpi", "Bearer", "expired"].map(Who::Nobody);
    let own = Role::ALL.iter().map(|role| Who::Own(*role));
    let other = Role::ALL.iter().map(|role| Who::Other(*role));
    nobodies.into_iter().chain(own).chain(other).collect()
}

struct Bench {
    guarded: Guarded,
    tokens: BTreeMap<(&'static str, Role), String>,
    expired: String,
    model: ModelId,
    root: RootHash,
    cells: u64,
    _store: S3Server,
}

impl Bench {
    async fn start() -> Self {
        let mut entries = String::new();
        let mut tokens = BTreeMap::new();
        for (tenant, role) in
            ["own", "other"].into_iter().flat_map(|t| Role::ALL.iter().map(move |r| (t, *r)))
        {
            let new = token(tenant, role);
            entries += &new.entry;
            tokens.insert((tenant, role), new.token);
        }
        let expired = token("own", Role::Operator);
        entries += &format!("{}expires = \"2020-01-01T00:00:00Z\"\n", expired.entry);
        let store = S3Server::start(Lacks::default()).await;
        let guarded = Guarded::start_with(&entries, Some(store.config("matrix")), |config| {
            config.auth.failures_per_minute = u32::MAX;
        })
        .await;
        let (model, root) = guarded.prepare(&tokens[&("own", Role::Write)]).await;
        Self { guarded, tokens, expired: expired.token, model, root, cells: 0, _store: store }
    }

    fn credential(&self, who: Who) -> Option<String> {
        match who {
            Who::Nobody("") => None,
            Who::Nobody("expired") => Some(format!("Bearer {}", self.expired)),
            Who::Nobody(text) => Some(text.to_owned()),
            Who::Own(role) => Some(format!("Bearer {}", self.tokens[&("own", role)])),
            Who::Other(role) => Some(format!("Bearer {}", self.tokens[&("other", role)])),
        }
    }

    /// Something of tenant `own` for each kind of id, made for this cell.
    async fn seed(&mut self, operation: &str) -> (Ids, Chunk) {
        self.cells += 1;
        let writer = self.tokens[&("own", Role::Write)].clone();
        let chunk = chunks::chunk(self.root, &chunks::tokens(self.cells, 32), 0, 32, 10);
        let path = routes::chunk(&self.model, &chunk.seq_hash);
        let put = self.guarded.send(&writer, Method::PUT, &path, chunk.bytes.clone()).await;
        assert!(put.status().is_success(), "{}", put.text().await.expect("text"));
        let mut ids = Ids {
            model: self.model,
            profile: ProfileHash::of(chunks::PROFILE),
            seq_hash: chunk.seq_hash,
            object: chunk.object_digest,
            ..Ids::random(self.cells, Uuid::nil())
        };
        if operation.contains("opaque") {
            let path = format!("/v1/namespaces/n/objects/{}", ids.key());
            let put = self.guarded.send(&writer, Method::PUT, &path, chunk.bytes.clone()).await;
            assert_eq!(put.status(), 201, "{}", put.text().await.expect("text"));
        }
        if operation.contains("context") {
            let request = body("create_context", &ids, &chunk).expect("has one");
            let made = self.guarded.send(&writer, Method::POST, routes::CONTEXTS, request).await;
            let made: Value = made.json().await.expect("its JSON");
            ids.context = made["context_id"].as_str().expect("an id").parse().expect("a UUID");
        }
        if operation == "commit_upload" {
            ids.upload = self.upload(&writer, &ids, &chunk).await;
        }
        if operation == "get_job" || operation == "start_job" {
            ids.job = self.finished_job().await;
        }
        (ids, chunk)
    }

    /// A direct upload that waits for its commit.
    async fn upload(&self, writer: &str, ids: &Ids, chunk: &Chunk) -> Uuid {
        let sha256 = ObjectDigest::from(<[u8; 32]>::from(Sha256::digest(&chunk.bytes))).to_string();
        let request = json!({"model_id": ids.model, "seq_hash": ids.seq_hash, "object_digest": ids.object,
            "bytes": chunk.bytes.len(), "sha256": sha256});
        let ticket = self.guarded.send(writer, Method::POST, routes::UPLOADS, request.to_string()).await;
        let ticket: Value = ticket.json().await.expect("its JSON");
        let http = reqwest::Client::new();
        let mut put = http.put(ticket["url"].as_str().expect("a URL")).body(chunk.bytes.clone());
        for (name, value) in ticket["headers"].as_object().expect("headers") {
            put = put.header(name, value.as_str().expect("text"));
        }
        assert!(put.send().await.expect("an answer").status().is_success());
        ticket["upload_id"].as_str().expect("an id").parse().expect("a UUID")
    }

    /// A job that is done, and none that is not.
    async fn finished_job(&self) -> Uuid {
        let operator = &self.tokens[&("own", Role::Operator)];
        let request = json!({"kind": "gc", "dry_run": true}).to_string();
        loop {
            let started = self.guarded.send(operator, Method::POST, routes::JOBS, request.clone()).await;
            if started.status() == 202 {
                let job: Value = started.json().await.expect("its JSON");
                let id: Uuid = job["job_id"].as_str().expect("an id").parse().expect("a UUID");
                loop {
                    let job = self.guarded.send(operator, Method::GET, &routes::job(&id), "").await;
                    let job: Value = job.json().await.expect("its JSON");
                    if job["state"] != "running" {
                        return id;
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    async fn ask(&self, who: Who, operation: &Operation, ids: &Ids, chunk: &Chunk) -> Response {
        let mut path = operation.path.clone();
        for (name, value) in ids.texts() {
            path = path.replace(&format!("{{{name}}}"), &value);
        }
        assert!(!path.contains('{'), "{}: no example value for a parameter of {path}", operation.name);
        let url = format!("http://{}{path}", self.guarded.service.address);
        let mut request = self.guarded.service.http.request(operation.method.clone(), url);
        if let Some(credential) = self.credential(who) {
            request = request.header("authorization", credential);
        }
        if let Some(body) = body(&operation.name, ids, chunk) {
            request = request.body(body);
        }
        request.send().await.expect("an answer")
    }

    async fn cell(&mut self, who: Who, operation: &Operation, row: &Row) {
        let (ids, chunk) = self.seed(&operation.name).await;
        let place = format!("{} {} as {who:?}", operation.method, operation.name);
        let (_, required, own, other) = *row;
        let answer = self.ask(who, operation, &ids, &chunk).await;
        let expected = match (required, who) {
            (None, _) => Is(200),
            (_, Who::Nobody(_)) => Problem("unauthorized"),
            (Some(required), Who::Own(role) | Who::Other(role)) if role < required => Problem("forbidden"),
            (_, Who::Own(_)) => own,
            (_, Who::Other(_)) => other,
        };
        let role = if let Who::Own(role) | Who::Other(role) = who { role } else { Role::Read };
        check(&place, operation, role, expected, &answer);
        // What belongs to the other tenant, and what does not exist.
        if let (Who::Other(_), true) = (who, operation.name != "events" && operation.name != "metrics") {
            let nothing = Ids::random(self.cells, ids.job);
            let nothing_answer = self.ask(who, operation, &nothing, &chunk).await;
            if matches!(expected, Problem(_)) {
                let (a, b) = (plain(answer, &ids).await, plain(nothing_answer, &nothing).await);
                assert_eq!(a, b, "{place}: foreign and random ids");
            }
        }
    }
}

/// Status, headers and body, without ids and what differs between any two answers.
async fn plain(answer: Response, ids: &Ids) -> (u16, Vec<(String, String)>, String) {
    let status = answer.status().as_u16();
    let headers =
        answer.headers().iter().filter(|(name, _)| !["date", "x-request-id"].contains(&name.as_str()));
    let headers = headers.map(|(name, value)| (name.to_string(), format!("{value:?}"))).collect();
    let text = answer.text().await.expect("text");
    (status, headers, ids.texts().iter().fold(text, |text, (_, id)| text.replace(id, "ID")))
}

fn check(place: &str, operation: &Operation, role: Role, expected: Outcome, answer: &Response) {
    let status = answer.status().as_u16();
    let media = answer.headers().get("content-type").map_or(String::new(), |value| format!("{value:?}"));
    let wanted = match expected {
        Is(status) => status,
        ByRole(_, status) if role > Role::Read => status,
        Problem(code) | ByRole(code, _) => {
            assert!(media.contains("problem+json"), "{place}: {status} {media}");
            let code = kvasir_api::ErrorCode::ALL.iter().find(|known| known.as_str() == code);
            code.unwrap_or_else(|| panic!("{}: no such code", operation.name)).status()
        }
    };
    assert_eq!(status, wanted, "{place}: expected {expected:?}");
}

#[tokio::test]
async fn every_route_role_tenant_and_credential() {
    let mut bench = Bench::start().await;
    let document: Value =
        bench.guarded.service.get(routes::OPENAPI, &[]).await.json().await.expect("its JSON");
    let operations = operations(&document);
    for (name, ..) in TABLE {
        assert!(operations.iter().any(|operation| operation.name == *name), "{name} is not in the document");
    }
    let (callers, mut cells) = (callers(), 0);
    for operation in &operations {
        let row = TABLE.iter().find(|(name, ..)| *name == operation.name);
        let row = row.unwrap_or_else(|| panic!("{} has no row: say who may call it", operation.name));
        assert_eq!(
            operation.role.as_deref(),
            row.1.map(Role::as_str),
            "the document's role of {}",
            operation.name
        );
        for who in &callers {
            bench.cell(*who, operation, row).await;
            cells += 1;
        }
    }
    println!(
        "{} operations x {} callers = {cells} cells, each as the table says",
        operations.len(),
        callers.len()
    );
    bench.guarded.service.stop().await;
}

/// The tenant is the credential's: a body that names one is refused, whatever it names.
#[tokio::test]
async fn no_body_names_a_tenant() {
    let mut bench = Bench::start().await;
    let document: Value =
        bench.guarded.service.get(routes::OPENAPI, &[]).await.json().await.expect("its JSON");
    let mut asked = 0;
    for operation in operations(&document) {
        let (ids, chunk) = bench.seed(&operation.name).await;
        let Some(Ok(Value::Object(sound))) =
            body(&operation.name, &ids, &chunk).map(|body| serde_json::from_slice(&body))
        else {
            continue;
        };
        for field in ["tenant", "tenant_id"] {
            let mut request = sound.clone();
            request.insert(field.to_owned(), "own".into());
            let path = operation.path.replace("{context_id}", &ids.context.to_string());
            let token = bench.tokens[&("own", Role::Operator)].clone();
            let json = Value::Object(request).to_string();
            let answer = bench.guarded.send(&token, operation.method.clone(), &path, json).await;
            assert_eq!(answer.status(), 400, "{} with {field}", operation.name);
            asked += 1;
        }
    }
    assert!(asked >= 16, "{asked}");
    bench.guarded.service.stop().await;
}
