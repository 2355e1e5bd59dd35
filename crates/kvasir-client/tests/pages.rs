//! The check of page stores: sound ones pass, and each way to be wrong is seen.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use half::{bf16, f16};
use kvasir_client::{
    pages::{BlockTable, HostPages, PageRef, PageRows, PageStore, Rows},
    testing::{TestedPages, check_page_store},
};
use kvasir_codec::HeadRows;
use kvasir_types::{KvDtype, KvLayout, LayerKv, ModelSpec, Plane, Reuse};
use proptest::prelude::*;

fn spec(kv_dtype: KvDtype, layouts: &[KvLayout]) -> ModelSpec {
    ModelSpec {
        weights: "pages".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype,
        ropes: vec![],
        layers: layouts.iter().map(|layout| LayerKv { layout: *layout, rope: None }).collect(),
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

const GQA: KvLayout = KvLayout::Gqa { kv_heads: 4, head_dim: 6 };

struct Sound(Arc<HostPages>);

impl TestedPages for Sound {
    fn table(&self) -> BlockTable {
        self.0.table()
    }

    fn row(&self, layer: usize, plane: Plane, head: usize, token: usize) -> Vec<u8> {
        self.0.row(layer, plane, head, token)
    }

    fn reassign(&self) {
        self.0.reassign();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn host_pages_are_sound(
        page_tokens in 1usize..20,
        dtype in prop::sample::select(vec![KvDtype::Bf16, KvDtype::F16, KvDtype::F32, KvDtype::Fp8E4m3]),
        layouts in prop::collection::vec(prop_oneof![
            (1u32..5, 1u32..9).prop_map(|(kv_heads, head_dim)| KvLayout::Gqa { kv_heads, head_dim }),
            (1u32..9, 1u32..5).prop_map(|(latent, rope_dims)| KvLayout::Mla { latent, rope_dims }),
            Just(KvLayout::SlidingWindow { kv_heads: 2, head_dim: 4, window: 8 }),
            Just(KvLayout::None),
        ], 1..4),
    ) {
        let made = |spec: &ModelSpec, tokens| Sound(HostPages::new(spec, page_tokens, tokens).unwrap());
        let layouts = [&layouts[..], &[GQA]].concat();
        prop_assert_eq!(check_page_store(&spec(dtype, &layouts), made), Ok(()));
    }
}

#[derive(Debug, Clone, Copy)]
enum Mistake {
    /// Rounds on the way.
    Converts,
    IgnoresGeneration,
    SwapsHeads,
    ForgetsTheLastToken,
    /// Answers false, but has written.
    WritesWhatItRefuses,
    /// Another thread may reassign the page between the two.
    ChecksBeforeItWrites,
    TakesTheLastPageForOthers,
}

struct Wrong {
    pages: Arc<HostPages>,
    heads: usize,
    page_count: u32,
    generation: AtomicU64,
    /// Since the last reassignment.
    owners_writes: AtomicU64,
    mistake: Mistake,
}

struct TestedWrong(Arc<Wrong>);

impl PageStore for Wrong {
    fn write(&self, page: PageRef, rows: &PageRows<'_>) -> bool {
        let current = || PageRef { generation: self.generation.load(Ordering::SeqCst), ..page };
        let (layer, plane, heads, slots) = (rows.layer(), rows.plane(), rows.heads(), rows.slots());
        let values = rows.values();
        let at = |head, rows| PageRows::new(layer, plane, head, slots.start, rows);
        match self.mistake {
            Mistake::Converts => {
                let Rows::Bf16(values) = values else { return false };
                let round = |x: &bf16| bf16::from_f32(f16::from_f32(x.to_f32()).to_f32());
                let converted: Vec<_> = (0..heads.len())
                    .flat_map(|head| values.head(head).iter().map(round).collect::<Vec<_>>())
                    .collect();
                let rows = HeadRows::dense(&converted, heads.len(), values.elements());
                self.pages.write(page, &at(heads.start, Rows::Bf16(rows)))
            }
            Mistake::IgnoresGeneration => self.pages.write(current(), rows),
            Mistake::SwapsHeads => heads.clone().all(|head| {
                let row = head - heads.start;
                let rows = values.part(row..row + 1, 0..slots.len());
                self.pages.write(page, &at(self.heads - 1 - head, rows))
            }),
            Mistake::ForgetsTheLastToken => {
                let rows = values.part(0..heads.len(), 0..slots.len() - 1);
                slots.len() == 1 || self.pages.write(page, &at(heads.start, rows))
            }
            Mistake::WritesWhatItRefuses => self.pages.write(current(), rows) && current() == page,
            Mistake::ChecksBeforeItWrites => {
                let ours = current() == page;
                let is_taken = || {
                    std::thread::yield_now();
                    current() != page
                };
                if ours && (0..100).any(|_| is_taken()) {
                    // Put aside at the wrong moment, until the next owner has written.
                    let is_over = || self.owners_writes.load(Ordering::SeqCst) >= u64::from(self.page_count);
                    let _ = (0..100_000).any(|_| is_taken() && is_over());
                }
                let is_owner = current() == page;
                let written = ours && self.pages.write(current(), rows);
                self.owners_writes.fetch_add(u64::from(is_owner), Ordering::SeqCst);
                written
            }
            Mistake::TakesTheLastPageForOthers => {
                self.pages.write(PageRef { index: page.index.min(self.page_count - 1), ..page }, rows)
            }
        }
    }
}

impl TestedPages for TestedWrong {
    fn table(&self) -> BlockTable {
        let generation = self.0.generation.load(Ordering::SeqCst);
        let pages: Vec<_> = (0..self.0.page_count).map(|index| PageRef { index, generation }).collect();
        let store: Arc<Wrong> = Arc::clone(&self.0);
        BlockTable::new(store, pages, 4).unwrap()
    }

    fn row(&self, layer: usize, plane: Plane, head: usize, token: usize) -> Vec<u8> {
        self.0.pages.row(layer, plane, head, token)
    }

    fn reassign(&self) {
        self.0.owners_writes.store(0, Ordering::SeqCst);
        self.0.generation.fetch_add(1, Ordering::SeqCst);
        self.0.pages.reassign();
    }
}

#[test]
fn every_mistake_is_seen() {
    let seen = [
        (
            Mistake::Converts,
            "after a write of layer 0, K, heads 0..4, tokens 0..15: the row of layer 0, K, head 0",
        ),
        (Mistake::IgnoresGeneration, "a table from before a reassignment still writes"),
        (Mistake::SwapsHeads, "which is the row of layer 0, K, head 3, token 0"),
        (Mistake::ForgetsTheLastToken, "the row of layer 0, K, head 0, token 3 reads 0000"),
        (Mistake::WritesWhatItRefuses, "after a table from before a reassignment was refused: the row of"),
        (Mistake::ChecksBeforeItWrites, "a thread with a table from before a reassignment wrote over"),
        (Mistake::TakesTheLastPageForOthers, "a page that does not exist was written"),
    ];
    for (mistake, sentence) in seen {
        let made = |spec: &ModelSpec, tokens: usize| {
            TestedWrong(Arc::new(Wrong {
                pages: HostPages::new(spec, 4, tokens).unwrap(),
                heads: spec.layers[0].layout.planes()[0].0,
                page_count: tokens.div_ceil(4) as u32,
                generation: AtomicU64::new(0),
                owners_writes: AtomicU64::new(0),
                mistake,
            }))
        };
        let fault = check_page_store(&spec(KvDtype::Bf16, &[GQA, GQA]), made).unwrap_err().to_string();
        assert!(fault.contains(sentence), "{mistake:?}: {fault}");
    }
}

#[test]
fn caches_without_scales_are_refused() {
    let made = |spec: &ModelSpec, tokens| Sound(HostPages::new(spec, 4, tokens).unwrap());
    let fault = check_page_store(&spec(KvDtype::Int8, &[GQA]), made).unwrap_err().to_string();
    assert!(fault.contains("has no scales"), "{fault}");
}
