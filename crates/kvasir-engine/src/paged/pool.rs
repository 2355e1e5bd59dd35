//! The pages themselves, with reference counts and generations.

use std::sync::Arc;

use kvasir_client::pages::{BlockTable, PageRef, PageRows, PageStore};
use kvasir_types::{KvDtype, ModelSpec, Plane};
use parking_lot::RwLock;

use super::{device::DeviceMemory, store::PlaneStore};
use crate::{
    error::{ConfigError, PagedError},
    limits::PAGE_TOKENS_MAX,
};

/// Pages of one model, shared by any number of sequences. Memory grows with use, up to `pages_max`.
#[derive(Debug)]
pub struct PagePool {
    page_tokens: usize,
    pages_max: usize,
    /// `[heads, elements]` of every layer's two planes.
    shapes: Vec<[(usize, usize); 2]>,
    kv_dtype: KvDtype,
    /// Holds the values, if the pages lie on a device.
    device: Option<DeviceMemory>,
    inner: RwLock<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Of every layer; none if the pages lie on a device.
    planes: Vec<[PlaneStore; 2]>,
    pages: Vec<PageState>,
    free: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct PageState {
    generation: u64,
    references: u32,
}

impl PagePool {
    /// An empty pool for caches of `spec`.
    ///
    /// # Errors
    /// [`PagedError::PageTokens`] for pages of 0 or more than 1,024 tokens, [`PagedError::Dtype`] for 8-bit
    /// caches.
    pub fn new(spec: &ModelSpec, page_tokens: usize, pages_max: usize) -> Result<Arc<Self>, PagedError> {
        Self::with_memory(spec, page_tokens, pages_max, None)
    }

    /// A pool of the pages `0..pages_max` of a device's `store`, for instance `kvasir-cuda`'s `CudaPages`. Loads are decoded
    /// there, and the engine's own rows are written there. Attention, which the CPU computes, copies the rows of each layer
    /// from there when it comes to that layer.
    ///
    /// The pages hold the whole model, and each has generation 0. `reassign` gives a page its next generation, and returns
    /// when nobody writes it for the one before: dropping a sequence calls `reassign`, and may wait for a decode.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn on_device(
        spec: &ModelSpec,
        page_tokens: usize,
        pages_max: usize,
        store: Arc<dyn PageStore>,
        reassign: impl Fn(u32) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, PagedError> {
        let device = DeviceMemory::new(spec, page_tokens, store, Box::new(reassign))?;
        Self::with_memory(spec, page_tokens, pages_max, Some(device))
    }

    fn with_memory(
        spec: &ModelSpec,
        page_tokens: usize,
        pages_max: usize,
        device: Option<DeviceMemory>,
    ) -> Result<Arc<Self>, PagedError> {
        if !(1..=PAGE_TOKENS_MAX).contains(&page_tokens) {
            return Err(PagedError::PageTokens { page_tokens });
        }
        let plane = || PlaneStore::new(spec.kv_dtype);
        let layers_here = if device.is_some() { 0 } else { spec.layers.len() };
        let planes = (0..layers_here).map(|_| Ok([plane()?, plane()?])).collect::<Result<_, PagedError>>()?;
        Ok(Arc::new(Self {
            page_tokens,
            pages_max,
            shapes: spec.layers.iter().map(|layer| layer.layout.planes()).collect(),
            kv_dtype: spec.kv_dtype,
            device,
            inner: RwLock::new(Inner { planes, pages: Vec::new(), free: Vec::new() }),
        }))
    }

    /// Tokens of a page.
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// Most pages it holds.
    pub fn pages_max(&self) -> usize {
        self.pages_max
    }

    /// Pages that sequences hold now.
    pub fn pages_in_use(&self) -> usize {
        let inner = self.inner.read();
        inner.pages.len() - inner.free.len()
    }

    /// The memory of pages on a device.
    pub(super) const fn device(&self) -> Option<&DeviceMemory> {
        self.device.as_ref()
    }

