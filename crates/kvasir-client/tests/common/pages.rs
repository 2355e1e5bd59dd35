//! An engine's page memory, as a test sees it.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use kvasir_client::{BlockTable, PageRef, PageStore};
use kvasir_codec::{KvBuffer, KvSink};
use kvasir_types::{ModelSpec, Plane};

use super::spec;

/// Pages of a model (or of a rank's part of one), each with a generation.
pub(crate) struct Pages {
    pub spec: ModelSpec,
    page_tokens: usize,
    inner: Mutex<Vec<(u64, KvBuffer)>>,
}

impl Pages {
    pub(crate) fn new(spec: ModelSpec, page_tokens: usize, tokens: usize) -> Arc<Self> {
        let page = || (0, KvBuffer::new(&spec, page_tokens));
        let inner = (0..tokens.div_ceil(page_tokens)).map(|_| page()).collect();
        Arc::new(Self { page_tokens, inner: Mutex::new(inner), spec })
    }

    pub(crate) fn toy(tokens: usize) -> Arc<Self> {
        Self::new(spec(), 24, tokens)
    }

    /// All pages, in order, as they are now.
    pub(crate) fn table(self: &Arc<Self>) -> BlockTable {
        let inner = self.inner.lock().unwrap();
        let page = |(index, (generation, _)): (usize, &(u64, KvBuffer))| PageRef {
            index: index as u32,
            generation: *generation,
        };
        let pages: Vec<PageRef> = inner.iter().enumerate().map(page).collect();
        BlockTable::new(Arc::clone(self) as Arc<dyn PageStore>, pages, self.page_tokens).unwrap()
    }

    /// Gives every page to somebody else, who fills it with `value`.
    pub(crate) fn reassign(&self, value: f32) {
        for (generation, page) in self.inner.lock().unwrap().iter_mut() {
            *generation += 1;
            page.as_mut_slice().fill(value);
        }
    }

    /// Whether every value of every page is `value`.
    pub(crate) fn all(&self, value: f32) -> bool {
        self.inner.lock().unwrap().iter().all(|(_, page)| page.as_slice().iter().all(|v| *v == value))
    }

    /// One head's rows of some tokens.
    pub(crate) fn rows(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>) -> Vec<f32> {
        let inner = self.inner.lock().unwrap();
        let mut out = Vec::new();
        for token in tokens {
            let rows = inner[token / self.page_tokens].1.rows(layer, plane, head);
            let dim = rows.len() / self.page_tokens;
            let slot = token % self.page_tokens;
            out.extend_from_slice(&rows[slot * dim..(slot + 1) * dim]);
        }
        out
    }
}

impl PageStore for Pages {
    fn write(
        &self,
        page: PageRef,
        slot: usize,
        layer: usize,
        plane: Plane,
        head: usize,
        rows: &[f32],
    ) -> bool {
        let mut inner = self.inner.lock().unwrap();
        let (generation, buffer) = &mut inner[page.index as usize];
        let ours = *generation == page.generation;
        if ours {
            buffer.write(layer, plane, head, slot, rows);
        }
        ours
    }
}

/// One head's rows of some tokens of a dense buffer.
pub(crate) fn rows_of(
    kv: &KvBuffer,
    layer: usize,
    plane: Plane,
    head: usize,
    tokens: Range<usize>,
) -> Vec<f32> {
    kv.slice(tokens).rows(layer, plane, head).to_vec()
}
