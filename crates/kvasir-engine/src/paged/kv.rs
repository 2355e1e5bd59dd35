//! One sequence's cache.

use std::{ops::Range, sync::Arc};

use kvasir_client::pages::{BlockTable, PageRef};
use kvasir_codec::KvSource;
use kvasir_types::{Loss, Plane};

use super::{PagePool, PagedSink};
use crate::error::PagedError;

/// A sequence's KV cache: a block table over pages of a [`PagePool`]. Dropping it releases the pages.
#[derive(Debug)]
pub struct PagedKv {
    pool: Arc<PagePool>,
    table: Vec<PageRef>,
    len: usize,
    /// The largest loss of any part.
    loss: Loss,
}

impl PagedKv {
    /// An empty cache.
    pub fn new(pool: Arc<PagePool>) -> Self {
        Self { pool, table: Vec::new(), len: 0, loss: Loss::NONE }
    }

    /// A sequence of whole pages that others hold too; `loss` is that of the coarsest page.
    pub(crate) fn sharing(pool: &Arc<PagePool>, pages: &[PageRef], loss: Loss) -> Self {
        pages.iter().for_each(|page| pool.share(*page));
        let len = pages.len() * pool.page_tokens();
        Self { pool: Arc::clone(pool), table: pages.to_vec(), len, loss }
    }

    /// The pages, in order of their tokens.
    pub(crate) fn pages(&self) -> &[PageRef] {
        &self.table
    }

    /// Number of tokens whose KV is present.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The largest loss of any part. Everything computed over this cache has at least this loss beneath it.
    pub fn loss(&self) -> Loss {
        self.loss
    }

    /// Sets the loss.
    pub fn set_loss(&mut self, loss: Loss) {
        self.loss = loss;
    }

    /// The pool that its pages come from.
    pub fn pool(&self) -> &Arc<PagePool> {
        &self.pool
    }

    /// Makes room for `tokens` tokens in all, without changing [`len`](Self::len).
    ///
    /// # Errors
    /// [`PagedError::PoolFull`]; what was allocated so far stays with the sequence.
    pub fn reserve(&mut self, tokens: usize) -> Result<(), PagedError> {
        while self.table.len() * self.pool.page_tokens() < tokens {
            self.table.push(self.pool.allocate()?);
        }
        Ok(())
    }

    /// A sink for a load of the tokens from `first_token` on, into the pages reserved so far. It holds no
    /// borrow, so the load may run elsewhere; when it is done, [`commit`](Self::commit) makes the tokens count.
    ///
    /// # Errors
    /// [`PagedError::OutOfRange`] when `first_token` lies before [`len`](Self::len) (attention may be
    /// reading those pages, forks may share them) or past the reserved pages; [`PagedError::Device`] for pages on a device.
    pub fn sink(&self, first_token: usize) -> Result<PagedSink, PagedError> {
        if self.pool.device().is_some() {
            return Err(PagedError::Device { reason: "they take loads by tables alone".to_owned() });
        }
        if first_token < self.len || first_token > self.table.len() * self.pool.page_tokens() {
            return Err(PagedError::OutOfRange { token: first_token, len: self.len });
        }
        Ok(PagedSink::new(Arc::clone(&self.pool), self.table.clone(), first_token))
    }

    /// The reserved pages as a table for [`Session::load`](kvasir_client::Session::load), each with its
    /// generation. A load that outlives this sequence cannot write into pages that have been reused.
    ///
    /// # Errors
    /// [`PagedError::OutOfRange`] when the sequence holds tokens already: attention may be reading those pages, forks
    /// may share them.
    pub fn load_table(&self) -> Result<BlockTable, PagedError> {
        if self.len > 0 {
            return Err(PagedError::OutOfRange { token: 0, len: self.len });
        }
        self.pool.table(&self.table)
    }

    /// The pages as a table for [`Session::save_pages`](kvasir_client::Session::save_pages), if they lie on a device.
    pub(crate) fn device_table(&self) -> Option<BlockTable> {
        self.pool.device()?;
        self.pool.table(&self.table).ok()
    }

    /// Declares the first `tokens` tokens present, after a load wrote them.
    ///
    /// # Errors
    /// [`PagedError::OutOfRange`] past the reserved pages.
    pub fn commit(&mut self, tokens: usize) -> Result<(), PagedError> {
        let reserved = self.table.len() * self.pool.page_tokens();
        if tokens > reserved {
            return Err(PagedError::OutOfRange { token: tokens, len: reserved });
        }
        self.len = self.len.max(tokens);
        Ok(())
    }