    /// These pages as a table for loads and saves.
    pub(super) fn table(self: &Arc<Self>, pages: &[PageRef]) -> Result<BlockTable, PagedError> {
        let store = match &self.device {
            Some(device) => Arc::clone(device.store()),
            None => Arc::clone(self) as Arc<dyn PageStore>,
        };
        BlockTable::new(store, pages, self.page_tokens)
            .map_err(|_| PagedError::PageTokens { page_tokens: self.page_tokens })
    }

    /// `(heads, elements per head)` of a layer's plane.
    pub(super) fn shape(&self, layer: usize, plane: Plane) -> (usize, usize) {
        self.shapes[layer][plane as usize]
    }

    /// Checks that its pages have the shapes of `spec`.
    ///
    /// # Errors
    /// [`ConfigError::Shape`].
    pub(crate) fn check_is_of(&self, spec: &ModelSpec) -> Result<(), ConfigError> {
        let is_of = self.shapes.iter().copied().eq(spec.layers.iter().map(|layer| layer.layout.planes()));
        if is_of && self.kv_dtype == spec.kv_dtype {
            Ok(())
        } else {
            Err(ConfigError::Shape("the pool's pages are another model's"))
        }
    }

    /// Number of layers.
    pub(super) fn layers(&self) -> usize {
        self.shapes.len()
    }

    pub(super) fn allocate(&self) -> Result<PageRef, PagedError> {
        let mut inner = self.inner.write();
        let index = match inner.free.pop() {
            Some(index) => index,
            None if inner.pages.len() < self.pages_max => self.grow(&mut inner),
            None => {
                return Err(PagedError::PoolFull {
                    pages_max: self.pages_max,
                    page_tokens: self.page_tokens,
                });
            }
        };
        let state = &mut inner.pages[index as usize];
        state.references = 1;
        Ok(PageRef { index, generation: state.generation })
    }

    fn grow(&self, inner: &mut Inner) -> u32 {
        for (planes, shapes) in inner.planes.iter_mut().zip(&self.shapes) {
            for (store, (heads, elements)) in planes.iter_mut().zip(shapes) {
                store.grow(self.page_tokens * heads * elements);
            }
        }
        inner.pages.push(PageState { generation: 0, references: 0 });
        inner.pages.len() as u32 - 1
    }

    pub(crate) fn share(&self, page: PageRef) {
        self.inner.write().pages[page.index as usize].references += 1;
    }

    /// Releases one reference; the last one ends the page's generation.
    pub(crate) fn release(&self, page: PageRef) {
        let mut inner = self.inner.write();
        let state = &mut inner.pages[page.index as usize];
        debug_assert_eq!(state.generation, page.generation, "a sequence holds a reference until it releases");
        state.references -= 1;
        if state.references > 0 {
            return;
        }
        state.generation += 1;
        if let Some(device) = &self.device {
            // It may wait for a decode: other sequences need the lock meanwhile, and nobody is given the page before.
            drop(inner);
            device.reassign(page.index);
            inner = self.inner.write();
        }
        inner.free.push(page.index);
    }

    /// Copies the first `tokens` slots of a page into another, in every layer and plane. For pages that lie here.
    pub(super) fn copy_page(&self, from: PageRef, to: PageRef, tokens: usize) {
        let mut inner = self.inner.write();
        for (planes, shapes) in inner.planes.iter_mut().zip(&self.shapes) {
            for (store, (heads, elements)) in planes.iter_mut().zip(shapes) {
                let slot = heads * elements;
                let page = self.page_tokens * slot;
                store.copy_within(from.index as usize * page, to.index as usize * page, tokens * slot);
            }
        }
    }

