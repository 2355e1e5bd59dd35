//! Requests that are refused: by limits, quotas, digests, signatures and lengths, and for what is stored already.

use std::{net::SocketAddr, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kvasir_api::{HEADER_OBJECT_DIGEST, Role, routes};
use kvasir_server::{Config, NewAccessKey, NewToken};
use kvasir_tests::chunks;
use kvasir_types::{ModelSpec, ObjectDigest, ProfileHash};
use object_store::{path::Path, signer::Signer};
use reqwest::{Method, Response};
use serde_json::json;

use crate::{
    bench::Bench,
    direct::announced,
    guarded::token,
    isolation::{access_key, with_s3_front},
    limits::said_to,
    s3_front,
};

/// Each with the status of its answer, and the code of its problem document or of its S3 error.
pub(super) const REFUSALS: &[(&str, u16, &str)] = &[
    ("an object beyond the limit", 413, "body_too_large"),
    ("an unannounced profile beyond the limit", 413, "body_too_large"),
    ("JSON beyond the limit", 413, "body_too_large"),
    ("an object cut short", 400, "bad_request"),
    ("a batch of objects cut short", 400, "bad_request"),
    ("a chunk cut short", 400, "bad_request"),
    ("a profile cut short", 400, "bad_request"),
    ("a model cut short", 400, "bad_request"),
    ("a chunk of another digest", 422, "chunk_mismatch"),
    ("a chunk with a flipped bit", 422, "invalid_chunk"),
    ("a profile of another digest", 422, "invalid_profile"),
    ("an object that is there, to be created", 412, "object_exists"),
    ("other bytes under a key", 412, "object_exists"),
    ("a request too many", 429, "throttled"),
    ("no room for an object", 507, "storage_quota"),
    ("no room for a chunk", 507, "storage_quota"),
    ("no room for a profile", 507, "storage_quota"),
    ("no room for a model", 507, "storage_quota"),
    ("no room for a namespace", 507, "storage_quota"),
    ("no room for a context", 507, "storage_quota"),
    ("no room for an upload", 507, "storage_quota"),
    ("S3: an object beyond the limit", 413, "EntityTooLarge"),
    ("S3: an object cut short", 400, "InvalidRequest"),
    ("S3: an object of another digest", 400, "InvalidRequest"),
    ("S3: an object of another MD5", 400, "BadDigest"),
    ("S3: another key's signature", 403, "SignatureDoesNotMatch"),
    ("S3: other bytes under a key", 412, "PreconditionFailed"),
    ("S3: a request too many", 503, "SlowDown"),
    ("S3: no room for an object", 507, "QuotaExceeded"),
];

/// Longest object, chunk and profile.
const BODY_BYTES_MAX: u64 = 64 << 10;
/// Longest JSON of most routes.
const JSON_BYTES_MAX: usize = 1 << 20;
/// A digest of nothing that is sent.
const OTHER_DIGEST: [u8; 32] = [7; 32];
/// Key of an object that is stored. No step draws it.
const STORED: &str = "stored";
/// Seed of the tokens of a chunk that is not.
const NEW_TOKENS: u64 = 1_000;

/// A tenant that is refused.
struct Caller {
    token: NewToken,
    access_key: NewAccessKey,
}

impl Caller {
    fn of(tenant: &str) -> Self {
        Self { token: token(tenant, Role::Write), access_key: access_key(tenant, Role::Write) }
    }
}

/// Whose requests these are, beside the writer's of the tenant `own`.
pub(super) struct Refusals {
    own: NewAccessKey,
    /// Of a tenant that may request nothing at all, so that no clock decides.
    throttled: Caller,
    /// Of a tenant that has what it may have: its model, its profile, its namespace.
    full: Caller,
}

impl Refusals {
    pub(super) fn new() -> Self {
        let own = access_key("own", Role::Write);
        Self { own, throttled: Caller::of("throttled"), full: Caller::of("full") }
    }

    pub(super) fn configure(&self, config: &mut Config) {
        (config.storage.chunk_bytes_max, config.storage.profile_bytes_max) = (BODY_BYTES_MAX, BODY_BYTES_MAX);
        let (throttled, full) = (&self.throttled, &self.full);
        let entries = [
            self.own.entry.as_str(),
            throttled.token.entry.as_str(),
            throttled.access_key.entry.as_str(),
            full.token.entry.as_str(),
            full.access_key.entry.as_str(),
            "[tenant.throttled]\nrequests_per_second = 0\n",
            "[tenant.full]\nstored_objects = 3\n",
        ];
        with_s3_front(config, &entries);
    }

    pub(super) async fn prepare(&self, bench: &Bench) {
        bench.guarded.prepare(&self.full.token.token).await;
        let own = &bench.tokens[&("own", Role::Write)];
        let put = bench.guarded.send(own, Method::PUT, &object(STORED), STORED).await;
        assert_eq!(put.status(), 201);
    }

    /// Sends one of [`REFUSALS`]. It is refused as listed, and leaves the bucket as it was.
    pub(super) async fn refuse(&self, bench: &Bench, nth: usize) {
        let (what, status, code) = REFUSALS[nth % REFUSALS.len()];
        println!("  then {what}");
        let before = bench.store.contents();
        let (found, text) = match what.strip_prefix("S3: ") {
            Some(what) => self.over_s3(bench, what).await,
            None => self.over_rest(bench, what).await,
        };
        let codes = [format!("\"code\":\"{code}\""), format!("<Code>{code}</Code>")];
        let is_said = codes.iter().any(|code| text.contains(code.as_str()));
        assert!(found == status && is_said, "{what}: {found}, not {status} {code}: {text}");
        bench.store.assert_unchanged(&before, what);
    }

    /// Whose request it is, and its method, path and body.
    fn request<'a>(&'a self, bench: &'a Bench, what: &str) -> (&'a str, Method, String, Vec<u8>) {
        let own = bench.tokens[&("own", Role::Write)].as_str();
        let (full, throttled) = (self.full.token.token.as_str(), self.throttled.token.token.as_str());
        let (put, post) = (Method::PUT, Method::POST);
        let chunk = chunks::chunk(bench.root, &chunks::tokens(NEW_TOKENS, 32), 0, 32, 20);
        let of_chunk = routes::chunk(&bench.model, &chunk.seq_hash);
        let model = ModelSpec { revision: "refused".to_owned(), ..chunks::spec() };
        let model = serde_json::to_vec(&model).expect("serialises");
        let profile = b"refused".to_vec();
        let of_profile = routes::profile(&bench.model, &ProfileHash::of(&profile));
        let (new, bytes) = (object("new"), b"bytes".to_vec());
        match what {
            "an object beyond the limit" => (own, put, new, too_long()),
            "an unannounced profile beyond the limit" => (own, put, of_profile, too_long()),
            "JSON beyond the limit" => {
                (own, post, routes::CONTEXTS.to_owned(), vec![b' '; JSON_BYTES_MAX + 1])
            }
            "an object cut short" => (own, put, new, bytes),
            "a batch of objects cut short" => {
                let head = json!({"objects": [{"key": "new", "bytes": bytes.len()}]}).to_string();
                let body = [&(head.len() as u32).to_le_bytes()[..], head.as_bytes(), &bytes].concat();
                (own, post, "/v1/namespaces/n/objects:write".to_owned(), body)
            }
            "a chunk cut short" | "a chunk of another digest" => (own, put, of_chunk, chunk.bytes),
            "a chunk with a flipped bit" => {
                let mut flipped = chunk.bytes;
                *flipped.last_mut().expect("not empty") ^= 0x40;
                (own, put, of_chunk, flipped)
            }
            "a profile cut short" => (own, put, of_profile, profile),
            "a profile of another digest" => {
                (own, put, routes::profile(&bench.model, &OTHER_DIGEST.into()), profile)
            }
            "a model cut short" => (own, post, routes::MODELS.to_owned(), model),
            "an object that is there, to be created" => (own, put, object(STORED), STORED.into()),
            "other bytes under a key" => (own, put, object(STORED), bytes),
            "a request too many" => (throttled, put, new, bytes),
            "no room for an object" => (full, put, new, bytes),
            "no room for a chunk" => (full, put, of_chunk, chunk.bytes),
            "no room for a profile" => (full, put, of_profile, profile),
            "no room for a model" => (full, post, routes::MODELS.to_owned(), model),
            "no room for a namespace" => {
                let request = json!({"namespace": "new", "model_id": bench.model});
                (full, post, routes::NAMESPACES.to_owned(), request.to_string().into())
            }
            "no room for a context" => {
                let chunks = [chunk.seq_hash];
                let request = json!({"model_id": bench.model, "namespace": "n", "chunks": chunks});
                (full, post, routes::CONTEXTS.to_owned(), request.to_string().into())
            }
            "no room for an upload" => {
                let request = serde_json::to_vec(&announced(bench.model, &chunk)).expect("serialises");
                (full, post, routes::UPLOADS.to_owned(), request)
            }
            other => panic!("{other} is not sent"),
        }
    }

    async fn over_rest(&self, bench: &Bench, what: &str) -> (u16, String) {
        let (token, method, path, body) = self.request(bench, what);
        let address = bench.guarded.service.address;
        if what.ends_with("cut short") {
            let head = format!("{method} {path} HTTP/1.1\r\nauthorization: Bearer {token}\r\n");
            return cut_short(address, &head, &body).await;
        }
        let request = bench.guarded.service.http.request(method, format!("http://{address}{path}"));
        let request = request.bearer_auth(token);
        let request = match what {
            "an unannounced profile beyond the limit" => {
                let parts = futures::stream::iter([Ok::<_, std::io::Error>(body)]);
                request.body(reqwest::Body::wrap_stream(parts))
            }
            "a chunk of another digest" => {
                request.header(HEADER_OBJECT_DIGEST, ObjectDigest::from(OTHER_DIGEST).to_string()).body(body)
            }
            "an object that is there, to be created" => request.header("if-none-match", "*").body(body),
            _ => request.body(body),
        };
        told(request.send().await.expect("an answer")).await
    }

    async fn over_s3(&self, bench: &Bench, what: &str) -> (u16, String) {
        let front = bench.guarded.service.s3().expect("it listens");
        let (own, full, throttled) = (&self.own, &self.full.access_key, &self.throttled.access_key);
        let (id, secret) = match what {
            "another key's signature" => (&own.id, &full.secret),
            "a request too many" => (&throttled.id, &throttled.secret),
            "no room for an object" => (&full.id, &full.secret),
            _ => (&own.id, &own.secret),
        };
        let path = Path::from(if what == "other bytes under a key" { STORED } else { "new" });
        let client = s3_front::client(front, id, secret);
        let url = client.signed_url(Method::PUT, &path, Duration::from_secs(600)).await.expect("signs");
        if what == "an object cut short" {
            let head = format!("PUT {}?{} HTTP/1.1\r\n", url.path(), url.query().expect("a signature"));
            return cut_short(front, &head, b"bytes").await;
        }
        let request = bench.guarded.service.http.put(url);
        let request = match what {
            "an object beyond the limit" => request.body(too_long()),
            "an object of another digest" => {
                let digest = ObjectDigest::from(OTHER_DIGEST).to_string();
                request.header("x-amz-content-sha256", digest).body("bytes")
            }
            "an object of another MD5" => {
                request.header("content-md5", BASE64_STANDARD.encode([7u8; 16])).body("bytes")
            }
            _ => request.body("bytes"),
        };
        told(request.send().await.expect("an answer")).await
    }
}

/// Path of an object by key.
fn object(key: &str) -> String {
    format!("/v1/namespaces/n/objects/{key}")
}

fn too_long() -> Vec<u8> {
    vec![7; BODY_BYTES_MAX as usize + 1]
}

/// Sends all of a request except the last byte of its body. `head` ends before the headers that every request has.
async fn cut_short(address: SocketAddr, head: &str, body: &[u8]) -> (u16, String) {
    let length = body.len();
    let head = format!("{head}host: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    let answer = said_to(address, &[head.as_bytes(), &body[..length - 1]].concat()).await;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {answer}")), answer)
}

async fn told(answer: Response) -> (u16, String) {
    (answer.status().as_u16(), answer.text().await.expect("text"))
}
