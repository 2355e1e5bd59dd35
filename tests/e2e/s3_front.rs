//! The S3 front with an independent client: `object_store`. `tests/s3` has more clients.

use std::net::SocketAddr;

use futures::{StreamExt, TryStreamExt, stream};
use kvasir_api::{AuditList, MEDIA_PROBLEM, Role, routes};
use kvasir_server::NewAccessKey;
use kvasir_tests::{
    s3::{Lacks, S3Server},
    service::Service,
};
use object_store::{
    Error, ObjectStore, ObjectStoreExt, PutMode, WriteMultipart,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    path::Path,
};
use reqwest::{Method, StatusCode};
use tempfile::TempDir;

use crate::guarded::{Guarded, token};

pub(crate) fn client(address: SocketAddr, id: &str, secret: &str) -> AmazonS3 {
    builder(address, id, secret).build().expect("a client")
}

fn builder(address: SocketAddr, id: &str, secret: &str) -> AmazonS3Builder {
    let builder = AmazonS3Builder::new().with_endpoint(format!("http://{address}")).with_allow_http(true);
    let builder = builder.with_access_key_id(id).with_secret_access_key(secret).with_bucket_name("n");
    builder.with_retry(object_store::RetryConfig { max_retries: 0, ..Default::default() })
}

async fn front(directory: &TempDir, server: &S3Server) -> (Service, SocketAddr) {
    let service = Service::start_with(server.config("s"), directory.path(), |config| {
        config.server.s3_listen = Some(([127, 0, 0, 1], 0).into());
    });
    let service = service.await;
    let address = service.s3().expect("it listens");
    (service, address)
}

#[tokio::test]
async fn objects_of_s3_clients_are_objects_by_key() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let (service, address) = front(&directory, &server).await;
    let store = client(address, "anyone", "anyone");
    let (path, large) = (Path::parse("a/b c/ä").expect("a path"), vec![7; 11 << 20]);
    store.put_opts(&path, "hello".into(), PutMode::Create.into()).await.expect("creates");
    let again = store.put_opts(&path, "hello".into(), PutMode::Create.into()).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    assert_eq!(store.get(&path).await.expect("reads").bytes().await.expect("reads"), "hello");
    assert_eq!(store.get_range(&path, 1..4).await.expect("reads"), "ell");
    // The same object by the API, and the other way round.
    let by_key = service.get("/v1/namespaces/n/objects/a%2Fb%20c%2F%C3%A4", &[]).await;
    let etag = by_key.headers()["etag"].to_str().expect("ASCII").to_owned();
    assert_eq!(store.head(&path).await.expect("is there").e_tag, Some(etag));
    let put = service.send(Method::PUT, "/v1/namespaces/n/objects/by%2Fapi", "bytes").await;
    assert_eq!(put.status(), StatusCode::CREATED);
    assert_eq!(store.get(&Path::from("by/api")).await.expect("reads").bytes().await.expect("reads"), "bytes");
    let upload = store.put_multipart(&Path::from("large")).await.expect("begins");
    let mut upload = WriteMultipart::new_with_chunk_size(upload, 5 << 20);
    upload.write(&large);
    upload.finish().await.expect("completes");
    assert!(store.get(&Path::from("large")).await.expect("reads").bytes().await.expect("reads") == large);
    let listed: Vec<_> =
        store.list(None).map_ok(|meta| meta.location.to_string()).try_collect().await.expect("lists");
    assert_eq!(listed, ["a/b c/ä", "large"], "what was stored over S3");
    let (metrics, labels) =
        (service.get("/metrics", &[]).await.text().await.expect("text"), ["PutObject", "ListObjectsV2"]);
    assert!(
        labels.iter().all(|label| metrics.contains(&format!("route=\"s3:{label}\""))),
        "counted by operation"
    );
    for counted in ["result=\"created\"} 3", "result=\"known\"} 1"] {
        let line = format!("kvasir_chunks_stored_total{{kind=\"object\",{counted}\n");
        assert!(metrics.contains(&line), "of both APIs: {metrics}");
    }
    store.delete(&path).await.expect("removes");
    assert!(matches!(store.get(&path).await, Err(Error::NotFound { .. })));
    service.stop().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "closed with the service");
}

