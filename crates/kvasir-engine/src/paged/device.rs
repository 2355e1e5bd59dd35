//! Pages on a device. Attention is the CPU's arithmetic, so rows are copied from there and back.

use std::{fmt, sync::Arc};

use kvasir_client::pages::{BlockTable, PageRef, PageRows, PageStore};
use kvasir_codec::KvSink;
use kvasir_types::{ModelSpec, Plane};

use super::store::PlaneStore;
use crate::error::PagedError;

/// The memory of a pool whose pages lie on a device.
pub(super) struct DeviceMemory {
    spec: ModelSpec,
    page_tokens: usize,
    /// Empty: has the type to which values are rounded.
    rounding: PlaneStore,
    store: Arc<dyn PageStore>,
    reassign: Box<dyn Fn(u32) + Send + Sync>,
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory").field("page_tokens", &self.page_tokens).finish_non_exhaustive()
    }
}

impl DeviceMemory {
    pub(super) fn new(
        spec: &ModelSpec,
        page_tokens: usize,
        store: Arc<dyn PageStore>,
        reassign: Box<dyn Fn(u32) + Send + Sync>,
    ) -> Result<Self, PagedError> {
        let rounding = PlaneStore::new(spec.kv_dtype)?;
        Ok(Self { spec: spec.clone(), page_tokens, rounding, store, reassign })
    }

    pub(super) fn store(&self) -> &Arc<dyn PageStore> {
        &self.store
    }

    /// Ends a page's generation, and waits for those who write it now.
    pub(super) fn reassign(&self, page: u32) {
        (self.reassign)(page);
    }

    /// Both planes of a layer, `[head][token][element]` each, of the first `tokens` tokens of a table over the device's pages.
    pub(super) fn read(
        &self,
        table: &BlockTable,
        layer: usize,
        tokens: usize,
    ) -> Result<[Vec<f32>; 2], PagedError> {
        let planes = self.spec.layers[layer].layout.planes();
        let mut rows = LayerRows {
            tokens,
            elements: planes.map(|(_, elements)| elements),
            values: planes.map(|(heads, elements)| vec![0.0; heads * tokens * elements]),
        };
        match table.read(&self.spec, layer, &(0..tokens), &mut rows) {
            Ok(true) => Ok(rows.values),
            Ok(false) => Err(PagedError::Device { reason: "a page is another sequence's".to_owned() }),
            Err(reason) => Err(PagedError::Device { reason }),
        }
    }

    /// Writes tokens `first..` of a plane, `[token][head][element]`.
    ///
    /// # Errors
    /// [`PagedError::Device`] if it does not take them all.
    pub(super) fn write(
        &self,
        pages: &[PageRef],
        (layer, plane): (usize, Plane),
        first: usize,
        values: &[f32],
    ) -> Result<(), PagedError> {
        let (heads, elements) = self.spec.layers[layer].layout.planes()[plane as usize];
        let of_token = heads * elements;
        let tokens = values.len().checked_div(of_token).unwrap_or(0);
        let mut done = 0;
        while done < tokens {
            let (page, slot) = ((first + done) / self.page_tokens, (first + done) % self.page_tokens);
            let now = (self.page_tokens - slot).min(tokens - done);
            let rounded = self.rounding.rounded(&values[done * of_token..(done + now) * of_token]);
            let rows = rounded.rows([heads, now, elements]);
            let is_taken = pages.get(page).zip(rows).is_some_and(|(page, rows)| {
                self.store.write(*page, &PageRows::new(layer, plane, 0, slot, rows))
            });
            if !is_taken {
                return Err(PagedError::Device { reason: "it did not take all rows".to_owned() });
            }
            done += now;
        }
        Ok(())
    }
}

/// Rows of one layer, `[head][token][element]` for each plane.
struct LayerRows {
    tokens: usize,
    elements: [usize; 2],
    values: [Vec<f32>; 2],
}

impl KvSink for LayerRows {
    fn write(&mut self, _: usize, plane: Plane, head: usize, first_token: usize, rows: &[f32]) {
        let start = (head * self.tokens + first_token) * self.elements[plane as usize];
        self.values[plane as usize][start..start + rows.len()].copy_from_slice(rows);
    }
}
