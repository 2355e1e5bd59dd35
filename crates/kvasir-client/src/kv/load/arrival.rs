//! Messages to the task of a load.

use std::time::Duration;

use bytes::Bytes;
use kvasir_types::TokenRange;
use tokio::time::Instant;

use super::decode::DecodeOutcome;
use crate::{ClientError, fetcher::RequestId};

/// A message to the load's task, from the tasks it started or from the engine.
pub(super) enum Arrival {
    /// Bytes of a request of the core, or (`request` absent) of a repair.
    Bytes { request: Option<RequestId>, chunk: usize, at: Instant, offset: u64, bytes: Bytes },
    /// A request is over.
    Ended { request: RequestId, chunk: usize, at: Instant, result: Result<(), ClientError> },
    /// A repair ended, successfully or not.
    Repaired { chunk: usize, at: Instant },
    /// A decode unit ended.
    Decoded(DecodeOutcome),
    /// The engine computed tokens from text.
    Computed { range: TokenRange, took: Duration },
}
