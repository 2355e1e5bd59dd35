//! Rows of other sources than Kvasir, in f32.

use std::sync::Arc;

use kvasir_client::pages::PageRef;
use kvasir_codec::KvSink;
use kvasir_types::Plane;

use super::PagePool;
use crate::error::PagedError;

/// Scatters f32 rows into the pages of a [`PagedKv`](super::PagedKv).
///
/// It may outlive the sequence: rows for pages that were given back meanwhile are dropped and counted,
/// [`finish`](Self::finish) reports them.
#[derive(Debug)]
pub struct PagedSink {
    pool: Arc<PagePool>,
    table: Vec<PageRef>,
    first_token: usize,
    stale_rows: usize,
}

impl PagedSink {
    pub(super) fn new(pool: Arc<PagePool>, table: Vec<PageRef>, first_token: usize) -> Self {
        Self { pool, table, first_token, stale_rows: 0 }
    }

    /// Ends the load.
    ///
    /// # Errors
    /// [`PagedError::Stale`] when rows were dropped because their pages had been reassigned.
    pub fn finish(self) -> Result<(), PagedError> {
        match self.stale_rows {
            0 => Ok(()),
            rows => Err(PagedError::Stale { rows }),
        }
    }
}

impl KvSink for PagedSink {
    /// Writes rows `[token][element]` of one head; `first_token` counts from the sink's first token.
    fn write(&mut self, layer: usize, plane: Plane, head: usize, first_token: usize, rows: &[f32]) {
        let first = self.first_token + first_token;
        self.stale_rows += self.pool.write_head(&self.table, (layer, plane, head), first, rows);
    }
}