    /// Reads rows of one head for the tokens `first..`, `rows` = `[token][element]`, through a block table. For pages that lie
    /// here.
    pub(super) fn read_head(
        &self,
        table: &[PageRef],
        (layer, plane, head): (usize, Plane, usize),
        first: usize,
        rows: &mut [f32],
    ) {
        let (heads, elements) = self.shape(layer, plane);
        let inner = self.inner.read();
        let store = &inner.planes[layer][plane as usize];
        for (token, row) in (first..).zip(rows.chunks_exact_mut(elements)) {
            let page = table[token / self.page_tokens];
            let slot = page.index as usize * self.page_tokens + token % self.page_tokens;
            store.read((slot * heads + head) * elements, row);
        }
    }

    /// Writes rows of one head. Rows for a page whose generation has changed are dropped and counted. For pages that lie here.
    pub(super) fn write_head(
        &self,
        table: &[PageRef],
        (layer, plane, head): (usize, Plane, usize),
        first: usize,
        rows: &[f32],
    ) -> usize {
        let (heads, elements) = self.shape(layer, plane);
        let mut inner = self.inner.write();
        let Inner { planes, pages, .. } = &mut *inner;
        let store = &mut planes[layer][plane as usize];
        let mut stale = 0;
        for (token, row) in (first..).zip(rows.chunks_exact(elements)) {
            let page = table.get(token / self.page_tokens);
            match page {
                Some(page) if pages[page.index as usize].generation == page.generation => {
                    let slot = page.index as usize * self.page_tokens + token % self.page_tokens;
                    store.write((slot * heads + head) * elements, row);
                }
                _ => stale += 1,
            }
        }
        stale
    }

    /// The bytes of one row of a sequence.
    #[cfg(test)]
    pub(super) fn row_bytes(
        &self,
        table: &[PageRef],
        (layer, plane, head): (usize, Plane, usize),
        token: usize,
    ) -> Vec<u8> {
        let (heads, elements) = self.shape(layer, plane);
        let slot =
            table[token / self.page_tokens].index as usize * self.page_tokens + token % self.page_tokens;
        self.inner.read().planes[layer][plane as usize].bytes((slot * heads + head) * elements, elements)
    }

    /// Writes whole tokens `[token][head][element]` of a sequence that holds its pages.
    ///
    /// # Errors
    /// [`PagedError::Device`].
    pub(super) fn write_tokens(
        &self,
        table: &[PageRef],
        layer: usize,
        plane: Plane,
        first: usize,
        values: &[f32],
    ) -> Result<(), PagedError> {
        if let Some(device) = &self.device {
            return device.write(table, (layer, plane), first, values);
        }
        let (heads, elements) = self.shape(layer, plane);
        let mut inner = self.inner.write();
        let store = &mut inner.planes[layer][plane as usize];
        for (token, row) in (first..).zip(values.chunks_exact(heads * elements)) {
            let page = table[token / self.page_tokens];
            let slot = page.index as usize * self.page_tokens + token % self.page_tokens;
            store.write(slot * heads * elements, row);
        }
        Ok(())
    }
}

impl PageStore for PagePool {
    /// Copies the rows: they are of the cache's type.
    fn write(&self, page: PageRef, rows: &PageRows<'_>) -> bool {
        if let Some(device) = &self.device {
            return device.store().write(page, rows);
        }
        let Some(shape) = self.shapes.get(rows.layer()) else { return false };
        let (heads, elements) = shape[rows.plane() as usize];
        if rows.heads().end > heads || rows.slots().end > self.page_tokens || rows.elements() != elements {
            return false;
        }
        // One lock for the check and the write: the page cannot be reassigned in between.
        let mut inner = self.inner.write();
        let Inner { planes, pages, .. } = &mut *inner;
        let ours = pages.get(page.index as usize).is_some_and(|state| state.generation == page.generation);
        let slot = page.index as usize * self.page_tokens + rows.slots().start;
        let first = (slot * heads + rows.heads().start) * elements;
        ours && planes[rows.layer()][rows.plane() as usize].copy_rows(
            first,
            rows.values(),
            elements,
            heads * elements,
        )
    }
}
