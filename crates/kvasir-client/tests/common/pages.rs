//! An engine's page memory, as a test sees it.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use half::f16;
use kvasir_client::pages::{BlockTable, HostPages, PageRef, PageRows, PageStore as _, Rows};
use kvasir_codec::{HeadRows, KvBuffer, KvSource as _};
use kvasir_types::{ModelSpec, Plane};

use super::spec;

/// Pages of a model with an f16 cache (or of a rank's part of one).
pub(crate) struct Pages {
    pub spec: ModelSpec,
    page_tokens: usize,
    pages: Arc<HostPages>,
    count: usize,
    generation: AtomicU64,
}

impl Pages {
    pub(crate) fn new(spec: ModelSpec, page_tokens: usize, tokens: usize) -> Arc<Self> {
        let pages = HostPages::new(&spec, page_tokens, tokens).unwrap();
        let count = tokens.div_ceil(page_tokens);
        Arc::new(Self { page_tokens, pages, count, spec, generation: AtomicU64::new(0) })
    }

    pub(crate) fn toy(tokens: usize) -> Arc<Self> {
        Self::new(spec(), 24, tokens)
    }

    /// All pages, in order, as they are now.
    pub(crate) fn table(&self) -> BlockTable {
        self.pages.table()
    }

    /// Gives every page to somebody else, who fills it with `value`.
    pub(crate) fn reassign(&self, value: f32) {
        self.pages.reassign();
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        for (layer, plane, (heads, elements)) in self.planes() {
            let values = vec![f16::from_f32(value); heads * self.page_tokens * elements];
            let rows = Rows::F16(HeadRows::dense(&values, heads, elements));
            for index in 0..self.count as u32 {
                let page = PageRef { index, generation };
                assert!(self.pages.write(page, &PageRows::new(layer, plane, 0, 0, rows)));
            }
        }
    }

    /// Whether every value of every page is `value`.
    pub(crate) fn all(&self, value: f32) -> bool {
        let tokens = 0..self.count * self.page_tokens;
        self.planes().all(|(layer, plane, (heads, _))| {
            (0..heads)
                .all(|head| self.rows(layer, plane, head, tokens.clone()).iter().all(|found| *found == value))
        })
    }

    fn planes(&self) -> impl Iterator<Item = (usize, Plane, (usize, usize))> {
        let layers = self.spec.layers.iter().enumerate();
        let planes = layers.flat_map(|(layer, kv)| {
            Plane::ALL.into_iter().zip(kv.layout.planes()).map(move |(plane, shape)| (layer, plane, shape))
        });
        planes.filter(|(_, _, (heads, elements))| heads * elements > 0)
    }

    /// One head's rows of some tokens.
    pub(crate) fn rows(&self, layer: usize, plane: Plane, head: usize, tokens: Range<usize>) -> Vec<f32> {
        let (_, elements) = self.spec.layers[layer].layout.planes()[plane as usize];
        let mut out = vec![0.0; tokens.len() * elements];
        self.pages.read(layer, plane, head, tokens, &mut out);
        out
    }
}

/// One head's rows of some tokens of a dense buffer, as f16 pages hold them.
pub(crate) fn rows_of(
    kv: &KvBuffer,
    layer: usize,
    plane: Plane,
    head: usize,
    tokens: Range<usize>,
) -> Vec<f32> {
    kv.slice(tokens).rows(layer, plane, head).iter().map(|x| f16::from_f32(*x).to_f32()).collect()
}
