//! Operations on sorted, disjoint token ranges.

use std::ops::Range;

use kvasir_types::TokenRange;

/// Adds a range to sorted, disjoint ranges.
pub(super) fn insert_range(ranges: &mut Vec<TokenRange>, added: TokenRange) {
    if added.is_empty() {
        return;
    }
    ranges.push(added);
    ranges.sort_by_key(|r| r.start);
    let mut joined: Vec<TokenRange> = Vec::with_capacity(ranges.len());
    for range in ranges.drain(..) {
        match joined.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    *ranges = joined;
}

/// Removes a range from sorted, disjoint ranges.
pub(super) fn remove_range(ranges: &mut Vec<TokenRange>, removed: TokenRange) {
    let remainders = |r: &TokenRange| {
        let before = TokenRange { start: r.start, end: r.end.min(removed.start) };
        let after = TokenRange { start: r.start.max(removed.end), end: r.end };
        [before, after].into_iter().filter(|r| r.start < r.end)
    };
    *ranges = ranges.iter().flat_map(remainders).collect();
}

/// The context positions of a chunk's tokens.
pub(super) fn context_range(first_token: u64, tokens: &Range<usize>) -> TokenRange {
    TokenRange { start: first_token + tokens.start as u64, end: first_token + tokens.end as u64 }
}

/// Whether sorted, disjoint, joined ranges cover all of `range`.
pub(super) fn covers(ranges: &[TokenRange], range: TokenRange) -> bool {
    ranges.iter().any(|r| r.start <= range.start && range.end <= r.end)
}
