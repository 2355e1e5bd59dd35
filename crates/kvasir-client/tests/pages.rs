//! The check of page stores: sound ones pass, and each way to be wrong is seen.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use half::{bf16, f16};
use kvasir_client::{
    pages::{
        BlockTable, DeviceDecode, DeviceDecoder, DevicePart, HostPages, PageRead, PageRef, PageRows,
        PageStore, PartOutcome, Rows,
    },
    testing::{TestedPages, check_page_store},
};
use kvasir_codec::{CpuDecoder, HeadRows, KvSink};
use kvasir_types::{KvDtype, KvLayout, LayerKv, Level, ModelSpec, Plane, Reuse};
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
    /// For a save.
    ReadsStalePages,
    ReadsAnotherHead,
    ReadsTheFirstLayerOnly,
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
            Mistake::ReadsStalePages | Mistake::ReadsAnotherHead | Mistake::ReadsTheFirstLayerOnly => {
                self.pages.write(page, rows)
            }
        }
    }

    fn read_rows(&self, rows: &PageRead<'_>, to: &mut dyn KvSink) -> Result<bool, String> {
        struct OneHead<'a>(&'a mut dyn KvSink);
        impl KvSink for OneHead<'_> {
            fn write(&mut self, layer: usize, plane: Plane, _: usize, first_token: usize, rows: &[f32]) {
                self.0.write(layer, plane, 0, first_token, rows);
            }
        }
        match self.mistake {
            Mistake::ReadsStalePages => self.pages.read_rows(rows, to).map(|_| true),
            Mistake::ReadsAnotherHead => self.pages.read_rows(rows, &mut OneHead(to)),
            Mistake::ReadsTheFirstLayerOnly if rows.layer() == 0 => self.pages.read_rows(rows, to),
            _ => Err("it reads nothing".into()),
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
        (Mistake::ReadsStalePages, "a save reads pages of a table from before a reassignment"),
        (Mistake::ReadsAnotherHead, "reads another row of layer 0, K, head 0"),
        (Mistake::ReadsTheFirstLayerOnly, "could read some of the table's rows only: it reads nothing"),
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

#[derive(Debug, Clone, Copy, PartialEq)]
enum DeviceMistake {
    Nothing,
    IgnoresTheLevel,
    IgnoresTheFirstSlot,
    DecodesTheFirstPart,
    TakesStalePages,
    LetsOnePartDecide,
    RefusesEverything,
}

/// Pages in host memory behind a device that decodes as the CPU does, but for a mistake.
struct Decoding {
    spec: Arc<ModelSpec>,
    pages: Arc<HostPages>,
    page_count: u32,
    generation: AtomicU64,
    mistake: DeviceMistake,
}

impl PageStore for Decoding {
    fn write(&self, page: PageRef, rows: &PageRows<'_>) -> bool {
        self.pages.write(page, rows)
    }

    fn device(&self) -> Option<&dyn DeviceDecoder> {
        Some(self)
    }
}

impl DeviceDecoder for Decoding {
    fn decode(&self, parts: &[DevicePart<'_>]) -> Result<DeviceDecode, String> {
        let mut outcomes = vec![PartOutcome::Decoded; parts.len()];
        for (part, outcome) in parts.iter().zip(&mut outcomes) {
            let (mut level, mut first_slot) = (part.level(), part.first_slot());
            match self.mistake {
                DeviceMistake::RefusesEverything => return Err("it is full".into()),
                DeviceMistake::IgnoresTheLevel => level = Level(0),
                DeviceMistake::IgnoresTheFirstSlot => first_slot = 0,
                DeviceMistake::Nothing
                | DeviceMistake::DecodesTheFirstPart
                | DeviceMistake::TakesStalePages
                | DeviceMistake::LetsOnePartDecide => {}
            }
            let decoder = CpuDecoder::new(Arc::clone(&self.spec), Arc::clone(part.profile())).unwrap();
            let scopes: Vec<_> = part.scopes().iter().map(|scope| (*scope, level)).collect();
            let mut rows = DecodedRows { of: self, part, first_slot, is_stale: false };
            let (head, prefix) = (part.head(), part.object_prefix());
            decoder.decode_scopes(head, prefix, &scopes, part.tokens(), &mut rows).unwrap();
            if rows.is_stale && self.mistake != DeviceMistake::TakesStalePages {
                *outcome = PartOutcome::Stale;
            }
            if self.mistake == DeviceMistake::DecodesTheFirstPart {
                break;
            }
        }
        if self.mistake == DeviceMistake::LetsOnePartDecide {
            outcomes = vec![outcomes[0].clone(); parts.len()];
        }
        Ok(DeviceDecode { outcomes, ..DeviceDecode::default() })
    }
}

struct DecodedRows<'a> {
    of: &'a Decoding,
    part: &'a DevicePart<'a>,
    first_slot: usize,
    is_stale: bool,
}

impl KvSink for DecodedRows<'_> {
    fn write(&mut self, layer: usize, plane: Plane, head: usize, first_token: usize, rows: &[f32]) {
        let (_, elements) = self.of.spec.layers[layer].layout.planes()[plane as usize];
        let page_tokens = self.part.page_tokens();
        for (index, row) in rows.chunks(elements).enumerate() {
            let slot = self.first_slot + first_token + index - self.part.tokens().start;
            let row: Vec<bf16> = row.iter().map(|value| bf16::from_f32(*value)).collect();
            let row = Rows::Bf16(HeadRows::dense(&row, 1, elements));
            let row = PageRows::new(layer, plane, head, slot % page_tokens, row);
            self.is_stale |= !self.of.pages.write(self.part.pages()[slot / page_tokens], &row);
        }
    }
}

