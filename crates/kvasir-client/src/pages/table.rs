//! Block tables: pages in token order, for one rank.

use std::{
    ops::Range,
    sync::{Arc, PoisonError, RwLock},
};

use kvasir_codec::KvSink;
use kvasir_types::{KvLayout, LayerKv, ModelSpec};

use super::{DeviceDecoder, PageRead, PageRef, PageStore, TableSink};
use crate::Error;

/// The part of a cache that one tensor- or pipeline-parallel rank holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Its layers.
    pub layers: Range<usize>,
    /// Its KV heads, the same in every layer. A layer with fewer heads than `heads.start` (MLA's single
    /// latent) is held by every rank.
    pub heads: Range<usize>,
}

impl Shard {
    /// The whole cache: an engine without parallelism.
    pub const ALL: Self = Self { layers: 0..usize::MAX, heads: 0..usize::MAX };

    /// Rank `rank` of `of` tensor-parallel ranks of a model with `kv_heads` heads. If there are more ranks
    /// than heads, neighbouring ranks share one.
    pub fn tensor_parallel(rank: usize, of: usize, kv_heads: usize) -> Self {
        let of = of.max(1);
        let start = rank * kv_heads / of;
        let end = ((rank + 1) * kv_heads / of).max(start + 1);
        Self { heads: start..end, ..Self::ALL }
    }

    /// The spec of a model reduced to the layers and heads of this part: the rank's pages have room for
    /// these.
    pub fn part_of(&self, spec: &ModelSpec) -> ModelSpec {
        let held = |heads: u32| self.heads_of(heads as usize).len() as u32;
        let layout = |layout: KvLayout| match layout {
            KvLayout::Gqa { kv_heads, head_dim } => KvLayout::Gqa { kv_heads: held(kv_heads), head_dim },
            KvLayout::SlidingWindow { kv_heads, head_dim, window } => {
                KvLayout::SlidingWindow { kv_heads: held(kv_heads), head_dim, window }
            }
            KvLayout::Mla { .. } | KvLayout::None => layout,
        };
        let part = spec.layers.iter().enumerate().filter(|(layer, _)| self.layers.contains(layer));
        let layers = part.map(|(_, layer)| LayerKv { layout: layout(layer.layout), ..*layer }).collect();
        ModelSpec { layers, ..spec.clone() }
    }

    /// The heads that it holds of a plane with `count` heads.
    pub fn heads_of(&self, count: usize) -> Range<usize> {
        let Range { start, end } = self.heads;
        if count <= start { 0..count } else { start..end.clamp(start, count) }
    }
}

/// The destination of one rank's KV: pages in token order. Cheap to clone.
#[derive(Clone)]
pub struct BlockTable {
    pub(super) store: Arc<dyn PageStore>,
    pub(super) pages: Arc<[PageRef]>,
    pub(super) page_tokens: usize,
    pub(super) shard: Shard,
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
    /// [`Error::Config`] for pages without tokens.
    pub fn new(
        store: Arc<dyn PageStore>,
        pages: impl Into<Arc<[PageRef]>>,
        page_tokens: usize,
    ) -> Result<Self, Error> {
        if page_tokens == 0 {
            return Err(Error::Config { what: "a page must hold at least one token".into() });
        }
        Ok(Self { store, pages: pages.into(), page_tokens, shard: Shard::ALL })
    }

    /// The same table for one rank: only its layers and heads are decoded and written.
    #[must_use]
    pub fn with_shard(mut self, shard: Shard) -> Self {
        self.shard = shard;
        self
    }

    /// Number of tokens that its pages hold.
    pub fn tokens(&self) -> u64 {
        (self.pages.len() as u64).saturating_mul(self.page_tokens as u64)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn store(&self) -> &dyn PageStore {
        &*self.store
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn pages(&self) -> &[PageRef] {
        &self.pages
    }

    /// The same table over other pages.
    #[cfg(feature = "testing")]
    pub(crate) fn with_pages(mut self, pages: Vec<PageRef>) -> Self {
        self.pages = pages.into();
        self
    }

    pub(crate) const fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    pub(crate) const fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The device that decodes into its pages.
    pub(crate) fn device(&self) -> Option<&dyn DeviceDecoder> {
        self.store.device()
    }

    /// The pages that hold `tokens` of the context, and the slot of the first token in the first page; `None` if there
    /// are not so many.
    pub(crate) fn pages_of(&self, tokens: &Range<usize>) -> Option<(&[PageRef], usize)> {
        let (first, end) = (tokens.start / self.page_tokens, tokens.end.div_ceil(self.page_tokens));
        Some((self.pages.get(first..end)?, tokens.start % self.page_tokens))
    }

    /// Copies a layer's rows of `tokens` of the context into `to`, whose token 0 is the first of them. As
    /// [`PageStore::read_rows`].
    ///
    /// # Errors
    /// As [`PageStore::read_rows`], and for a table that has not so many tokens.
    pub fn read(
        &self,
        spec: &ModelSpec,
        layer: usize,
        tokens: &Range<usize>,
        to: &mut dyn KvSink,
    ) -> Result<bool, String> {
        let rows = PageRead::new(self, spec, layer, tokens).ok_or("the table is shorter than the save")?;
        if rows.is_empty() { Ok(true) } else { self.store.read_rows(&rows, to) }
    }

    /// A sink for rows whose token 0 is the context's token `first_token`.
    pub(crate) fn sink<'a>(
        &'a self,
        spec: &'a ModelSpec,
        first_token: u64,
        gate: &'a WriteGate,
    ) -> TableSink<'a> {
        TableSink::new(self, spec, first_token as usize, gate)
    }
}

/// Open while a load may write. After [`close`](Self::close) returns, nothing is written.
#[derive(Debug, Default)]
pub(crate) struct WriteGate(RwLock<bool>);

impl WriteGate {
    pub(crate) fn close(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    pub(super) fn write(&self, write: impl FnOnce() -> bool) -> bool {
        self.hold_open(write).unwrap_or(false)
    }

    /// Stays open until `write` returns; `None` if it is closed.
    pub(crate) fn hold_open<T>(&self, write: impl FnOnce() -> T) -> Option<T> {
        let closed = self.0.read().unwrap_or_else(PoisonError::into_inner);
        (!*closed).then(write)
    }
}
