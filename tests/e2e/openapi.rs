//! The OpenAPI document: every example in it is sent to a service, and every route answers as documented.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kvasir_api::routes;
use kvasir_container::Head;
use kvasir_tests::{
    chunks,
    s3::{Lacks, S3Server},
    service::Service,
};
use kvasir_types::{Level, ObjectDigest, ProfileHash, RootHash};
use reqwest::{Method, StatusCode, Version};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// The order in which the examples make sense.
const ORDER: &[&str] = &[
    "livez",
    "readyz",
    "get_config",
    "get_members",
    "register_model",
    "get_model",
    "list_models",
    "put_profile",
    "get_profile",
    "get_profile_levels",
    "list_profiles",
    "report_training",
    "list_trainings",
    "open_namespace",
    "rotate_namespace",
    "put_opaque_object",
    "get_opaque_object",
    "lookup_opaque_objects",
    "read_opaque_objects",
    "write_opaque_objects",
    "explain_opaque_objects",
    "delete_opaque_object",
    "put_chunk",
    "get_chunk",
    "get_object",
    "get_object_url",
    "get_object_status",
    "sample_chunks",
    "announce_upload",
    "commit_upload",
    "lookup",
    "explain",
    "list_plan_options",
    "plan",
    "create_context",
    "list_contexts",
    "get_context",
    "change_context",
    "list_context_versions",
    "delete_context",
    "get_usage",
    "report_load",
    "list_loads",
    "get_series",
    "start_job",
    "list_jobs",
    "get_job",
    "cancel_job",
    "list_audited_calls",
    "metrics",
    "openapi",
    "delete_object",
    "delete_chunk",
    "events",
];

struct Operation {
    method: Method,
    path: String,
    spec: Value,
}

fn operations(document: &Value) -> BTreeMap<String, Operation> {
    let mut all = BTreeMap::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, spec) in item.as_object().expect("an item") {
            let method = method.to_uppercase().parse().expect("a method");
            let name = spec["operationId"].as_str().expect("a name").to_owned();
            all.insert(name, Operation { method, path: path.clone(), spec: spec.clone() });
        }
    }
    all
}