#[tokio::test]
async fn access_keys_are_taken_in_and_end() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let file = directory.path().join("tenants.toml");
    let key = |name: &str, role| NewAccessKey::generate(name, &"a".parse().expect("a name"), role);
    let (writer, reader) = (key("writer", Role::Write), key("reader", Role::Read));
    let past = format!("{}expires = \"2020-01-01T00:00:00Z\"\n", key("late", Role::Write).entry);
    let admin = token("a", Role::Admin);
    let entries = [&writer.entry, &reader.entry, &admin.entry, &past].map(String::as_str).concat();
    std::fs::write(&file, entries).expect("writes");
    let service = Service::start_with(server.config("s"), directory.path(), |config| {
        config.server.s3_listen = Some(([127, 0, 0, 1], 0).into());
        config.auth.tenants_file = Some(file.clone());
    });
    let service = service.await;
    let address = service.s3().expect("it listens");
    let path = Path::from("a");
    let written = client(address, &writer.id, &writer.secret).put(&path, "bytes".into()).await;
    written.expect("a writer writes");
    let late = past.split('"').find(|word| word.starts_with("KV")).expect("its id");
    for (id, secret) in [("anyone", "anyone"), (&writer.id, &reader.secret), (late, &writer.secret)] {
        let refused = client(address, id, secret).get(&path).await;
        assert!(matches!(refused, Err(Error::PermissionDenied { .. })), "{refused:?}");
    }
    let reads = client(address, &reader.id, &reader.secret);
    assert_eq!(reads.get(&path).await.expect("reads").bytes().await.expect("reads"), "bytes");
    for refused in [reads.put(&Path::from("b"), "bytes".into()).await.map(drop), reads.delete(&path).await] {
        assert!(matches!(refused, Err(Error::PermissionDenied { .. })), "{refused:?}");
    }
    let metrics = service.metrics().await;
    for counted in ["{reason=\"invalid\"} 3", "{reason=\"role\"} 2"] {
        assert!(metrics.contains(&format!("kvasir_auth_refused_total{counted}\n")), "{metrics}");
    }
    let bearer = format!("Bearer {}", admin.token);
    let audited = service.get(routes::AUDIT, &[("authorization", &bearer)]).await;
    let audited: AuditList = audited.json().await.expect("a list");
    let refused = audited.calls.iter().filter(|call| call.status == 403 && call.path.starts_with("/n"));
    assert_eq!(refused.count(), 2, "{audited:?}");
    service.stop().await;
}

