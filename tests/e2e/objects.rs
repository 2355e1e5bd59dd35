//! Objects by key, over HTTP and through the client's crate.

use kvasir_api::{ErrorCode, PayloadRange, ReadObjectsRequest, WriteObjectsResponse, WrittenObject};
use kvasir_client::rest::{Client, ClientConfig};
use kvasir_tests::{
    s3::{Lacks, S3Server},
    service::{Service, expect_problem},
};
use kvasir_types::{Name, ObjectKey};
use reqwest::{Body, Method, StatusCode};
use tempfile::TempDir;

use crate::limits::said_to;

const PATH: &str = "/v1/namespaces/n/objects/page";

fn key(text: &str) -> ObjectKey {
    text.parse().expect("a key")
}

/// A body of more than a frame of the hot tier.
fn payload(seed: u8) -> Vec<u8> {
    (0..5_000_000u32).map(|i| (i.wrapping_mul(31) >> 3) as u8 ^ seed).collect()
}

fn client_of(service: &Service) -> Client {
    let url = format!("http://{}", service.address).parse().expect("a url");
    Client::new(url, ClientConfig::default()).expect("an address")
}

#[tokio::test]
async fn a_key_is_a_resource() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let service = Service::start(server.config("o"), directory.path()).await;
    let stored = payload(0);
    let put = service.send(Method::PUT, PATH, stored.clone()).await;
    assert_eq!(put.status(), StatusCode::CREATED);
    assert_eq!(put.text().await.expect("text"), r#"{"key":"page","bytes":5000000,"created":true}"#);
    assert_eq!(service.send(Method::PUT, PATH, stored.clone()).await.status(), StatusCode::OK);
    expect_problem(service.send(Method::PUT, PATH, payload(1)).await, "object_exists").await;
    let create = async |path: &str, condition: &str, bytes: Vec<u8>| {
        let request = service.http.put(format!("http://{}{path}", service.address));
        request.header("if-none-match", condition).body(bytes).send().await.expect("an answer")
    };
    for bytes in [stored.clone(), payload(1)] {
        expect_problem(create(PATH, "*", bytes).await, "object_exists").await;
    }
    let new = "/v1/namespaces/n/objects/new";
    expect_problem(create(new, "\"etag\"", b"page".to_vec()).await, "bad_request").await;
    assert_eq!(create(new, "*", b"page".to_vec()).await.status(), StatusCode::CREATED);
    for _ in 0..2 {
        // From the hot tier the second time.
        let whole = service.get(PATH, &[]).await;
        let (etag, length) = (whole.headers()["etag"].clone(), whole.headers()["content-length"].clone());
        assert_eq!((whole.status(), length.as_bytes()), (StatusCode::OK, &b"5000000"[..]));
        assert!(whole.bytes().await.expect("bytes") == stored);
        let part = service.get(PATH, &[("range", "bytes=1048570-1048585")]).await;
        assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
        assert_eq!(part.headers()["content-range"], "bytes 1048570-1048585/5000000");
        assert!(part.bytes().await.expect("bytes") == stored[1_048_570..1_048_586]);
        let current = service.get(PATH, &[("if-none-match", etag.to_str().expect("ASCII"))]).await;
        assert_eq!(current.status(), StatusCode::NOT_MODIFIED);
        let head = service.send(Method::HEAD, PATH, Body::default()).await;
        assert_eq!((head.status(), &head.headers()["content-length"]), (StatusCode::OK, &length));
        expect_problem(service.get(PATH, &[("range", "bytes=5000000-")]).await, "range_not_satisfiable")
            .await;
    }
    let unsized_body = Body::wrap_stream(futures::stream::iter([Ok::<_, std::io::Error>("page")]));
    let refused = service.send(Method::PUT, "/v1/namespaces/n/objects/other", unsized_body).await;
    expect_problem(refused, "length_required").await;
    let long = format!("/v1/namespaces/n/objects/{}", "k".repeat(513));
    expect_problem(service.send(Method::PUT, &long, "page").await, "bad_request").await;
    assert_eq!(service.send(Method::DELETE, PATH, Body::default()).await.status(), StatusCode::NO_CONTENT);
    expect_problem(service.get(PATH, &[]).await, "unknown_object").await;
    assert_eq!(service.send(Method::PUT, PATH, payload(1)).await.status(), StatusCode::CREATED);
    assert!(service.get(PATH, &[]).await.bytes().await.expect("bytes") == payload(1));
    service.stop().await;
}

