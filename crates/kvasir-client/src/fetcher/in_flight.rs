//! A request in flight.

use std::time::Duration;

use super::{meter::Transfer, transfer_rate::TransferProgress};

/// A request in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct InFlightRequest {
    pub(super) chunk: usize,
    pub(super) end: u64,
    pub(super) transfer: Transfer,
    pub(super) progress: TransferProgress,
    pub(super) last: Duration,
}

impl InFlightRequest {
    pub(super) fn flowing(&self) -> bool {
        self.transfer.first.is_some()
    }
}
