//! A payload that is signed over S3 is compared with the digest that the signature covers, and with a checksum
//! beside it.

use aws_lc_rs::{
    digest::{SHA256, digest},
    hmac,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use data_encoding::HEXLOWER;
use kvasir_store::StoreConfig;
use kvasir_tests::service::Service;
use reqwest::StatusCode;
use tempfile::TempDir;
use time::OffsetDateTime;

/// Access key and secret of a service without tenants.
const ANYONE: &str = "anyone";
const SIGNED_HEADERS: &str = "host;x-amz-checksum-sha256;x-amz-content-sha256;x-amz-date";

fn sha256(text: &str) -> Vec<u8> {
    digest(&SHA256, text.as_bytes()).as_ref().to_vec()
}

fn authenticated(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

/// Stores `bytes` at `url`, by headers for the payload `signed` and with the checksum of `summed`.
async fn put(service: &Service, url: &str, signed: &str, summed: &str) -> (StatusCode, String) {
    let (host, path) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).expect("a path");
    let now = OffsetDateTime::now_utc();
    let day = format!("{:04}{:02}{:02}", now.year(), u8::from(now.month()), now.day());
    let date = format!("{day}T{:02}{:02}{:02}Z", now.hour(), now.minute(), now.second());
    let (payload, sum) = (HEXLOWER.encode(&sha256(signed)), STANDARD.encode(sha256(summed)));
    let headers = format!(
        "host:{host}\nx-amz-checksum-sha256:{sum}\nx-amz-content-sha256:{payload}\nx-amz-date:{date}\n"
    );
    let canonical = format!("PUT\n/{path}\n\n{headers}\n{SIGNED_HEADERS}\n{payload}");
    let scope = format!("{day}/us-east-1/s3/aws4_request");
    let digest = HEXLOWER.encode(&sha256(&canonical));
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{digest}");
    let steps = [day.as_str(), "us-east-1", "s3", "aws4_request", to_sign.as_str()];
    let secret = format!("AWS4{ANYONE}").into_bytes();
    let signature = steps.iter().fold(secret, |key, text| authenticated(&key, text));
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={ANYONE}/{scope}, SignedHeaders={SIGNED_HEADERS}, Signature={}",
        HEXLOWER.encode(&signature)
    );
    let request = service.http.put(url).header("authorization", authorization).header("x-amz-date", date);
    let request = request.header("x-amz-content-sha256", payload).header("x-amz-checksum-sha256", sum);
    let answer = request.body("bytes").send().await.expect("answers");
    (answer.status(), answer.text().await.expect("text"))
}

#[tokio::test]
async fn a_signed_payload_that_differs_from_either_digest_is_refused_and_not_stored() {
    let directory = TempDir::new().expect("a directory");
    let store = format!("file://{}/store", directory.path().display()).parse().expect("a URL");
    let cache = directory.path().join("cache");
    let service = Service::start_with(StoreConfig::new(store), &cache, |config| {
        config.server.s3_listen = Some(([127, 0, 0, 1], 0).into());
    });
    let service = service.await;
    let front = service.s3().expect("it listens");
    let get = async |url: &str| service.http.get(url).send().await.expect("answers");
    for (signed, summed) in [("other", "other"), ("other", "bytes"), ("bytes", "other")] {
        let url = format!("http://{front}/n/{signed}-{summed}");
        let (status, text) = put(&service, &url, signed, summed).await;
        assert!(status.is_client_error() && status != StatusCode::FORBIDDEN, "{status} {text}");
        // The signature is right; what is wrong is the body.
        assert_eq!(text.contains("BadDigest"), signed == "bytes", "{text}");
        assert_eq!(get(&url).await.status(), StatusCode::NOT_FOUND, "{signed} {summed}");
    }
    let url = format!("http://{front}/n/right");
    let (status, text) = put(&service, &url, "bytes", "bytes").await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_eq!(get(&url).await.text().await.expect("text"), "bytes");
    service.stop().await;
}