#[tokio::test]
async fn the_client_stores_finds_and_reads_many() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let service = Service::start(server.config("o"), directory.path()).await;
    let client = client_of(&service);
    let namespace: Name = "team-a".parse().expect("a name");
    let keys = ["llama/7f3a:0", "ä %2F?#", "...", "empty"].map(key);
    let values = [payload(3), b"short".to_vec(), vec![7; 70_000], Vec::new()];
    for (key, value) in keys.iter().zip(&values) {
        let stored = client.put_opaque(&namespace, key, value.clone().into()).await.expect("stores");
        assert_eq!((&stored.key, stored.bytes, stored.created), (key, value.len() as u64, true));
        assert!(client.get_opaque(&namespace, key).await.expect("reads") == *value);
    }
    let asked = [&keys[..], &[key("missing")], &keys[..1]].concat();
    let found = client.lookup_opaque(&namespace, &asked).await.expect("answers");
    assert_eq!(found, values.each_ref().map(|value| value.len() as u64));
    assert!(client.read_opaque(&namespace, &asked).await.expect("reads") == values);
    assert!(client.read_opaque(&namespace, &asked[4..]).await.expect("answers").is_empty());
    let many = vec![key("k"); 257];
    let refused = client.lookup_opaque(&namespace, &many).await.expect_err("too many");
    assert!(refused.to_string().contains("256"), "{refused}");
    client.delete_opaque(&namespace, &keys[1]).await.expect("removes");
    assert_eq!(client.lookup_opaque(&namespace, &asked).await.expect("answers"), [5_000_000]);
    let each = client.lookup_opaque_each(&namespace, &asked).await.expect("answers");
    assert_eq!(each, [Some(5_000_000), None, Some(70_000), Some(0), None, Some(5_000_000)]);
    let metrics = service.metrics().await;
    for counted in ["{result=\"asked\"} 26", "{result=\"found\"} 13"] {
        assert!(metrics.contains(&format!("kvasir_lookup_keys_total{counted}\n")), "{metrics}");
    }
    // Nothing of it is lost with the process.
    service.stop().await;
    let service = Service::start(server.config("o"), &directory.path().join("another")).await;
    let client = client_of(&service);
    assert!(client.get_opaque(&namespace, &keys[0]).await.expect("reads") == values[0]);
    service.stop().await;
}