/// Each removal by key is a line, over both APIs. Lines of a tenant that is encrypted at rest leave its keys out.
#[tokio::test]
async fn removals_by_key_are_audited() {
    let server = S3Server::start(Lacks::default()).await;
    let access_key =
        |tenant: &str| NewAccessKey::generate("s3", &tenant.parse().expect("a name"), Role::Write);
    let writers = ["plain", "sealed"].map(|tenant| (tenant, access_key(tenant), token(tenant, Role::Write)));
    let operator = token("operators", Role::Operator);
    let entries = writers.iter().flat_map(|(_, s3, rest)| [s3.entry.as_str(), rest.entry.as_str()]);
    let entries: String = entries.chain([operator.entry.as_str()]).collect();
    let guarded = Guarded::start_with(&entries, Some(server.config("s")), |config| {
        config.server.s3_listen = Some(([127, 0, 0, 1], 0).into());
        config.keys = Some(format!("sealed:1:{}", "5a".repeat(32)).into());
    });
    let guarded = guarded.await;
    let address = guarded.service.s3().expect("it listens");
    for (tenant, s3, rest) in &writers {
        let store = client(address, &s3.id, &s3.secret);
        let batch = ["a/1", "a/2"].map(Path::from);
        for path in &batch {
            store.put(path, "bytes".into()).await.expect("stores");
        }
        let removed = store.delete_stream(stream::iter(batch.map(Ok)).boxed());
        assert_eq!(removed.try_collect::<Vec<_>>().await.expect("removes").len(), 2);
        let one_by_one = builder(address, &s3.id, &s3.secret);
        let one_by_one = one_by_one.with_config(AmazonS3ConfigKey::DisableBulkDelete, "true").build();
        one_by_one.expect("a client").delete(&Path::from("missing")).await.expect("as if it had been there");
        let path = "/v1/namespaces/n/objects/a%2F3";
        assert_eq!(guarded.send(&rest.token, Method::PUT, path, "bytes").await.status(), 201);
        for (path, status) in [(path, 204), ("/v1/namespaces/n/objects/never", 404)] {
            assert_eq!(guarded.send(&rest.token, Method::DELETE, path, "").await.status(), status);
        }
        let list = format!("{}?tenant={tenant}", routes::AUDIT);
        let list = guarded.send(&operator.token, Method::GET, &list, "").await;
        let AuditList { calls } = list.json().await.expect("a list");
        let lines = calls.iter().rev().map(|call| {
            format!("{} {} {} {} {}", call.tenant, call.credential, call.method, call.path, call.status)
        });
        let key = |key: &'static str| if *tenant == "sealed" { "{key}" } else { key };
        let expected = [
            format!("{tenant} s3 DELETE /n/{} 204", key("a/1")),
            format!("{tenant} s3 DELETE /n/{} 204", key("a/2")),
            format!("{tenant} s3 DELETE /n/{} 204", key("missing")),
            format!("{tenant} test DELETE /v1/namespaces/n/objects/{} 204", key("a%2F3")),
            format!("{tenant} test DELETE /v1/namespaces/n/objects/{} 404", key("never")),
        ];
        assert_eq!(lines.collect::<Vec<_>>(), expected);
    }
    guarded.service.stop().await;
}

/// Requests that `s3s` would hold in memory or misread, or whose signature does not cover their body, do not get to it.
#[tokio::test]
async fn forms_old_signatures_and_unsigned_chunks_are_refused() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let (service, address) = front(&directory, &server).await;
    let http = reqwest::Client::new();
    let form = "--x\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\na\r\n--x--\r\n";
    let media = "Multipart/form-data; boundary=x";
    let posted = http.post(format!("http://{address}/n")).header("content-type", media).body(form);
    let signed = http.get(format!("http://{address}/n/a")).header("authorization", "AWS anyone:c2ln");
    let by_query =
        http.get(format!("http://{address}/n/a?AWSAccessKeyId=anyone&Expires=9999999999&Signature=x"));
    let encoded = http.put(format!("http://{address}/n/a")).header("content-encoding", "gzip").body("x");
    // Nothing that covers the heads of chunks, which would be stored with the bytes.
    let chunks = http.put(format!("http://{address}/n/a")).header("x-amz-decoded-content-length", 1);
    let chunks = chunks.header("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    let chunks = chunks.header("content-encoding", "aws-chunked").body("1\r\nx\r\n0\r\n\r\n");
    for request in [posted, signed, by_query, encoded, chunks] {
        let answer = request.send().await.expect("answers");
        assert!(answer.headers().contains_key("x-request-id"), "{answer:?}");
        let (status, text) = (answer.status(), answer.text().await.expect("text"));
        assert!(status.is_client_error() && text.contains("<Code>InvalidRequest</Code>"), "{status} {text}");
    }
    let stored = http.get(format!("http://{address}/n/a")).send().await.expect("answers");
    assert_eq!(stored.status(), StatusCode::NOT_FOUND);
    let outside = http.get(format!("http://{address}/livez")).send().await.expect("answers");
    assert_eq!(outside.status(), StatusCode::OK, "a bucket of this name, and no probe");
    service.stop().await;
}

