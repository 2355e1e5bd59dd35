//! A toy model, so that the examples run without one: its "KV cache" is a function of the tokens.
#![allow(dead_code, reason = "each example uses its part")]

use std::{
    error::Error,
    sync::{Arc, Mutex},
};

use kvasir_client::{BlockTable, PageRef, PageStore};
use kvasir_codec::{KvBuffer, KvSink, Profile};
use kvasir_train::{Recipe, TrainingContext, train};
use kvasir_types::{KvDtype, KvLayout, LayerKv, ModelSpec, Pairing, Plane, Reuse, Rope};

/// Eight layers of two heads.
pub(crate) fn spec() -> ModelSpec {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 8 }, rope: Some(0) };
    ModelSpec {
        weights: "examples/toy".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::F16,
        ropes: vec![Rope::plain(Pairing::Half, 8, 10_000.0)],
        layers: vec![layer; 8],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

/// Some text.
pub(crate) fn prompt(tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|i| i.wrapping_mul(2_654_435_761) >> 7 & 31).collect()
}

/// What the model computes.
pub(crate) fn prefill(tokens: &[u32]) -> KvBuffer {
    let mut kv = KvBuffer::new(&spec(), tokens.len());
    for (i, value) in kv.as_mut_slice().iter_mut().enumerate() {
        *value = (tokens[i / 8 % tokens.len()] as f32 * 0.37 + (i % 8) as f32).sin();
    }
    kv
}

/// A profile for it; a real one is trained once, with `kvasir profile train`.
pub(crate) fn profile() -> Result<Arc<Profile>, Box<dyn Error>> {
    let tokens = prompt(1024);
    let context = TrainingContext { kv: prefill(&tokens), tokens };
    Ok(Arc::new(train(&spec(), &[context], &Recipe::Direct, &mut |_, _| ())?))
}

/// An engine's pages of 16 tokens. What counts is in `write`: a page that was reassigned is not written.
pub(crate) struct Pages(Mutex<Vec<(u64, KvBuffer)>>);

impl Pages {
    /// Pages for `tokens` tokens.
    pub(crate) fn new(tokens: usize) -> Arc<Self> {
        let pages = (0..tokens.div_ceil(16)).map(|_| (0, KvBuffer::new(&spec(), 16)));
        Arc::new(Self(Mutex::new(pages.collect())))
    }

    /// All of them as the table of one request.
    pub(crate) fn table(self: &Arc<Self>) -> Result<BlockTable, Box<dyn Error>> {
        let pages = self.0.lock().map_err(|_| "a writer panicked")?;
        let page = |(index, (generation, _)): (usize, &(u64, KvBuffer))| PageRef {
            index: index as u32,
            generation: *generation,
        };
        let refs: Vec<PageRef> = pages.iter().enumerate().map(page).collect();
        Ok(BlockTable::new(Arc::clone(self) as Arc<dyn PageStore>, refs, 16)?)
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
        let Ok(mut pages) = self.0.lock() else { return false };
        match pages.get_mut(page.index as usize) {
            Some((generation, kv)) if *generation == page.generation => {
                kv.write(layer, plane, head, slot, rows);
                true
            }
            _ => false,
        }
    }
}
