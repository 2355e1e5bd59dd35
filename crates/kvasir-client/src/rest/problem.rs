//! Error responses, read leniently: a newer service may send codes that this build does not know.

use std::time::Duration;

use kvasir_api::ErrorCode;
use reqwest::{Response, header::RETRY_AFTER};

use super::body::read_bounded;
use crate::{Error, error::ApiError};

/// Most bytes of an error response that are read.
const PROBLEM_BYTES_MAX: usize = 64 << 10;

/// The response itself if it is a success, otherwise its problem.
pub(crate) async fn check(response: Response) -> Result<Response, Error> {
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status().as_u16();
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
    let body = read_bounded(response, PROBLEM_BYTES_MAX).await.unwrap_or_default();
    Err(parse(status, &body, retry_after.map(Duration::from_secs)).into())
}

fn parse(status: u16, body: &[u8], retry_after: Option<Duration>) -> ApiError {
    let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |key: &str| json.get(key).and_then(|v| v.as_str());
    let known = json.get("code").and_then(|code| serde_json::from_value::<ErrorCode>(code.clone()).ok());
    let retryable = json.get("retryable").and_then(serde_json::Value::as_bool);
    ApiError {
        status,
        code: text("code").map_or_else(|| format!("http_{status}"), str::to_owned),
        known,
        detail: text("detail").or(text("title")).unwrap_or("no detail given").to_owned(),
        retryable: retryable.unwrap_or(matches!(status, 408 | 429 | 502 | 503 | 504)),
        retry_after,
    }
}

#[cfg(test)]
mod tests {
    use kvasir_api::Problem;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_codes_are_typed() {
        for &code in ErrorCode::ALL {
            let body = serde_json::to_vec(&Problem::new(code, "do this")).unwrap();
            let error = parse(code.status(), &body, None);
            assert_eq!((error.known, error.retryable), (Some(code), code.is_retryable()));
            assert_eq!(error.detail, "do this");
        }
    }

    #[test]
    fn unknown_codes_keep_their_text_and_what_they_say_about_retries() {
        let body = br#"{"type":"about:kvasir/new","title":"t","status":418,"detail":"d","code":"new","retryable":true}"#;
        let error = parse(418, body, None);
        assert_eq!((error.code.as_str(), error.known, error.retryable), ("new", None, true));
    }

    proptest! {
        #[test]
        fn any_body_is_some_error(status in 400u16..600, body in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(parse(status, &body, None).status, status);
        }
    }
}