/// The media type of an answer, which a reader may choose, does not say that it is a problem of the service.
#[tokio::test]
async fn an_object_is_sent_as_whatever_media_type_its_reader_wants() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let (service, address) = front(&directory, &server).await;
    let url = format!("http://{address}/n/a");
    let stored = service.http.put(&url).body("bytes").send().await.expect("answers");
    assert_eq!(stored.status(), StatusCode::OK);
    for media in ["text/plain", MEDIA_PROBLEM] {
        let asked = format!("{url}?response-content-type={}", media.replace('+', "%2B"));
        let answer = service.http.get(asked).send().await.expect("answers");
        assert_eq!(answer.status(), StatusCode::OK, "{media}");
        assert_eq!(answer.headers()["content-type"], media);
        assert_eq!(answer.text().await.expect("text"), "bytes");
    }
    service.stop().await;
}

/// Browsers say for which page they send a request.
#[tokio::test]
async fn a_page_of_another_address_uses_no_front_without_credentials() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let (service, address) = front(&directory, &server).await;
    let url = format!("http://{address}/n/a");
    let put = async |origin: &str| {
        let request = service.http.put(&url).header("origin", origin).body("x");
        let answer = request.send().await.expect("answers");
        (answer.status(), answer.text().await.expect("text"))
    };
    for origin in ["http://evil.example", "http://127.0.0.1:1", "null"] {
        let (status, text) = put(origin).await;
        assert!(
            status == StatusCode::FORBIDDEN && text.contains("<Code>AccessDenied</Code>"),
            "{origin}: {status} {text}"
        );
    }
    // A page whose name was made to resolve to this machine.
    let config = format!("http://{}{}", service.address, routes::CONFIG);
    for url in [&url, &config] {
        let request = service.http.get(url).header("host", "evil.example").send();
        assert_eq!(request.await.expect("answers").status(), StatusCode::FORBIDDEN, "{url}");
    }
    let missing = service.http.get(&url).send().await.expect("answers");
    assert_eq!(missing.status(), StatusCode::NOT_FOUND, "nothing was stored");
    let own = put(&format!("http://{address}")).await;
    assert_eq!(own.0, StatusCode::OK, "{}", own.1);
    service.stop().await;
}

/// As at the API: of two, the front would take one, and a proxy before it perhaps the other.
#[tokio::test]
async fn a_head_with_two_hosts_or_credentials_is_refused() {
    let directory = TempDir::new().expect("a directory");
    let server = S3Server::start(Lacks::default()).await;
    let (service, address) = front(&directory, &server).await;
    let put = || service.http.put(format!("http://{address}/n/a")).body("x");
    for (name, value) in [("host", "localhost"), ("authorization", "AWS4-HMAC-SHA256 x")] {
        let answer = put().header(name, value).header(name, value).send().await.expect("answers");
        let (status, text) = (answer.status(), answer.text().await.expect("text").to_lowercase());
        assert!(status == StatusCode::BAD_REQUEST && text.contains(name), "{name}: {status} {text}");
    }
    let h2 = reqwest::Client::builder().http2_prior_knowledge().build().expect("a client");
    // The bucket of a request, and what its signature covers, depend on its host.
    for (host, expected) in
        [("bucket.example".to_owned(), StatusCode::BAD_REQUEST), (address.to_string(), StatusCode::OK)]
    {
        let put = h2.put(format!("http://{address}/n/h2")).header("host", &host).body("x");
        assert_eq!(put.send().await.expect("answers").status(), expected, "beside :authority, {host}");
    }
    assert_eq!(put().send().await.expect("answers").status(), StatusCode::OK, "with one host it is taken");
    service.stop().await;
}
