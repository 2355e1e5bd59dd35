//! The walk against an exhaustive search over the same rows.

use kvasir_types::{ModelId, TokenChain};
use proptest::prelude::*;

use super::*;
use crate::index::MemoryIndex;

const ROOT: [u8; 32] = [9; 32];

fn scope() -> Scope {
    Scope::new(&"t".parse().expect("a name"), &ModelId::from([1; 32]))
}

/// A chunk of the context `tokens[..end]`, from `start` on.
fn row(tokens: &[u32], start: usize, end: usize, object: u8) -> IndexRow {
    let chain = TokenChain::new(ROOT.into(), &tokens[..end]);
    let blocks = &chain.blocks()[start / BLOCK_TOKENS..];
    IndexRow {
        parent_hash: chain.prefix_hash(start).expect("starts at a block"),
        blocks: IndexRow::short_blocks(blocks.iter().map(|b| &b.as_bytes()[..])),
        seq_hash: blocks[blocks.len() - 1],
        object_digest: [object; 32].into(),
        profile_hash: [0; 32].into(),
        first_position: start as u64,
        token_count: (end - start) as u32,
        kl_beneath: 0.0,
        head_bytes: 1,
        object_bytes: 2,
        level_bytes: vec![2],
    }
}

fn insert(index: &MemoryIndex, row: &IndexRow) {
    let key = row.key(scope());
    index.put(&key, &row.value(&key)).expect("memory");
}

/// Longest match by trying everything.
fn exhaustive(rows: &[IndexRow], parent: &[u8; 32], blocks: &[SeqHash]) -> usize {
    let mut best = 0;
    for row in rows.iter().filter(|r| r.parent_hash == *parent) {
        let common = row.blocks.iter().zip(blocks).take_while(|(a, b)| **a == short(b.as_bytes())).count();
        let whole = common == row.blocks.len();
        let after = if whole { exhaustive(rows, row.seq_hash.as_bytes(), &blocks[common..]) } else { 0 };
        best = best.max(common + after);
    }
    best
}

/// Token sequences that share much: a few symbols, few blocks.
fn any_context() -> impl Strategy<Value = Vec<u32>> {
    (prop::collection::vec(0u32..2, 1..8), 0usize..BLOCK_TOKENS).prop_map(|(symbols, cut)| {
        let mut tokens: Vec<u32> = symbols.iter().flat_map(|&s| [s; BLOCK_TOKENS]).collect();
        tokens.truncate((tokens.len() - cut).max(1));
        tokens
    })
}

fn any_rows() -> impl Strategy<Value = Vec<IndexRow>> {
    let one =
        (any_context(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(tokens, start, object)| {
            let start = start.index(tokens.len().div_ceil(BLOCK_TOKENS)) * BLOCK_TOKENS;
            row(&tokens, start, tokens.len(), object)
        });
    prop::collection::vec(one, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn finds_what_an_exhaustive_search_finds(rows in any_rows(), query in any_context()) {
        let index = MemoryIndex::default();
        rows.iter().for_each(|row| insert(&index, row));
        let chain = TokenChain::new(ROOT.into(), &query);
        let walk = walk(&index, scope(), &ROOT, chain.blocks(), &|_| true).expect("memory");
        prop_assert_eq!(walk.matched_blocks(), exhaustive(&rows, &ROOT, chain.blocks()));
        // And its steps are a chain of the request's own blocks.
        let (mut at, mut parent) = (0, ROOT);
        for (i, step) in walk.steps.iter().enumerate() {
            prop_assert_eq!(step.first_block, at);
            prop_assert_eq!(step.row.parent_hash, parent);
            prop_assert!(i + 1 == walk.steps.len() || step.matched_blocks == step.row.blocks.len());
            at += step.matched_blocks;
            parent = *chain.blocks()[at - 1].as_bytes();
        }
        prop_assert!(walk.whole_blocks <= walk.matched_blocks());
    }

    #[test]
    fn rows_of_dead_objects_are_skipped_and_removed(rows in any_rows(), query in any_context()) {
        let index = MemoryIndex::default();
        rows.iter().for_each(|row| insert(&index, row));
        let alive = |row: &IndexRow| row.object_digest.as_bytes()[0].is_multiple_of(2);
        let living: Vec<_> = rows.iter().filter(|row| alive(row)).cloned().collect();
        let chain = TokenChain::new(ROOT.into(), &query);
        let walk = walk(&index, scope(), &ROOT, chain.blocks(), &alive).expect("memory");
        prop_assert_eq!(walk.matched_blocks(), exhaustive(&living, &ROOT, chain.blocks()));
    }
}

#[test]
fn the_preferred_object_does_not_depend_on_the_order_of_arrival() {
    let tokens = vec![5; 64];
    let objects: Vec<_> = [3u8, 1, 2].map(|o| row(&tokens, 0, 64, o)).into();
    let chain = TokenChain::new(ROOT.into(), &tokens);
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let index = MemoryIndex::default();
        order.iter().for_each(|&i: &usize| insert(&index, &objects[i]));
        let walk = walk(&index, scope(), &ROOT, chain.blocks(), &|_| true).expect("memory");
        assert_eq!(walk.steps[0].row.object_digest, [1; 32].into());
    }
}

#[test]
fn another_tenant_s_rows_are_not_met() {
    let tokens = vec![5; 64];
    let index = MemoryIndex::default();
    insert(&index, &row(&tokens, 0, 64, 1));
    let chain = TokenChain::new(ROOT.into(), &tokens);
    let other = Scope::new(&"u".parse().expect("a name"), &ModelId::from([1; 32]));
    assert_eq!(walk(&index, other, &ROOT, chain.blocks(), &|_| true).expect("memory"), Walk::default());
}

#[test]
fn seeks_do_not_grow_with_the_number_of_siblings() {
    let index = CountingIndex::default();
    let shared = vec![7; 8 * BLOCK_TOKENS];
    for i in 0..2_000u32 {
        let tokens = [&shared[..], &[i; 8 * BLOCK_TOKENS]].concat();
        insert(&index.rows, &row(&tokens, 0, tokens.len(), 1));
    }
    let query = [&shared[..], &[9_999; 64]].concat();
    let chain = TokenChain::new(ROOT.into(), &query);
    let walk = walk(&index, scope(), &ROOT, chain.blocks(), &|_| true).expect("memory");
    assert_eq!(walk.matched_blocks(), 8);
    assert!(index.seeks.load(std::sync::atomic::Ordering::Relaxed) <= 6);
}

#[derive(Debug, Default)]
struct CountingIndex {
    rows: MemoryIndex,
    seeks: std::sync::atomic::AtomicUsize,
}

impl HotIndex for CountingIndex {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        self.rows.put(key, value)
    }
    fn remove(&self, key: &[u8]) -> Result<(), IndexError> {
        self.rows.remove(key)
    }
    fn below(&self, key: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>, IndexError> {
        self.seeks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.rows.below(key)
    }
    fn at_or_above(&self, key: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>, IndexError> {
        self.seeks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.rows.at_or_above(key)
    }
    fn len(&self) -> u64 {
        self.rows.len()
    }
    fn clear(&self) -> Result<(), IndexError> {
        self.rows.clear()
    }
    fn flush(&self) -> Result<(), IndexError> {
        self.rows.flush()
    }
}
