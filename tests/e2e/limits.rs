//! Every limit on a request's form, each with its typed error.

use std::{fmt::Write as _, net::SocketAddr, time::Duration};

use kvasir_api::{CONTEXT_CHUNKS_MAX, LOOKUP_BLOCKS_MAX, LOOKUP_TOKENS_MAX, MEDIA_TOKENS, Role, routes};
use kvasir_tests::{
    chunks,
    s3::{Lacks, S3Server},
    service::expect_problem,
};
use kvasir_types::{ModelSpec, Pairing, Rope};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    guarded::{Guarded, token},
    isolation::quiet,
};

struct Bench {
    guarded: Guarded,
    store: S3Server,
    token: String,
    model: String,
    /// Path of a stored chunk.
    chunk: String,
}

impl Bench {
    async fn start() -> Self {
        let known = token("a", Role::Operator);
        let store = S3Server::start(Lacks::default()).await;
        let guarded = Guarded::start_with(&known.entry, Some(store.config("limits")), |config| {
            quiet(config);
            config.storage.chunk_bytes_max = 1 << 20;
            config.storage.profile_bytes_max = 1 << 20;
        })
        .await;
        let (model_id, root) = guarded.prepare(&known.token).await;
        let chunk = chunks::chunk(root, &chunks::tokens(1, 256), 0, 256, 100);
        let path = routes::chunk(&model_id, &chunk.seq_hash);
        let put = guarded.send(&known.token, Method::PUT, &path, chunk.bytes).await;
        assert_eq!(put.status(), StatusCode::CREATED);
        Self { guarded, store, token: known.token, model: model_id.to_string(), chunk: path }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("http://{}{path}", self.guarded.service.address);
        self.guarded.service.http.request(method, url).bearer_auth(&self.token)
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    fn post(&self, path: &str, json: &serde_json::Value) -> RequestBuilder {
        self.request(Method::POST, path).body(json.to_string())
    }

    fn put(&self, path: &str, bytes: usize) -> RequestBuilder {
        self.request(Method::PUT, path).body(vec![7; bytes])
    }

    fn lookup(&self, what: &str, ids: &serde_json::Value) -> RequestBuilder {
        self.post(routes::LOOKUP, &json!({"model_id": self.model, "namespace": "n", what: ids}))
    }
}

fn many(request: RequestBuilder, headers: usize, bytes: usize) -> RequestBuilder {
    (0..headers).fold(request, |request, n| request.header(format!("x-{n}"), "x".repeat(bytes)))
}

#[tokio::test]
async fn each_limit_has_its_error() {
    let bench = Bench::start().await;
    let model = &bench.model;
    let profile = format!("/v1/models/{model}/profiles/{}", "0".repeat(64));
    let sections = vec!["1"; 257].join(",");
    let hash = "0".repeat(64);
    let long = "x".repeat(200);
    let with_tokens = |bytes: usize| {
        let path = format!("{}?model_id={model}&namespace=n", routes::LOOKUP);
        bench.request(Method::POST, &path).header("content-type", MEDIA_TOKENS).body(vec![0; bytes])
    };
    let chunked = |path: &str, bytes: usize| {
        let parts = (0..bytes >> 16).map(|_| Ok::<_, std::io::Error>(vec![7u8; 1 << 16]));
        bench.request(Method::PUT, path).body(reqwest::Body::wrap_stream(futures::stream::iter(parts)))
    };
    let deep = |open: &str, close: &str, depth: usize| {
        let text = format!("{}{}", open.repeat(depth), close.repeat(depth));
        bench.request(Method::POST, routes::MODELS).body(text)
    };
    let spec = |change: fn(&mut ModelSpec)| {
        let mut spec = chunks::spec();
        change(&mut spec);
        bench.post(routes::MODELS, &serde_json::to_value(spec).expect("serialises"))
    };
    let h2 = reqwest::Client::builder().http2_prior_knowledge().build().expect("a client");
    let config = format!("http://{}{}", bench.guarded.service.address, routes::CONFIG);
    let h2 = h2.get(config).bearer_auth(&bench.token);
    let table: Vec<(&str, RequestBuilder, &str)> = vec![
        ("65 headers", many(bench.get(routes::CONFIG), 65, 1), "headers_too_large"),
        ("33 KiB of headers", many(bench.get(routes::CONFIG), 11, 3 << 10), "headers_too_large"),
        ("9 KiB of query", bench.get(&format!("{}?labels={}", routes::CONTEXTS, "a".repeat(9 << 10))), "uri_too_long"),
        ("9 KiB of path", bench.get(&format!("/v1/{}", "a".repeat(9 << 10))), "uri_too_long"),
        ("a credential of 9 KiB", bench.guarded.service.http.get(format!("http://{}{}", bench.guarded.service.address, routes::CONFIG)).bearer_auth("a".repeat(9 << 10)), "unauthorized"),
        ("gzip", bench.post(routes::MODELS, &json!({})).header("content-encoding", "gzip"), "unsupported_encoding"),
        ("deflate of a chunk", bench.put(&bench.chunk, 10).header("content-encoding", "deflate"), "unsupported_encoding"),
        ("identity, then zstd", bench.put(&bench.chunk, 10).header("content-encoding", "identity").header("content-encoding", "zstd"), "unsupported_encoding"),
        ("2 MiB of JSON", bench.request(Method::POST, routes::CONTEXTS).body(vec![b' '; 2 << 20]), "body_too_large"),
        ("17 MiB of JSON for a lookup", bench.request(Method::POST, routes::LOOKUP).body(vec![b' '; 17 << 20]), "body_too_large"),
        ("a chunk beyond the limit", bench.put(&bench.chunk, (1 << 20) + 1), "body_too_large"),
        ("a chunk beyond it, unannounced", chunked(&profile, 2 << 20), "body_too_large"),
        ("a profile beyond the limit", bench.put(&profile, (1 << 20) + 1), "body_too_large"),
        ("an empty chunk", bench.put(&bench.chunk, 0), "invalid_chunk"),
        ("a chunk of noise", bench.put(&bench.chunk, 5_000), "invalid_chunk"),
        ("arrays in arrays", deep("[", "]", 200), "bad_request"),
        ("objects in objects", deep("{\"a\":", "}", 100_000), "bad_request"),
        ("open arrays", deep("[", "", 500_000), "bad_request"),
        ("no UTF-8", bench.request(Method::POST, routes::MODELS).body(vec![b'"', 0xff, b'"']), "bad_request"),
        ("a field twice", bench.request(Method::POST, routes::LOADS).body(r#"{"slo_ms":1,"slo_ms":1,"elapsed_ms":1,"loaded_tokens":1,"recomputed_tokens":0}"#), "bad_request"),
        ("a number beyond 64 bits", bench.request(Method::POST, routes::LOADS).body(r#"{"slo_ms":99999999999999999999,"elapsed_ms":1,"loaded_tokens":1,"recomputed_tokens":0}"#), "bad_request"),
        ("too many tokens", bench.lookup("tokens", &vec![1; LOOKUP_TOKENS_MAX + 1].into()), "bad_request"),
        ("too many raw tokens", with_tokens(4 * LOOKUP_TOKENS_MAX + 4), "body_too_large"),
        ("a part of a raw token", with_tokens(7), "bad_request"),
        ("too many block hashes", bench.lookup("block_hashes", &vec![hash.clone(); LOOKUP_BLOCKS_MAX + 1].into()), "bad_request"),
        ("too many chunk ids", bench.lookup("chunk_ids", &vec![hash.clone(); LOOKUP_BLOCKS_MAX + 1].into()), "bad_request"),
        ("tokens and hashes", bench.post(routes::LOOKUP, &json!({"model_id": model, "namespace": "n", "tokens": [1], "chunk_ids": []})), "bad_request"),
        ("a token of 33 bits", bench.lookup("tokens", &json!([4_294_967_296_u64])), "bad_request"),
        ("too many ranges of sections", bench.get(&format!("{}?sections={sections}", bench.chunk)), "bad_request"),
        ("sections backwards", bench.get(&format!("{}?sections=3-1", bench.chunk)), "bad_request"),
        ("section 65535", bench.get(&format!("{}?sections=65535", bench.chunk)), "bad_request"),
        ("no tokens", bench.get(&format!("{}?tokens=0", bench.chunk)), "bad_request"),
        ("level 9", bench.get(&format!("{}?level=9", bench.chunk)), "unknown_level"),
        ("level 256", bench.get(&format!("{}?level=256", bench.chunk)), "bad_request"),
        ("two ranges", bench.get(&bench.chunk).header("range", "bytes=0-1,4-5"), "range_not_satisfiable"),
        ("a range behind the end", bench.get(&bench.chunk).header("range", "bytes=99999999-"), "range_not_satisfiable"),
        ("a range of no bytes", bench.get(&bench.chunk).header("range", "bytes=-0"), "range_not_satisfiable"),
        ("names of a model of 5 KiB", spec(|s| s.weights = "x".repeat(5 << 10)), "invalid_model_spec"),
        ("33 ropes", spec(|s| s.ropes = vec![Rope::plain(Pairing::Half, 64, 1e4); 33]), "invalid_model_spec"),
        ("a rope of 513 frequencies", spec(|s| s.ropes = vec![Rope { freqs: vec![1; 513], ..Rope::plain(Pairing::Half, 64, 1e4) }]), "invalid_model_spec"),
        ("a hash of 63 digits", bench.get(&format!("/v1/models/{}", "0".repeat(63))), "bad_request"),
        ("a hash in upper case, which is the same hash", bench.get(&format!("/v1/models/{}", "A".repeat(64))), "unknown_model"),
        ("a hash of other digits", bench.get(&format!("/v1/models/{}", "g".repeat(64))), "bad_request"),
        ("a path out of the tree", bench.get("/v1/models/..%2f..%2fother"), "bad_request"),
        ("a path with a zero byte", bench.get("/v1/models/%00"), "bad_request"),
        ("a path of no UTF-8", bench.get("/v1/models/%ff%fe"), "bad_request"),
        ("a name that climbs", bench.post(routes::NAMESPACES, &json!({"namespace": "../b", "model_id": model})), "bad_request"),
        ("a name that is too long", bench.post(routes::NAMESPACES, &json!({"namespace": long, "model_id": model})), "bad_request"),
        ("an empty name", bench.post(routes::NAMESPACES, &json!({"namespace": "", "model_id": model})), "bad_request"),
        ("a UUID that is none", bench.get("/v1/contexts/0"), "bad_request"),
        ("a context of no chunks", bench.post(routes::CONTEXTS, &json!({"model_id": model, "namespace": "n", "chunks": []})), "invalid_context"),
        ("a context of too many", bench.post(routes::CONTEXTS, &json!({"model_id": model, "namespace": "n", "chunks": vec![hash.clone(); CONTEXT_CHUNKS_MAX + 1]})), "invalid_context"),
        ("a label that is too long", bench.post(routes::CONTEXTS, &json!({"model_id": model, "namespace": "n", "chunks": [hash], "labels": {"a": "x".repeat(300)}})), "invalid_context"),
        ("a request class that is none", bench.get(&bench.chunk).header("kvasir-turn", "-1"), "bad_request"),
        ("a deadline that is none", bench.get(&bench.chunk).header("kvasir-deadline-ms", "soon"), "bad_request"),
        ("two credentials", bench.get(routes::CONFIG).header("authorization", "Bearer x"), "bad_request"),
        ("two hosts", bench.get(routes::CONFIG).header("host", "a").header("host", "b"), "bad_request"),
        ("a host other than the authority", h2.header("host", "other.example"), "bad_request"),
        ("no route", bench.get("/v2/models"), "unknown_route"),
        ("another method", bench.request(Method::PATCH, routes::LOOKUP), "method_not_allowed"),
    ];
    let (rows, before) = (table.len(), bench.store.contents());
    for (what, request, code) in table {
        let answer = request.send().await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        let problem = expect_problem(answer, code).await;
        assert!(!problem.detail.contains("panicked"), "{what}: {}", problem.detail);
        bench.store.assert_unchanged(&before, what);
    }
    println!("{rows} limits, each with its typed error");
    bench.guarded.service.stop().await;
}

/// All that is answered to bytes with nothing behind them, until the connection ends. To a whole request without a body
/// there may be no answer: the service takes the end of the stream for a client that left.
pub(crate) async fn said_to(address: SocketAddr, request: &[u8]) -> String {
    exchange(address, request, true).await
}

async fn exchange(address: SocketAddr, request: &[u8], ends: bool) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connects");
    // The end may come while it is being sent.
    let _ = stream.write_all(request).await;
    if ends {
        let _ = stream.shutdown().await;
    }
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout(Duration::from_secs(60), read).await.expect("an end");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Input that the protocol's parser rejects before there is a request: a bare status, or a closed connection.
#[tokio::test]
async fn what_is_no_request_ends_without_one() {
    let bench = Bench::start().await;
    let mut head = String::from("GET /v1/config HTTP/1.1\r\nhost: localhost\r\n");
    let mut headers = head.clone();
    for n in 0..200 {
        let _ = write!(headers, "x-{n}: 1\r\n");
    }
    let _ = write!(head, "x: {}\r\n\r\n", "a".repeat(600 << 10));
    headers.push_str("\r\n");
    let cases = [
        ("600 KiB of one header", head, "431"),
        ("200 headers", headers, "431"),
        ("a target of 600 KiB", format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(600 << 10)), "4"),
        ("no HTTP", "hello there, this is no request\r\n\r\n".to_owned(), "400"),
        ("no host", "GET /livez HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(), "400"),
        ("two lengths", "PUT / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab".to_owned(), "400"),
        ("a length and chunks", "PUT /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(), ""),
    ];
    for (what, text, status) in cases {
        let answer = said_to(bench.guarded.service.address, text.as_bytes()).await;
        assert!(
            answer.is_empty() || answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{what}: {answer:.200}"
        );
        assert!(!answer.contains("HTTP/1.1 200"), "{what}: {answer:.200}");
    }
    // This is a request. Only while its body is due does the end of what is sent not end the connection without an answer.
    let other_host = b"PUT http://other.example/livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 2\r\n\r\na";
    let answer = said_to(bench.guarded.service.address, other_host).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "a host other than the target's: {answer:.200}");
    assert_eq!(bench.get(routes::CONFIG).send().await.expect("an answer").status(), StatusCode::OK);
    bench.guarded.service.stop().await;
}

/// The protocol's parser takes an LF without CR for a line's end in a head (RFC 9112 §2.2), and nowhere else.
#[tokio::test]
async fn a_line_feed_alone_ends_a_line_of_a_head_and_nothing_else() {
    let bench = Bench::start().await;
    let cases = [
        ("a head", "GET /livez HTTP/1.1\nhost: localhost\nconnection: close\n\n", "200"),
        // What a proxy would take for one value is two fields here: of a second host, it is refused.
        (
            "a second host",
            "GET /livez HTTP/1.1\r\nhost: localhost\r\nx: a\nhost: b\r\nconnection: close\r\n\r\n",
            "400",
        ),
        (
            "a second length",
            "PUT / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\nx: a\ncontent-length: 2\r\n\r\nab",
            "400",
        ),
        (
            "a CR in a value",
            "GET /livez HTTP/1.1\r\nhost: localhost\r\nx: a\rb\r\nconnection: close\r\n\r\n",
            "400",
        ),
    ];
    for (what, text, status) in cases {
        let answer = exchange(bench.guarded.service.address, text.as_bytes(), false).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{what}: {answer:.200}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{what}: {answer:.400}");
    }
    let chunked =
        b"POST /v1/lookup HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\n{\n0\n\n";
    let answer = said_to(bench.guarded.service.address, chunked).await;
    assert!(!answer.contains("HTTP/1.1 2"), "a chunk's size: {answer:.200}");
    bench.guarded.service.stop().await;
}