#[tokio::test]
async fn several_objects_are_stored_at_once() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let service = Service::start_with(server.config("o"), directory.path(), |config| {
        config.storage.chunk_bytes_max = 6 << 20;
    });
    let service = service.await;
    let client = client_of(&service);
    let namespace: Name = "team-a".parse().expect("a name");
    let mut objects: Vec<(ObjectKey, bytes::Bytes)> =
        (0..60).map(|n| (key(&format!("k{n}")), vec![n as u8; n * 1_000].into())).collect();
    client.put_opaque(&namespace, &key("k1"), "other".into()).await.expect("stores");
    let created: Vec<_> =
        client.write_opaque(&namespace, &objects).await.expect("answers").iter().map(|w| w.created).collect();
    assert!(created.iter().enumerate().all(|(n, created)| *created == (n != 1)), "{created:?}");
    objects.push((key("large"), payload(1)[..4 << 20].to_vec().into()));
    let again = client.write_opaque(&namespace, &objects).await.expect("answers");
    let code = |n: usize| again[n].problem.as_ref().map(|problem| problem.code.as_str());
    assert_eq!((code(0), code(1), code(60)), (None, Some("object_exists"), None));
    assert_eq!((again[0].created, again[60].created), (false, true));
    let keys: Vec<_> = objects[2..].iter().map(|(key, _)| key.clone()).collect();
    let read = client.read_opaque(&namespace, &keys).await.expect("reads");
    assert!(read.iter().zip(&objects[2..]).all(|(read, (_, stored))| read == stored), "as they were sent");
    assert!(client.write_opaque(&namespace, &[]).await.expect("nothing").is_empty());
    let many = vec![(key("k"), bytes::Bytes::new()); 257];
    assert!(client.write_opaque(&namespace, &many).await.expect_err("too many").to_string().contains("256"));
    let large = [(key("a"), payload(1).into()), (key("b"), payload(2).into())];
    let refused = client.write_opaque(&namespace, &large).await.expect_err("too large").to_string();
    assert!(refused.contains("larger than the limit"), "{refused}");
    // Bodies that are none leave nothing behind.
    let path = "/v1/namespaces/team-a/objects:write";
    let head = br#"{"objects": [{"key": "cut", "bytes": 9}]}"#;
    let body = |length: usize, bytes: &[u8]| [&(length as u32).to_le_bytes()[..], head, bytes].concat();
    for wrong in [
        vec![1, 2],
        body(head.len(), b"too short"[..8].as_ref()),
        body(head.len(), b"one too many bytes"),
        body(3, b"123456789"),
        body(2 << 20, b"123456789"),
    ] {
        expect_problem(service.send(Method::POST, path, wrong).await, "bad_request").await;
    }
    let parts = futures::stream::iter([Ok::<_, std::io::Error>(body(head.len(), b"no length"))]);
    let chunked = service.send(Method::POST, path, Body::wrap_stream(parts)).await;
    expect_problem(chunked, "length_required").await;
    // Of one that breaks off, what came whole is stored or refused, and the answer says how many of each.
    let head = br#"{"objects": [{"key": "new", "bytes": 5}, {"key": "k1", "bytes": 5}, {"key": "torn", "bytes": 9}]}"#;
    let sent = [&(head.len() as u32).to_le_bytes()[..], head, b"wholewrongtoo short"].concat();
    let length = sent.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    let answer = said_to(service.address, &[request.as_bytes(), &sent[..length - 1]].concat()).await;
    let counted = "the first 2 objects of its list came whole, and 1 of these are stored";
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(counted), "{answer}");
    let found = client.lookup_opaque_each(&namespace, &["new", "torn"].map(key)).await.expect("answers");
    assert_eq!(found, [Some(5), None]);
    let other = [(key("cut"), "another value".into())];
    let written = client.write_opaque(&namespace, &other).await.expect("answers");
    assert!(written[0].created, "{written:?}");
    service.stop().await;
}

#[tokio::test]
async fn a_batch_may_name_a_range_of_each_key() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let service = Service::start(server.config("o"), directory.path()).await;
    let client = client_of(&service);
    let namespace: Name = "team-a".parse().expect("a name");
    let long = payload(3);
    for (name, value) in [("long", long.clone()), ("short", b"short".to_vec()), ("empty", Vec::new())] {
        client.put_opaque(&namespace, &key(name), value.into()).await.expect("stores");
    }
    let wanted = [
        ("long", 1_048_570..1_048_586),
        ("short", 0..u64::MAX),
        ("long", 4_999_990..9_000_000),
        ("short", 1..3),
        ("short", 5..9),
        ("empty", 0..1),
        ("long", 6_000_000..7_000_000),
        ("long", 0..5_000_000),
        ("missing", 0..1),
        ("short", 0..1),
    ];
    let wanted = wanted.map(|(name, range)| (key(name), range));
    let found: [&[u8]; 8] =
        [&long[1_048_570..1_048_586], b"short", &long[4_999_990..], b"ho", b"", b"", b"", &long];
    let read = client.read_opaque_ranges(&namespace, &wanted).await.expect("reads");
    assert!(read == found, "{:?}", read.iter().map(Vec::len).collect::<Vec<_>>());
    let path = "/v1/namespaces/team-a/objects:read";
    let body = r#"{"keys": ["empty", "short", "short", "short"],
        "ranges": [null, {"first": 3, "bytes": 9}, {"first": 0, "bytes": 0}, null]}"#;
    let answer = service.send(Method::POST, path, body).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-length"], "39");
    let [none, two, five] = [0u64, 2, 5].map(u64::to_le_bytes);
    let expected = [&none[..], &two, b"rt", &none, &five, b"short"].concat();
    assert_eq!(answer.bytes().await.expect("bytes"), expected);
    for wrong in [
        r#"{"keys": ["short"], "ranges": [null, null]}"#,
        r#"{"keys": ["short", "empty"], "ranges": [{"first": 0, "bytes": 1}]}"#,
        r#"{"keys": ["short"], "ranges": [{"first": 0}]}"#,
    ] {
        expect_problem(service.send(Method::POST, path, wrong).await, "bad_request").await;
    }
    service.stop().await;
}

