use std::sync::Arc;

use kvasir_client::{
    pages::{BlockTable, HostPages},
    testing::{TestedPages, check_page_store},
};
use kvasir_codec::KvSink;
use kvasir_types::{KvDtype, KvLayout, LayerKv, ModelSpec, Plane, Reuse};
use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::error::PagedError;

const SHAPE: (u32, u32) = (2, 3);

fn spec(dtype: KvDtype) -> ModelSpec {
    let layout = KvLayout::Gqa { kv_heads: SHAPE.0, head_dim: SHAPE.1 };
    ModelSpec {
        weights: "paged".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: dtype,
        ropes: vec![],
        layers: vec![LayerKv { layout, rope: None }; 2],
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

/// Writes tokens `first..end` through a sink, head by head; element = a number that names its place.
fn load(kv: &mut PagedKv, first: usize, end: usize, salt: f32) {
    kv.reserve(end).unwrap();
    let mut sink = kv.sink(first).unwrap();
    write(&mut sink, first, end, salt);
    sink.finish().unwrap();
    kv.commit(end).unwrap();
}

fn write(sink: &mut PagedSink, first: usize, end: usize, salt: f32) {
    for (layer, plane, head) in places() {
        let rows: Vec<f32> = (first..end).flat_map(|t| row(layer, plane, head, t, salt)).collect();
        sink.write(layer, plane, head, 0, &rows);
    }
}

fn places() -> impl Iterator<Item = (usize, Plane, usize)> {
    (0..2).flat_map(|l| Plane::ALL.into_iter().flat_map(move |p| (0..2).map(move |h| (l, p, h))))
}

fn row(layer: usize, plane: Plane, head: usize, token: usize, salt: f32) -> [f32; 3] {
    let base = salt + (layer * 4 + plane as usize * 2 + head) as f32 * 64.0 + token as f32 * 0.25;
    [base, -base, base / 8.0]
}

fn holds(kv: &PagedKv, tokens: std::ops::Range<usize>, salt: f32) -> bool {
    places().all(|(layer, plane, head)| {
        let mut out = vec![0.0; tokens.len() * 3];
        kv.read_head(layer, plane, head, tokens.clone(), &mut out);
        out.chunks(3).zip(tokens.clone()).all(|(got, t)| got == row(layer, plane, head, t, salt))
    })
}

proptest! {
    #[test]
    fn what_a_sink_scatters_is_read_back(page in 1usize..20, cuts in prop::collection::vec(1usize..30, 1..5)) {
        let pool = PagePool::new(&spec(KvDtype::F32), page, 200).unwrap();
        let other = { let mut kv = PagedKv::new(pool.clone()); load(&mut kv, 0, 7, 5000.0); kv };
        let mut kv = PagedKv::new(pool.clone());
        let mut end = 0;
        for cut in cuts {
            load(&mut kv, end, end + cut, 0.0);
            end += cut;
        }
        prop_assert!(holds(&kv, 0..end, 0.0));
        prop_assert!(holds(&kv, end / 2..end, 0.0));
        prop_assert!(holds(&other, 0..7, 5000.0), "sequences do not touch each other");
        drop((kv, other));
        prop_assert_eq!(pool.pages_in_use(), 0);
    }

    #[test]
    fn forks_share_and_part(page in 1usize..9, len in 1usize..40, at in 0usize..40) {
        let at = at.min(len);
        let pool = PagePool::new(&spec(KvDtype::F32), page, 200).unwrap();
        let mut kv = PagedKv::new(pool.clone());
        load(&mut kv, 0, len, 0.0);
        let mut fork = kv.fork(at).unwrap();
        prop_assert_eq!(pool.pages_in_use(), len.div_ceil(page) + usize::from(!at.is_multiple_of(page)));
        load(&mut fork, at, at + 10, 100.0);
        prop_assert!(holds(&kv, 0..len, 0.0) && holds(&fork, 0..at, 0.0) && holds(&fork, at..at + 10, 100.0));
        drop(kv);
        prop_assert!(holds(&fork, 0..at, 0.0), "shared pages live as long as one sequence holds them");
        fork.truncate(0);
        prop_assert_eq!(pool.pages_in_use(), 0);
    }
}

#[test]
fn a_cancelled_load_cannot_write_into_reassigned_pages() {
    let pool = PagePool::new(&spec(KvDtype::F32), 4, 2).unwrap();
    let mut cancelled = PagedKv::new(pool.clone());
    cancelled.reserve(8).unwrap();
    let mut sink = cancelled.sink(0).unwrap();
    drop(cancelled);
    let mut kv = PagedKv::new(pool);
    load(&mut kv, 0, 8, 0.0);
    write(&mut sink, 0, 8, 900.0);
    assert_eq!(sink.finish(), Err(PagedError::Stale { rows: 8 * 8 }));
    assert!(holds(&kv, 0..8, 0.0));
}

/// The memory of a device, here pages of the host that somebody else has.
#[test]
fn pages_on_a_device_hold_what_pages_here_do() {
    let (spec, given_back) = (spec(KvDtype::F16), Arc::new(Mutex::new(Vec::new())));
    let memory = HostPages::new(&spec, 4, 40).unwrap();
    let noted = Arc::clone(&given_back);
    let reassign = move |page| noted.lock().push(page);
    let pool = PagePool::on_device(&spec, 4, 10, Arc::clone(&memory) as _, reassign).unwrap();
    let (mut there, mut here) =
        (PagedKv::new(pool.clone()), PagedKv::new(PagePool::new(&spec, 4, 10).unwrap()));
    // Values that are rounded, over the ends of pages.
    let values = |layer: usize, tokens: std::ops::Range<usize>| {
        Plane::ALL.map(|plane| {
            let rows = tokens.clone().flat_map(|t| [0, 1].map(|head| row(layer, plane, head, t, 0.1)));
            rows.flatten().collect::<Vec<f32>>()
        })
    };
    for kv in [&mut there, &mut here] {
        kv.reserve(11).unwrap();
        for (layer, tokens) in [(0, 0..6), (0, 6..11), (1, 0..6), (1, 6..11)] {
            let (first, [k, v]) = (tokens.start, values(layer, tokens));
            kv.write_layer(layer, first, &k, &v).unwrap();
        }
        kv.commit(11).unwrap();
    }
    assert_eq!(there.digest().unwrap(), here.digest().unwrap());
    assert_eq!(there.fork(8).unwrap().digest().unwrap(), here.fork(8).unwrap().digest().unwrap());
    assert!(matches!(there.fork(10), Err(PagedError::Device { .. })), "it would copy a part of a page");
    assert!(given_back.lock().is_empty(), "the fork shared its pages");

    memory.reassign();
    let [k, v] = values(0, 6..11);
    let refused = [there.digest().err(), there.write_layer(0, 6, &k, &v).err(), there.sink(11).err()];
    assert!(refused.iter().all(|error| matches!(error, Some(PagedError::Device { .. }))), "{refused:?}");
    drop(there);
    assert_eq!((&given_back.lock()[..], pool.pages_in_use()), (&[0, 1, 2][..], 0));
}

#[test]
fn limits_are_typed_errors() {
    let pool = PagePool::new(&spec(KvDtype::Bf16), 4, 2).unwrap();
    let mut kv = PagedKv::new(pool.clone());
    assert_eq!(kv.reserve(9), Err(PagedError::PoolFull { pages_max: 2, page_tokens: 4 }));
    assert_eq!(kv.commit(9), Err(PagedError::OutOfRange { token: 9, len: 8 }));
    kv.commit(5).unwrap();
    assert!(kv.sink(4).is_err(), "those pages may be shared or read");
    assert!(kv.fork(6).is_err());
    assert_eq!(pool.pages_in_use(), pool.pages_max());
    assert!(PagePool::new(&spec(KvDtype::Bf16), 0, 2).is_err());
    assert!(PagePool::new(&spec(KvDtype::Int8), 4, 2).is_err());
    let mut late = kv.sink(5).unwrap();
    late.write(0, Plane::K, 0, 3, &[1.0; 3]);
    assert_eq!(late.finish(), Err(PagedError::Stale { rows: 1 }), "past the reserved pages");
}

/// A sequence of a pool that has pages for just one.
struct OnlySequence(Mutex<PagedKv>, usize);

impl TestedPages for OnlySequence {
    fn table(&self) -> BlockTable {
        self.0.lock().load_table().unwrap()
    }

    fn row(&self, layer: usize, plane: Plane, head: usize, token: usize) -> Vec<u8> {
        let kv = self.0.lock();
        kv.pool().row_bytes(kv.pages(), (layer, plane, head), token)
    }

    fn reassign(&self) {
        let mut kv = self.0.lock();
        kv.truncate(0);
        kv.reserve(self.1).unwrap();
    }
}

#[test]
fn a_pool_is_a_page_store() {
    for dtype in [KvDtype::Bf16, KvDtype::F16, KvDtype::F32] {
        let made = |spec: &ModelSpec, tokens: usize| {
            let pool = PagePool::new(spec, 5, tokens.div_ceil(5)).unwrap();
            let mut kv = PagedKv::new(pool);
            kv.reserve(tokens).unwrap();
            OnlySequence(Mutex::new(kv), tokens)
        };
        check_page_store(&spec(dtype), made).unwrap();
    }
}
