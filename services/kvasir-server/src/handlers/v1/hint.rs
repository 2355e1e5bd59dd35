//! Headers about the caller's request and about the body that it sends.

use std::str::FromStr;

use axum::http::{HeaderMap, header};
use kvasir_api::{
    ErrorCode, HEADER_DEADLINE, HEADER_NAMESPACE, HEADER_OBJECT_DIGEST, HEADER_REQUEST_TYPE, HEADER_ROUTE,
    HEADER_TURN, Problem,
};
use kvasir_storage::{AnnouncedBody, hot::RequestHint};
use kvasir_types::{Name, RouteKey};
use tokio::time::Instant;

use super::body;
use crate::{
    api_error::ApiError,
    cluster::{Cluster, RoutePlace},
    egress,
};

/// The request class in the headers; omitted parts are inferred.
///
/// # Errors
/// `bad_request` for a type that is not a name, and for a turn that is not a number from 1.
pub(super) fn parse(cluster: &Cluster, headers: &HeaderMap) -> Result<RequestHint, ApiError> {
    let kind = name(headers, HEADER_REQUEST_TYPE)?;
    let turn = match text(headers, HEADER_TURN)? {
        Some(text) => match whole_number(text) {
            Some(turn @ 1..) => Some(turn),
            Some(0) | None => return Err(wrong(HEADER_TURN, "a turn must be a whole number from 1")),
        },
        None => None,
    };
    let place = route(headers)?.map(|route| cluster.place(&route));
    let (transient, is_first) = (place == Some(RoutePlace::Other), place == Some(RoutePlace::First));
    Ok(RequestHint { kind, turn, transient, is_first, is_verified: is_no_cache(headers) })
}

/// Whether the caller takes no bytes from a cache that are not verified again, as RFC 9111 has it.
fn is_no_cache(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|list| list.split(',')).any(|one| one.trim().eq_ignore_ascii_case("no-cache"))
}

/// The route of the prompt that the request serves.
///
/// # Errors
/// `bad_request` for one that is no route.
pub(super) fn route(headers: &HeaderMap) -> Result<Option<RouteKey>, ApiError> {
    let parsed = text(headers, HEADER_ROUTE)?.map(str::parse);
    parsed.transpose().map_err(|e| wrong(HEADER_ROUTE, &format!("{e}")))
}

/// The deadline of the load that the request serves.
///
/// # Errors
/// `bad_request` for one that is no number of milliseconds.
pub(crate) fn deadline(headers: &HeaderMap) -> Result<Option<Instant>, ApiError> {
    let Some(left) = text(headers, HEADER_DEADLINE)? else { return Ok(None) };
    let left = whole_number(left)
        .ok_or_else(|| wrong(HEADER_DEADLINE, "a deadline must be a whole number of milliseconds"))?;
    Ok(Some(egress::deadline(left)))
}

/// The namespace in a writer's headers.
///
/// # Errors
/// `bad_request` if it is not a name.
pub(super) fn namespace(headers: &HeaderMap) -> Result<Option<Name>, ApiError> {
    name(headers, HEADER_NAMESPACE)
}

/// The digest and length in a writer's headers.
///
/// # Errors
/// `bad_request` if it is not a digest, `length_required` if there is no length.
pub(super) fn announced(headers: &HeaderMap) -> Result<Option<AnnouncedBody>, ApiError> {
    let Some(digest) = text(headers, HEADER_OBJECT_DIGEST)? else { return Ok(None) };
    let object_digest = digest.parse().map_err(|e| wrong(HEADER_OBJECT_DIGEST, &format!("{e}")))?;
    let no_length = || {
        let detail = format!(
            "header {HEADER_OBJECT_DIGEST} needs Content-Length: do not send the body with chunked encoding"
        );
        Problem::new(ErrorCode::LengthRequired, detail)
    };
    Ok(Some(AnnouncedBody { object_digest, bytes: body::declared_length(headers).ok_or_else(no_length)? }))
}

fn name(headers: &HeaderMap, header: &'static str) -> Result<Option<Name>, ApiError> {
    let parsed = text(headers, header)?.map(str::parse);
    parsed.transpose().map_err(|e| wrong(header, &format!("{e}")))
}

/// A number in digits alone; `parse` takes a sign as well.
fn whole_number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn text<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, ApiError> {
    let text = headers.get(name).map(|value| value.to_str());
    text.transpose().map_err(|_| wrong(name, "it is not ASCII text"))
}

fn wrong(name: &str, problem: &str) -> ApiError {
    ApiError::bad_request(format!("header {name}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn deadlines_are_read_or_refused() {
        let read = |left: Option<&'static str>| {
            let left =
                left.map(|left| (HEADER_DEADLINE.parse().expect("a name"), left.parse().expect("a value")));
            deadline(&left.into_iter().collect())
        };
        assert_eq!(read(None).expect("none"), None);
        let half_a_second = Instant::now() + std::time::Duration::from_millis(500);
        assert_eq!(read(Some("500")).expect("a number"), Some(half_a_second));
        assert!(read(Some("18446744073709551615")).expect("a number") > Some(half_a_second));
        for wrong in ["", "-1", "+5", "0.5", "soon", "18446744073709551616"] {
            let refused = read(Some(wrong)).expect_err(wrong);
            assert!(refused.problem().detail.contains(HEADER_DEADLINE), "{refused:?}");
        }
    }

    #[test]
    fn hints_are_read_or_refused() {
        let read = |kind: Option<&'static str>, turn: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            kind.map(|kind| headers.insert(HEADER_REQUEST_TYPE, kind.parse().expect("a value")));
            turn.map(|turn| headers.insert(HEADER_TURN, turn.parse().expect("a value")));
            parse(&Cluster::default(), &headers)
        };
        assert_eq!(read(None, None).expect("nothing"), RequestHint::default());
        let hint = read(Some("file"), Some("4")).expect("both");
        assert_eq!((hint.kind.expect("a type").as_str(), hint.turn), ("file", Some(4)));
        for (kind, turn) in [
            (Some("a b"), None),
            (Some(""), None),
            (None, Some("0")),
            (None, Some("-1")),
            (None, Some("+4")),
            (None, Some("x")),
        ] {
            assert!(read(kind, turn).is_err(), "{kind:?} {turn:?}");
        }
    }

    #[test]
    fn what_is_verified_again_is_said_in_any_cache_control() {
        let read = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CACHE_CONTROL, value.parse().expect("a value"));
            }
            parse(&Cluster::default(), &headers).expect("is taken").is_verified
        };
        assert!(read(&["no-cache"]) && read(&["max-age=0, No-Cache"]) && read(&["no-store", "no-cache"]));
        assert!(!read(&[]) && !read(&["no-store"]) && !read(&["no-cache=x"]));
    }

    #[test]
    fn an_announced_body_has_a_digest_and_a_length() {
        let read = |digest: &str, length: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER_OBJECT_DIGEST, digest.parse().expect("a value"));
            length.map(|length| headers.insert("content-length", length.parse().expect("a value")));
            announced(&headers)
        };
        let digest = "ab".repeat(32);
        let found = read(&digest, Some("7")).expect("both").expect("is announced");
        assert_eq!((found.object_digest.to_string(), found.bytes), (digest.clone(), 7));
        assert!(read(&digest, None).is_err() && read("ab", Some("7")).is_err());
        assert!(announced(&HeaderMap::new()).expect("nothing").is_none());
    }
}