struct TestedDecoding(Arc<Decoding>);

impl TestedPages for TestedDecoding {
    fn table(&self) -> BlockTable {
        let generation = self.0.generation.load(Ordering::SeqCst);
        let pages: Vec<_> = (0..self.0.page_count).map(|index| PageRef { index, generation }).collect();
        let store: Arc<Decoding> = Arc::clone(&self.0);
        BlockTable::new(store, pages, 4).unwrap()
    }

    fn row(&self, layer: usize, plane: Plane, head: usize, token: usize) -> Vec<u8> {
        self.0.pages.row(layer, plane, head, token)
    }

    fn reassign(&self) {
        self.0.generation.fetch_add(1, Ordering::SeqCst);
        self.0.pages.reassign();
    }
}

#[test]
fn a_device_is_checked_against_the_cpu() {
    let check = |mistake: DeviceMistake| {
        let made = |spec: &ModelSpec, tokens: usize| {
            TestedDecoding(Arc::new(Decoding {
                spec: Arc::new(spec.clone()),
                pages: HostPages::new(spec, 4, tokens).unwrap(),
                page_count: tokens.div_ceil(4) as u32,
                generation: AtomicU64::new(0),
                mistake,
            }))
        };
        check_page_store(&spec(KvDtype::Bf16, &[GQA, GQA]), made)
    };
    assert_eq!(check(DeviceMistake::Nothing), Ok(()));
    for (mistake, sentence) in [
        (DeviceMistake::IgnoresTheLevel, "after tokens 37..290: the device's row of layer"),
        (DeviceMistake::IgnoresTheFirstSlot, "after tokens 0..300: the device's row of layer"),
        (DeviceMistake::DecodesTheFirstPart, "after tokens 0..300: the device's row of layer"),
        (DeviceMistake::TakesStalePages, "a device was asked to decode into pages that were reassigned"),
        (DeviceMistake::LetsOnePartDecide, "only the first has pages that were reassigned: of two parts"),
        (DeviceMistake::RefusesEverything, "the device did not decode a sound chunk: it is full"),
    ] {
        let fault = check(mistake).unwrap_err().to_string();
        assert!(fault.contains(sentence), "{mistake:?}: {fault}");
    }
}

#[test]
fn caches_without_scales_are_refused() {
    let made = |spec: &ModelSpec, tokens| Sound(HostPages::new(spec, 4, tokens).unwrap());
    let fault = check_page_store(&spec(KvDtype::Int8, &[GQA]), made).unwrap_err().to_string();
    assert!(fault.contains("has no scales"), "{fault}");
}