/// Objects have the same fields, down to the scalars; arrays are compared by their first entries.
fn same_form(example: &Value, answer: &Value, at: &str) {
    match (example, answer) {
        (Value::Object(a), Value::Object(b)) => {
            // Maps by id or name: their keys are data.
            if !at.ends_with("counts") && !at.ends_with("bytes_by_model") && !at.ends_with("headers") {
                let keys =
                    |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<BTreeSet<_>>();
                assert_eq!(keys(a), keys(b), "{at}");
                a.iter().for_each(|(key, value)| same_form(value, &b[key], &format!("{at}.{key}")));
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            if let (Some(a), Some(b)) = (a.first(), b.first()) {
                same_form(a, b, &format!("{at}[0]"));
            }
        }
        (a, b) => {
            let same = std::mem::discriminant(a) == std::mem::discriminant(b);
            assert!(same, "{at}: the example has {a}, the answer {b}");
        }
    }
}

/// The objects that the examples refer to.
struct Bench {
    service: Service,
    chunk: chunks::Chunk,
    ids: BTreeMap<String, String>,
}

impl Bench {
    /// A service whose tenant has a salt of zeros: the hashes of the examples are those of a real exchange.
    async fn start(directory: &TempDir, server: &S3Server) -> Self {
        let tenant = "default".parse().expect("a name");
        server.overwrite("o/2/t/default/salt", kvasir_storage::salt_record(&tenant, &[0; 32]));
        let service = Service::start_with(server.config("o"), directory.path(), |config| {
            let members = "http://kvasir-0:7480,http://kvasir-1:7480";
            config.cluster.members = Some(kvasir_server::MemberSource::parse(members).expect("a list"));
            config.cluster.advertise = Some("http://kvasir-0:7480".to_owned());
            // A chunk's status then has all its fields.
            config.gc.policy.ttl = Some(Duration::from_secs(30 * 86_400));
            config.storage.track_uses = true;
        });
        let service = service.await;
        let model_id = chunks::spec().model_id();
        let root = RootHash::derive("default", "team-a", &[0; 32], &model_id);
        let chunk = chunks::chunk(root, &(1000..1032).collect::<Vec<u32>>(), 0, 32, 64);
        Self { service, chunk, ids: BTreeMap::new() }
    }

    fn url(&self, operation: &Operation) -> String {
        let mut path = operation.path.clone();
        for parameter in operation.spec["parameters"].as_array().into_iter().flatten() {
            if parameter["in"] == "path" {
                let name = parameter["name"].as_str().expect("a name");
                let example =
                    parameter["example"].as_str().unwrap_or_else(|| panic!("{name} has no example"));
                // What the service names itself comes from the answers before.
                let value = self.ids.get(name).map_or(example, String::as_str);
                path = path.replace(&format!("{{{name}}}"), value);
            }
        }
        format!("http://{}{path}", self.service.address)
    }

    fn body(&self, name: &str, operation: &Operation) -> Vec<u8> {
        match name {
            "put_profile" => chunks::PROFILE.to_vec(),
            "put_chunk" => self.chunk.bytes.clone(),
            "put_opaque_object" => b"page".to_vec(),
            "write_opaque_objects" => {
                b"\x29\0\0\0{\"objects\": [{\"key\": \"new\", \"bytes\": 4}]}page".to_vec()
            }
            _ => {
                let content = &operation.spec["requestBody"]["content"]["application/json"];
                if content.is_object() {
                    assert!(!content["example"].is_null(), "{name} has a JSON body and no example");
                }
                content.get("example").map(|example| example.to_string().into_bytes()).unwrap_or_default()
            }
        }
    }

    /// Sends an operation's example and checks its answer.
    async fn run(&mut self, name: &str, operation: &Operation) {
        let body = self.body(name, operation);
        let request = self.service.http.request(operation.method.clone(), self.url(operation)).body(body);
        let response = request.send().await.expect("an answer");
        let status = response.status();
        let documented = &operation.spec["responses"][status.as_str()];
        assert!(
            status.is_success() && documented.is_object(),
            "{name}: {status} {:?}",
            response.text().await
        );
        if name == "events" {
            return;
        }
        let text = response.text().await.unwrap_or_default();
        let json = &documented["content"]["application/json"];
        if !json.is_object() || name == "openapi" {
            return;
        }
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        let examples = operation.spec["responses"].as_object().expect("answers").values();
        let example = examples.map(|answer| &answer["content"]["application/json"]["example"]);
        let example = example.into_iter().find(|e| !e.is_null());
        same_form(example.unwrap_or_else(|| panic!("{name} answers JSON and has no example")), &answer, name);
        for id in ["context_id", "upload_id", "job_id"] {
            if let Some(value) = answer[id].as_str() {
                self.ids.insert(id.to_owned(), value.to_owned());
            }
        }
        if name == "announce_upload" {
            let mut put =
                self.service.http.put(answer["url"].as_str().expect("a URL")).body(self.chunk.bytes.clone());
            let checksum = answer["headers"]["x-amz-checksum-sha256"].as_str().expect("a checksum");
            put = put.header("x-amz-checksum-sha256", checksum);
            assert!(put.send().await.expect("an answer").status().is_success());
        }
    }
}

#[tokio::test]
async fn every_example_is_what_the_service_does() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let mut bench = Bench::start(&directory, &server).await;
    let document: Value = bench.service.get(routes::OPENAPI, &[]).await.json().await.expect("its JSON");
    let operations = operations(&document);
    let in_order: BTreeSet<_> = ORDER.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(in_order, operations.keys().cloned().collect(), "every operation is in ORDER");

    // The constants of the examples are those of the exchange.
    let parameters = |name: &str| {
        operations["get_object"].spec["parameters"]
            .as_array()
            .expect("parameters")
            .iter()
            .find(|parameter| parameter["name"] == name)
            .expect("there")["example"]
            .clone()
    };
    let sha256 = ObjectDigest::from(<[u8; 32]>::from(Sha256::digest(&bench.chunk.bytes))).to_string();
    let root = RootHash::derive("default", "team-a", &[0; 32], &chunks::spec().model_id());
    let example = |name: &str, part: &str| {
        let operation = &operations[name].spec;
        operation.pointer(part).expect(part).clone()
    };
    let found_chunk = |field: &str| {
        example("lookup", &format!("/responses/200/content/application~1json/example/chunks/0/{field}"))
    };
    let head = Head::parse(&bench.chunk.bytes).expect("a chunk");
    let upload = example("announce_upload", "/requestBody/content/application~1json/example");
    let found = [
        parameters("model_id"),
        parameters("seq_hash"),
        parameters("object_digest"),
        upload["sha256"].clone(),
        upload["bytes"].clone(),
        example("open_namespace", "/responses/200/content/application~1json/example/root"),
        example("put_profile", "/responses/201/content/application~1json/example/profile_hash"),
        found_chunk("head_bytes"),
        found_chunk("level_bytes/0"),
    ];
    let expected = [
        chunks::spec().model_id().to_string().into(),
        bench.chunk.seq_hash.to_string().into(),
        bench.chunk.object_digest.to_string().into(),
        Value::from(sha256),
        bench.chunk.bytes.len().into(),
        root.to_string().into(),
        ProfileHash::of(chunks::PROFILE).to_string().into(),
        head.header.head_bytes().into(),
        head.level_bytes(Level(0)).into(),
    ];
    assert_eq!(found, expected, "the constants in openapi/examples.rs");
    for name in ORDER {
        bench.run(name, &operations[*name]).await;
    }
    bench.service.stop().await;
}

