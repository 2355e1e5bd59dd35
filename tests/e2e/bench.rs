//! A service with two tenants, and a valid request for every operation of the document that it serves.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use kvasir_api::{Role, routes};
use kvasir_server::Config;
use kvasir_tests::{
    chunks::{self, Chunk},
    s3::{Lacks, S3Server},
};
use kvasir_types::{ModelId, ObjectDigest, ProfileHash, RootHash, SeqHash};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::guarded::{Guarded, token};

/// Ids in paths and bodies.
#[derive(Debug, Clone)]
pub(crate) struct Ids {
    pub(crate) model: ModelId,
    pub(crate) profile: ProfileHash,
    pub(crate) seq_hash: SeqHash,
    pub(crate) object: ObjectDigest,
    pub(crate) upload: Uuid,
    pub(crate) context: Uuid,
    pub(crate) job: Uuid,
    /// Tells requests apart that must not be each other's repetition.
    pub(crate) cell: u64,
}

impl Ids {
    pub(crate) fn random(cell: u64, job: Uuid) -> Self {
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
    pub(crate) fn key(&self) -> String {
        format!("key-{}", self.cell)
    }

    pub(crate) fn texts(&self) -> [(&'static str, String); 9] {
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

/// The body of an operation; `None` if it has none.
pub(crate) fn body(operation: &str, ids: &Ids, chunk: &Chunk) -> Option<Vec<u8>> {
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
        "report_training" => {
            json!({"outcome": "failed", "reason": "none fits", "sampled_chunks": 1, "sampled_tokens": 256,
            "in_force": ids.profile})
        }
        "start_job" => json!({"kind": "gc", "dry_run": true}),
        "plan" => json!({"model": "llama-3.1-8b"}),
        _ => return None,
    };
    Some(serde_json::to_vec(&json).expect("serialises"))
}

pub(crate) struct Operation {
    pub(crate) name: String,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) role: Option<String>,
}

/// Every operation of the document, and `HEAD` in addition to each `GET` of an object.
pub(crate) fn operations(document: &Value) -> Vec<Operation> {
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
pub(crate) enum Who {
    /// Without a credential, or with one that is none.
    Nobody(&'static str),
    Own(Role),
    Other(Role),
}

pub(crate) struct Bench {
    pub(crate) guarded: Guarded,
    pub(crate) tokens: BTreeMap<(&'static str, Role), String>,
    pub(crate) expired: String,
    pub(crate) model: ModelId,
    pub(crate) root: RootHash,
    pub(crate) cells: u64,
    pub(crate) store: S3Server,
}

impl Bench {
    pub(crate) async fn start() -> Self {
        Self::start_with("other", |_| {}).await
    }

    /// As [`start`](Self::start), with another name for the tenant `other` and other settings.
    pub(crate) async fn start_with(other: &str, change: impl FnOnce(&mut Config)) -> Self {
        let mut entries = String::new();
        let mut tokens = BTreeMap::new();
        for (tenant, role) in
            ["own", "other"].into_iter().flat_map(|t| Role::ALL.iter().map(move |r| (t, *r)))
        {
            let new = token(if tenant == "other" { other } else { tenant }, role);
            entries += &new.entry;
            tokens.insert((tenant, role), new.token);
        }
        let expired = token("own", Role::Operator);
        entries += &format!("{}expires = \"2020-01-01T00:00:00Z\"\n", expired.entry);
        let store = S3Server::start(Lacks::default()).await;
        let guarded = Guarded::start_with(&entries, Some(store.config("matrix")), |config| {
            config.auth.failures_per_minute = u32::MAX;
            change(config);
        })
        .await;
        let (model, root) = guarded.prepare(&tokens[&("own", Role::Write)]).await;
        Self { guarded, tokens, expired: expired.token, model, root, cells: 0, store }
    }

    pub(crate) fn credential(&self, who: Who) -> Option<String> {
        match who {
            Who::Nobody("") => None,
            Who::Nobody("expired") => Some(format!("Bearer {}", self.expired)),
            Who::Nobody(text) => Some(text.to_owned()),
            Who::Own(role) => Some(format!("Bearer {}", self.tokens[&("own", role)])),
            Who::Other(role) => Some(format!("Bearer {}", self.tokens[&("other", role)])),
        }
    }

    /// Something of tenant `own` for each kind of id, made for this cell.
    pub(crate) async fn seed(&mut self, operation: &str) -> (Ids, Chunk) {
        self.cells += 1;
        self.seed_as("own", self.root, operation).await
    }

    /// As [`seed`](Self::seed), of a tenant whose namespace `n` has that root, once more for the same cell.
    pub(crate) async fn seed_as(
        &self,
        tenant: &'static str,
        root: RootHash,
        operation: &str,
    ) -> (Ids, Chunk) {
        let writer = self.tokens[&(tenant, Role::Write)].clone();
        let chunk = chunks::chunk(root, &chunks::tokens(self.cells, 32), 0, 32, 10);
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
            assert!(put.status().is_success(), "{}", put.text().await.expect("text"));
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
        if matches!(operation, "get_job" | "start_job" | "cancel_job") {
            ids.job = self.finished_job(tenant).await;
        }
        (ids, chunk)
    }

    /// A direct upload that waits for its commit.
    pub(crate) async fn upload(&self, writer: &str, ids: &Ids, chunk: &Chunk) -> Uuid {
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
    pub(crate) async fn finished_job(&self, tenant: &'static str) -> Uuid {
        let operator = &self.tokens[&(tenant, Role::Operator)];
        let request = json!({"kind": "gc", "dry_run": true}).to_string();
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < Duration::from_secs(60), "no job ends");
            let started = self.guarded.send(operator, Method::POST, routes::JOBS, request.clone()).await;
            if started.status() == 202 {
                let job: Value = started.json().await.expect("its JSON");
                let id: Uuid = job["job_id"].as_str().expect("an id").parse().expect("a UUID");
                loop {
                    assert!(begun.elapsed() < Duration::from_secs(60), "the job does not end");
                    let job = self.guarded.send(operator, Method::GET, &routes::job(&id), "").await;
                    let job: Value = job.json().await.expect("its JSON");
                    if job["state"] != "running" {
                        return id;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn ask(&self, who: Who, operation: &Operation, ids: &Ids, chunk: &Chunk) -> Response {
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
}

/// Status, headers and body, without ids and without parts that differ between any two answers.
pub(crate) async fn plain(answer: Response, ids: &Ids) -> (u16, Vec<(String, String)>, String) {
    let status = answer.status().as_u16();
    let headers =
        answer.headers().iter().filter(|(name, _)| !["date", "x-request-id"].contains(&name.as_str()));
    let headers = headers.map(|(name, value)| (name.to_string(), format!("{value:?}"))).collect();
    let text = answer.text().await.expect("text");
    (status, headers, ids.texts().iter().fold(text, |text, (_, id)| text.replace(id, "ID")))
}

impl Bench {
    /// An answer to a tenant with a role.
    pub(crate) async fn answer(
        &self,
        who: (&'static str, Role),
        method: Method,
        path: &str,
        body: &Value,
    ) -> Response {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.guarded.send(&self.tokens[&who], method, path, body).await
    }

    /// The JSON of a `GET`.
    pub(crate) async fn json(&self, who: (&'static str, Role), path: &str) -> Value {
        let answer = self.answer(who, Method::GET, path, &Value::Null).await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        answer.json().await.expect("its JSON")
    }

    /// The status of a `GET`.
    pub(crate) async fn status(&self, who: (&'static str, Role), path: &str) -> u16 {
        self.answer(who, Method::GET, path, &Value::Null).await.status().as_u16()
    }
}
