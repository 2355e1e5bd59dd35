//! Messages to the task of a load.

use std::time::Duration;

use bytes::Bytes;
use kvasir_types::TokenRange;
use tokio::time::Instant;

use crate::{Error, fetcher::RequestId};

/// One read of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReadId {
    /// Asked for by the core.
    Request(RequestId),
    /// A repair of damaged bytes, unknown to the core; numbered per load.
    Repair(u64),
}

/// A message to the load's task, from its reads or from the engine.
pub(super) enum Arrival {
    /// Bytes of a read; not from the link if another load had brought them.
    Bytes { read: ReadId, at: Instant, offset: u64, bytes: Bytes, from_link: bool },
    /// A read ended.
    Ended { read: ReadId, at: Instant, result: Result<(), Error> },
    /// The engine computed tokens from text.
    Computed { range: TokenRange, took: Duration },
}