/// The last objects are opened when most of the others have been sent.
#[tokio::test]
async fn an_object_removed_meanwhile_is_not_read_even_where_no_byte_of_it_is_asked_for() {
    /// Together more than sockets hold.
    const LONG: usize = 12;
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let one_at_a_time = |config: &mut kvasir_server::Config| config.storage.lookup_parallel = 1;
    let service = Service::start_with(server.config("o"), directory.path(), one_at_a_time).await;
    let client = client_of(&service);
    let namespace: Name = "n".parse().expect("a name");
    for (name, value) in [("long", payload(3)), ("short", b"short".to_vec()), ("empty", Vec::new())] {
        client.put_opaque(&namespace, &key(name), value.into()).await.expect("stores");
    }
    for (name, range) in [("empty", None), ("short", Some(PayloadRange { first: 0, bytes: 0 }))] {
        let wanted = vec![(key("long"), None); LONG].into_iter().chain([(key(name), range)]);
        let (keys, ranges) = wanted.unzip();
        let request = serde_json::to_vec(&ReadObjectsRequest { keys, ranges }).expect("serialises");
        let answer = service.send(Method::POST, "/v1/namespaces/n/objects:read", request).await;
        assert_eq!(answer.status(), StatusCode::OK);
        client.delete_opaque(&namespace, &key(name)).await.expect("removes");
        assert!(answer.bytes().await.is_err(), "{name}");
    }
    service.stop().await;
}

#[tokio::test]
async fn a_batch_that_may_only_create_refuses_keys_that_have_an_object() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let service = Service::start(server.config("o"), directory.path()).await;
    for (name, bytes) in [("same", "page"), ("other", "else")] {
        let path = format!("/v1/namespaces/n/objects/{name}");
        assert_eq!(service.send(Method::PUT, &path, bytes).await.status(), StatusCode::CREATED);
    }
    let head = br#"{"objects": [{"key": "same", "bytes": 4}, {"key": "other", "bytes": 4}, {"key": "new", "bytes": 4}]}"#;
    let body = [&(head.len() as u32).to_le_bytes()[..], head, b"pagepagepage"].concat();
    let write = async |condition: Option<&str>| {
        let request = service.http.post(format!("http://{}/v1/namespaces/n/objects:write", service.address));
        let request =
            condition.into_iter().fold(request, |request, tag| request.header("if-none-match", tag));
        request.body(body.clone()).send().await.expect("an answer")
    };
    let outcomes = async |condition: Option<&str>| {
        let WriteObjectsResponse { objects } = write(condition).await.json().await.expect("outcomes");
        let outcome = |object: WrittenObject| (object.created, object.problem.map(|problem| problem.code));
        objects.into_iter().map(outcome).collect::<Vec<_>>()
    };
    let exists = || (false, Some(ErrorCode::ObjectExists));
    expect_problem(write(Some("\"etag\"")).await, "bad_request").await;
    assert_eq!(outcomes(Some("*")).await, [exists(), exists(), (true, None)]);
    assert_eq!(outcomes(Some("*")).await, [exists(), exists(), exists()]);
    assert_eq!(outcomes(None).await, [(false, None), exists(), (false, None)]);
    service.stop().await;
}
