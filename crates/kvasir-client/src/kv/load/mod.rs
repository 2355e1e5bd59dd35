//! A load: the tokio shell around the fetcher core.
//!
//! ```text
//! core ──Fetch──► Fetch (task): parts, hedges, ways ──bytes──► Assembly: every piece checked as it completes
//!   ▲                                                              │ damaged: read once more, beside the core
//!   └──events── Driver ◄──Decoded── DecodeQueue (blocking threads) ◄── Decode: runs of spans × groups of layers
//!                  │
//!                  └──► LayerReady, Recompute, Withdrawn, Done
//! ```

mod assembly;
mod begin;
mod decode;
mod driver;
mod fetch;
mod options;
mod progress;
mod report;
mod stream;

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use kvasir_types::TokenRange;
use tokio::time::Instant;

pub use options::LoadOptions;
pub use report::{ChunkReport, LoadError, LoadFailure, LoadReport, ReadReport};
pub use stream::{LayerReady, Load, LoadEvent, RecomputeCause};

use self::decode::Decoded;
use crate::{ClientError, fetcher::RequestId};

/// Something a task has to say to the load.
enum Arrival {
    /// Bytes of a request of the core, or (`request` absent) of a repair.
    Bytes { request: Option<RequestId>, chunk: usize, at: Instant, offset: u64, bytes: Bytes },
    /// A request is over.
    Ended { request: RequestId, chunk: usize, at: Instant, result: Result<(), ClientError> },
    /// A repair is over, for better or worse.
    Repaired { chunk: usize, at: Instant },
    /// A unit was decoded.
    Decoded { at: Instant, decoded: Decoded },
    /// The engine computed tokens from text.
    Computed { range: TokenRange, took: Duration },
}

/// Adds a range to sorted, disjoint ranges.
fn join(ranges: &mut Vec<TokenRange>, added: TokenRange) {
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

/// Takes a range out of sorted, disjoint ranges.
fn cut(ranges: &mut Vec<TokenRange>, removed: TokenRange) {
    let pieces = |r: &TokenRange| {
        let before = TokenRange { start: r.start, end: r.end.min(removed.start) };
        let after = TokenRange { start: r.start.max(removed.end), end: r.end };
        [before, after].into_iter().filter(|r| r.start < r.end)
    };
    *ranges = ranges.iter().flat_map(pieces).collect();
}

/// Positions of the context that a chunk's tokens have.
fn in_context(first_token: u64, tokens: &Range<usize>) -> TokenRange {
    TokenRange { start: first_token + tokens.start as u64, end: first_token + tokens.end as u64 }
}
