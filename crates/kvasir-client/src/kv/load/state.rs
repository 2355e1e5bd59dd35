//! State of the load driver: one entry per chunk, and what the whole load has done so far.

use std::{collections::BTreeMap, time::Duration};

use kvasir_types::{Level, TokenRange};
use tokio::{
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use super::{LoadFailure, decode::DecodeQueue};
use crate::fetcher::RequestId;

/// Driver state of one chunk, apart from its bytes.
#[derive(Debug, Default)]
pub(super) struct ChunkLoadState {
    /// Requests that failed.
    pub(super) failures: u32,
    pub(super) repairs_begun: u32,
    pub(super) repairs_pending: u32,
    /// Level of a decode that waits for repairs.
    pub(super) pending_decode: Option<Level>,
    pub(super) units_left: usize,
    /// Tokens whose decode failed. They are returned for recompute once no unit writes to this chunk's pages.
    pub(super) undecodable: Vec<TokenRange>,
    pub(super) decode_time: Duration,
    /// The engine computes this chunk and has not reported it yet.
    pub(super) recompute_pending: bool,
    /// Worst predicted loss of what was handed over.
    pub(super) loss: f64,
}

/// Mutable state of a load.
#[derive(Default)]
pub(super) struct DriverState {
    pub(super) now: Duration,
    pub(super) reads: BTreeMap<RequestId, AbortHandle>,
    /// Reads, repairs and decodes; dropped with the load, which aborts them.
    pub(super) tasks: JoinSet<()>,
    pub(super) decode_queue: DecodeQueue,
    pub(super) decoding: usize,
    pub(super) wake: Option<Instant>,
    pub(super) failures: Vec<LoadFailure>,
    pub(super) recompute: Vec<TokenRange>,
    pub(super) flagged: Vec<TokenRange>,
    pub(super) observed: Vec<(TokenRange, Duration)>,
    pub(super) repairs: u64,
    pub(super) stale_rows: usize,
    pub(super) done: bool,
}
