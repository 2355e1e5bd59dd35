//! The selection of a chunk `GET`, from its query.

use std::ops::Range;

use axum::extract::{Query, rejection::QueryRejection};
use kvasir_api::ChunkQuery;
use kvasir_storage::Selection;

use crate::{api_error::ApiError, limits};

/// The selection, and its suffix for the ETag.
pub(super) fn parse(
    query: Result<Query<ChunkQuery>, QueryRejection>,
) -> Result<(Selection, String), ApiError> {
    let Query(ChunkQuery { level, tokens, sections }) =
        query.map_err(|e| ApiError::bad_request(e.to_string()))?;
    if tokens == Some(0) {
        return Err(ApiError::bad_request("tokens must be at least 1; use HEAD for no bytes"));
    }
    let mut tag = String::new();
    if let Some(level) = level {
        tag += &format!("-l{level}");
    }
    if let Some(tokens) = tokens {
        tag += &format!("-t{tokens}");
    }
    let sections = sections.as_deref().map(ranges).transpose()?;
    for range in sections.iter().flatten() {
        tag += &format!("-s{}.{}", range.start, range.end);
    }
    Ok((Selection { level, tokens, sections }, tag))
}

fn ranges(text: &str) -> Result<Vec<Range<u16>>, ApiError> {
    let wrong = || {
        let most = limits::SECTION_RANGES_MAX;
        ApiError::bad_request(format!(
            "sections must be numbers and ranges such as 0-3,7, at most {most}, not {text:?}"
        ))
    };
    let ranges = text.split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last < u16::MAX).then(|| first..last + 1)
    });
    let ranges = ranges.take(limits::SECTION_RANGES_MAX + 1).collect::<Option<Vec<_>>>();
    ranges.filter(|ranges| ranges.len() <= limits::SECTION_RANGES_MAX).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_sections() {
        assert_eq!(ranges("0-3,7").expect("sound"), [0..4, 7..8]);
        let many = vec!["1"; limits::SECTION_RANGES_MAX + 1].join(",");
        for bad in ["", "a", "3-1", "1,,2", "1-", "65535", "-1", &many] {
            assert!(ranges(bad).is_err(), "{bad}");
        }
    }
}