/// The router has exactly the document's methods on exactly its paths.
#[tokio::test]
async fn routes_and_document_are_the_same_set() {
    let directory = TempDir::new().expect("a directory");
    let file = format!("file://{}/store", directory.path().display()).parse().expect("a url");
    let service = Service::start(kvasir_store::StoreConfig::new(file), directory.path()).await;
    let document: Value = service.get(routes::OPENAPI, &[]).await.json().await.expect("its JSON");
    let paths = document["paths"].as_object().expect("paths");
    assert_eq!(paths.len(), routes::ALL.len());
    for (path, item) in paths {
        // TRACE is on no route: the answer lists what is.
        let response = service.send(Method::TRACE, path, "").await;
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
        let allowed = response.headers()["allow"].to_str().expect("text").to_owned();
        let mut allowed: Vec<_> = allowed.split(',').map(str::trim).filter(|m| *m != "HEAD").collect();
        allowed.sort_unstable();
        let mut documented: Vec<_> =
            item.as_object().expect("an item").keys().map(|m| m.to_uppercase()).collect();
        documented.sort_unstable();
        assert_eq!(allowed, documented, "{path}");
    }
    service.stop().await;
}

#[tokio::test]
async fn the_page_works_offline_and_over_both_versions_of_http() {
    let directory = TempDir::new().expect("a directory");
    let file = format!("file://{}/store", directory.path().display()).parse().expect("a url");
    let mut service = Service::start(kvasir_store::StoreConfig::new(file), directory.path()).await;
    let h2 = reqwest::Client::builder().http2_prior_knowledge().build().expect("a client");
    let h1 = std::mem::replace(&mut service.http, h2);
    for (http, version) in [(h1, Version::HTTP_11), (service.http.clone(), Version::HTTP_2)] {
        service.http = http;
        let document = service.get(routes::OPENAPI, &[]).await;
        assert_eq!((document.version(), document.status()), (version, StatusCode::OK));
        let page = service.get("/docs/", &[]).await;
        assert_eq!(page.version(), version);
        let page = page.text().await.expect("text");
        assert!(!page.contains("http://") && !page.contains("https://"), "nothing from elsewhere: {page}");
        let parts = page.split(['"', '\'']).filter(|part| part.ends_with(".js") || part.ends_with(".css"));
        let parts: Vec<_> = parts.map(|part| part.trim_start_matches("./").to_owned()).collect();
        assert!(parts.len() >= 3, "{page}");
        for part in parts {
            let response = service.get(&format!("/docs/{part}"), &[]).await;
            assert_eq!(response.status(), StatusCode::OK, "{part}");
            assert!(!response.bytes().await.expect("reads").is_empty());
        }
        let settings = service.get("/docs/swagger-initializer.js", &[]).await.text().await.expect("text");
        assert!(settings.contains(routes::OPENAPI), "{settings}");
    }
    service.stop().await;
}
