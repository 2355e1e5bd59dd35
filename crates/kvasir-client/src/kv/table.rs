//! Where a load writes: an engine's pages, with the generation that each had when the load began.

use std::{
    ops::Range,
    sync::{Arc, PoisonError, RwLock},
};

use kvasir_codec::KvSink;
use kvasir_types::{ModelSpec, Plane};

use crate::ClientError;

/// A page of an engine's KV memory, as a block table names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// Which page.
    pub index: u32,
    /// How often it had been reassigned when the table was made.
    pub generation: u64,
}

/// An engine's page memory, of one device.
pub trait PageStore: Send + Sync {
    /// Writes `rows` (`[token][element]` of one head, f32) into the slots from `slot` on of one page.
    ///
    /// Where the page has another generation by now, nothing is written and the answer is false. Checking and
    /// writing must be one step against reassignment. `layer` and `head` are the device's own: a rank that holds
    /// heads 4..8 is given heads 0..4.
    fn write(
        &self,
        page: PageRef,
        slot: usize,
        layer: usize,
        plane: Plane,
        head: usize,
        rows: &[f32],
    ) -> bool;
}

/// The part of a cache that one tensor- or pipeline-parallel rank holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Its layers.
    pub layers: Range<usize>,
    /// Its KV heads, the same in every layer. A layer with fewer heads than `heads.start` (MLA's one latent) is held
    /// by every rank.
    pub heads: Range<usize>,
}

impl Shard {
    /// Everything: an engine without parallelism.
    pub const ALL: Self = Self { layers: 0..usize::MAX, heads: 0..usize::MAX };

    /// Rank `rank` of `of` tensor-parallel ranks of a model with `kv_heads` heads. Where there are more ranks than
    /// heads, neighbours share one.
    pub fn tensor_parallel(rank: usize, of: usize, kv_heads: usize) -> Self {
        let of = of.max(1);
        let start = rank * kv_heads / of;
        let end = ((rank + 1) * kv_heads / of).max(start + 1);
        Self { heads: start..end, ..Self::ALL }
    }
}

/// Where the KV of one rank goes: pages in token order. Cheap to clone.
#[derive(Clone)]
pub struct BlockTable {
    store: Arc<dyn PageStore>,
    pages: Arc<[PageRef]>,
    page_tokens: usize,
    shard: Shard,
}

impl std::fmt::Debug for BlockTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockTable")
            .field("pages", &self.pages.len())
            .field("page_tokens", &self.page_tokens)
            .field("shard", &self.shard)
            .finish_non_exhaustive()
    }
}

impl BlockTable {
    /// A table whose page `i` holds tokens `i × page_tokens ..` of the context.
    ///
    /// # Errors
    /// [`ClientError::Config`] for pages of no tokens.
    pub fn new(
        store: Arc<dyn PageStore>,
        pages: impl Into<Arc<[PageRef]>>,
        page_tokens: usize,
    ) -> Result<Self, ClientError> {
        if page_tokens == 0 {
            return Err(ClientError::Config { what: "a page holds at least one token".into() });
        }
        Ok(Self { store, pages: pages.into(), page_tokens, shard: Shard::ALL })
    }

    /// The same table for one rank: only its layers and heads are decoded and written.
    #[must_use]
    pub fn with_shard(mut self, shard: Shard) -> Self {
        self.shard = shard;
        self
    }

    /// Tokens that it has pages for.
    pub fn tokens(&self) -> u64 {
        (self.pages.len() * self.page_tokens) as u64
    }

    pub(super) const fn shard(&self) -> &Shard {
        &self.shard
    }

    /// A sink for rows whose token 0 is the context's token `first_token`.
    pub(super) fn sink<'a>(
        &'a self,
        spec: &'a ModelSpec,
        first_token: u64,
        gate: &'a WriteGate,
    ) -> TableSink<'a> {
        TableSink { table: self, spec, first_token: first_token as usize, gate, stale_rows: 0 }
    }
}

/// Open while a load may write. Once [`close`](Self::close) has returned, nothing is written any more.
#[derive(Debug, Default)]
pub(super) struct WriteGate(RwLock<bool>);

impl WriteGate {
    pub(super) fn close(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn write(&self, write: impl FnOnce() -> bool) -> bool {
        let closed = self.0.read().unwrap_or_else(PoisonError::into_inner);
        !*closed && write()
    }
}

/// Scatters decoded rows over the pages of a table.
pub(super) struct TableSink<'a> {
    table: &'a BlockTable,
    spec: &'a ModelSpec,
    first_token: usize,
    gate: &'a WriteGate,
    /// Rows that were not written because their page is another's by now, or the load is over.
    pub(super) stale_rows: usize,
}

impl KvSink for TableSink<'_> {
    fn write(&mut self, layer: usize, plane: Plane, head: usize, first_token: usize, rows: &[f32]) {
        let Shard { layers, heads } = &self.table.shard;
        let Some((count, elements)) = self.spec.layers.get(layer).map(|l| l.layout.planes()[plane as usize])
        else {
            return;
        };
        let held = if count <= heads.start { 0..count } else { heads.clone() };
        if !layers.contains(&layer) || !held.contains(&head) || elements == 0 {
            return;
        }
        let (layer, head) = (layer - layers.start, head - held.start);
        let mut token = self.first_token + first_token;
        let mut rest = rows;
        while !rest.is_empty() {
            let slot = token % self.table.page_tokens;
            let count = (self.table.page_tokens - slot).min(rest.len() / elements);
            let (now, later) = rest.split_at(count * elements);
            let page = self.table.pages.get(token / self.table.page_tokens);
            let written = page.is_some_and(|&page| {
                self.gate.write(|| self.table.store.write(page, slot, layer, plane, head, now))
            });
            self.stale_rows += if written { 0 } else { count };
            (token, rest) = (token + count, later);
        }
    }
}
