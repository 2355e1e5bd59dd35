//! The writing end of a load.

use std::sync::Arc;

use kvasir_types::Plane;

use super::{PagePool, pool::PageRef};
use crate::error::PagedError;

/// Scatters decoded rows into the pages of a [`PagedKv`](super::PagedKv).
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

    /// Writes rows `[token][element]` of one head; `token` counts from the sink's first token.
    pub fn write_head(&mut self, layer: usize, plane: Plane, head: usize, token: usize, rows: &[f32]) {
        let first = self.first_token + token;
        self.stale_rows += self.pool.write_head(&self.table, (layer, plane, head), first, rows);
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
