//! `Range`, `If-Range` and `If-None-Match` of a request.

use axum::http::{HeaderMap, header};
use kvasir_api::{ErrorCode, Problem};
use kvasir_storage::ByteRange;

use crate::api_error::ApiError;

/// Whether `If-None-Match` names this representation.
pub(in crate::handlers) fn is_not_modified(headers: &HeaderMap, etag: &str) -> bool {
    let named = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|v| v.to_str().ok());
    named.flat_map(|list| list.split(',')).map(str::trim).any(|tag| {
        // Weak comparison, as RFC 9110 requires here.
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag
    })
}

/// The requested range; everything if there is none, or if `If-Range` names another representation.
///
/// # Errors
/// `range_not_satisfiable` for several ranges, other units and malformed ones.
pub(super) fn range(headers: &HeaderMap, etag: &str) -> Result<ByteRange, ApiError> {
    let Some(range) = headers.get(header::RANGE) else { return Ok(ByteRange::Whole) };
    if headers.get(header::IF_RANGE).is_some_and(|tag| tag.as_bytes() != etag.as_bytes()) {
        return Ok(ByteRange::Whole);
    }
    range.to_str().ok().and_then(parse).ok_or_else(|| {
        let detail = "a Range must be a single bytes=first-last, bytes=first- or bytes=-count; send one request per range";
        Problem::new(ErrorCode::RangeNotSatisfiable, detail).into()
    })
}

fn parse(text: &str) -> Option<ByteRange> {
    let (first, last) = text.strip_prefix("bytes=")?.trim().split_once('-')?;
    let number = |digits: &str| -> Option<u64> {
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    match (first, last) {
        ("", count) => number(count).filter(|&count| count > 0).map(ByteRange::Suffix),
        (first, "") => number(first).map(ByteRange::From),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(ByteRange::Bounded(first, last))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        for (text, expected) in [
            ("bytes=0-0", Some(ByteRange::Bounded(0, 0))),
            ("bytes=5-", Some(ByteRange::From(5))),
            ("bytes=-7", Some(ByteRange::Suffix(7))),
            ("bytes=7-5", None),
            ("bytes=-0", None),
            ("bytes=-", None),
            ("bytes=0-1,3-4", None),
            ("bytes=+1-2", None),
            ("tokens=0-1", None),
            ("bytes=99999999999999999999-", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    #[test]
    fn etags() {
        let headers = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, text.parse().expect("a value"));
            headers
        };
        assert!(is_not_modified(&headers("\"a\", \"b\""), "\"b\""));
        assert!(is_not_modified(&headers("W/\"b\""), "\"b\""));
        assert!(is_not_modified(&headers("*"), "\"b\""));
        assert!(!is_not_modified(&headers("\"a\""), "\"b\""));
    }
}