    /// Forgets all tokens from `tokens` on but keeps the pages and their contents. This undoes a prefill that
    /// ran ahead of a load.
    pub(crate) fn rewind(&mut self, tokens: usize) {
        self.len = self.len.min(tokens);
    }

    /// Forgets all tokens from `tokens` on and releases their pages.
    pub fn truncate(&mut self, tokens: usize) {
        self.len = self.len.min(tokens);
        for page in self.table.drain(self.len.div_ceil(self.pool.page_tokens())..) {
            self.pool.release(page);
        }
    }

    /// A second sequence with the same first `tokens` tokens. Full pages are shared, the tail is copied.
    ///
    /// # Errors
    /// [`PagedError::OutOfRange`] past the end, [`PagedError::PoolFull`], [`PagedError::Device`] inside a page on a device.
    pub fn fork(&self, tokens: usize) -> Result<Self, PagedError> {
        if tokens > self.len {
            return Err(PagedError::OutOfRange { token: tokens, len: self.len });
        }
        let page_tokens = self.pool.page_tokens();
        if !tokens.is_multiple_of(page_tokens) && self.pool.device().is_some() {
            return Err(PagedError::Device { reason: "it copies no pages: fork at a page's end".to_owned() });
        }
        let mut fork = Self::new(Arc::clone(&self.pool));
        for page in &self.table[..tokens / page_tokens] {
            self.pool.share(*page);
            fork.table.push(*page);
        }
        if !tokens.is_multiple_of(page_tokens) {
            let tail = self.pool.allocate()?;
            fork.table.push(tail);
            self.pool.copy_page(self.table[tokens / page_tokens], tail, tokens % page_tokens);
        }
        (fork.len, fork.loss) = (tokens, self.loss);
        Ok(fork)
    }

    /// Rows `[token][element]` of one head, converted to f32.
    ///
    /// # Panics
    /// When the range is past [`len`](Self::len), `out` has another length, or the pages lie on a device (saves out of those
    /// take tables): programmer errors.
    pub fn read_head(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>, out: &mut [f32]) {
        let (_, elements) = self.pool.shape(layer, plane);
        assert!(tokens.end <= self.len, "tokens {tokens:?} of a cache of {}", self.len);
        assert_eq!(out.len(), tokens.len() * elements, "one row per token");
        assert!(self.pool.device().is_none(), "pages on a device are read by tables");
        self.pool.read_head(&self.table, (layer, plane, head), tokens.start, out);
    }

    /// Appends one layer's K and V of new tokens, `[token][head][element]`, at position `first`. The tokens
    /// count once every layer was written and [`commit`](Self::commit) was called.
    ///
    /// # Errors
    /// [`PagedError::Device`].
    pub(crate) fn write_layer(
        &mut self,
        layer: usize,
        first: usize,
        k: &[f32],
        v: &[f32],
    ) -> Result<(), PagedError> {
        self.pool.write_tokens(&self.table, layer, Plane::K, first, k)?;
        self.pool.write_tokens(&self.table, layer, Plane::V, first, v)
    }

    /// All heads of both planes for tokens `0..tokens` (written, possibly not yet committed),
    /// `[head][token][element]` each.
    ///
    /// # Errors
    /// [`PagedError::Device`].
    pub(crate) fn gather(&self, layer: usize, tokens: usize) -> Result<[Vec<f32>; 2], PagedError> {
        if let Some(device) = self.pool.device() {
            return device.read(&self.pool.table(&self.table)?, layer, tokens);
        }
        Ok(Plane::ALL.map(|plane| {
            let (heads, elements) = self.pool.shape(layer, plane);
            let mut out = vec![0.0; heads * tokens * elements];
            for (head, rows) in out.chunks_exact_mut((tokens * elements).max(1)).enumerate() {
                self.pool.read_head(&self.table, (layer, plane, head), 0, rows);
            }
            out
        }))
    }

    /// BLAKE3 over every value as little-endian f32, by layer, plane, head, token. Equal caches have equal
    /// digests, whichever pages hold them.
    ///
    /// # Errors
    /// [`PagedError::Device`].
    pub fn digest(&self) -> Result<blake3::Hash, PagedError> {
        let mut hasher = blake3::Hasher::new();
        for layer in 0..self.layers() {
            for values in self.gather(layer, self.len)? {
                hasher.update(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
            }
        }
        Ok(hasher.finalize())
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.pool.layers()
    }
}

impl Drop for PagedKv {
    fn drop(&mut self) {
        self.truncate(0);
    }
}

impl KvSource for PagedKv {
    fn read(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>, out: &mut [f32]) {
        self.read_head(layer, plane, head, tokens, out);
    }
}
