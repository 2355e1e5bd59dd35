//! The walk against an exhaustive search over the same rows.

use kvasir_types::{ModelId, RootHash, TokenChain};
use proptest::prelude::*;

use super::*;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::index::{
    IndexEntry, MemoryIndex,
    hooked::{HookedIndex, Operation},
    packed_lineage::LineageCache,
    placement,
    position::PositionCache,
};

const ROOT: [u8; 32] = [9; 32];

fn start() -> [u8; 32] {
    RootHash::from(ROOT).first_parent()
}

fn scope() -> Scope {
    Scope::new(&"t".parse().expect("a name"), &ModelId::from([1; 32]))
}

/// A chunk of the context `tokens[..end]`, from `start` on.
fn row(tokens: &[u32], start: usize, end: usize, object: u8) -> IndexEntry {
    let chain = TokenChain::new(ROOT.into(), &tokens[..end]);
    let blocks = &chain.blocks()[start / BLOCK_TOKENS..];
    IndexEntry {
        parent_hash: chain.prefix_hash(start).expect("starts at a block"),
        blocks: IndexEntry::short_blocks(blocks.iter().map(|b| &b.as_bytes()[..])),
        row: Arc::new(IndexRow {
            seq_hash: blocks[blocks.len() - 1],
            object_digest: [object; 32].into(),
            profile_hash: [0; 32].into(),
            first_position: start as u64,
            token_count: (end - start) as u32,
            kl_beneath: 0.0,
            head_bytes: 1,
            object_bytes: 2,
            level_bytes: vec![2],
            errors: None,
        }),
    }
}

/// An index with what it remembers of positions.
struct Rows<T> {
    index: T,
    positions: PositionCache,
}

impl<T: HotIndex> Rows<T> {
    fn new(index: T) -> Self {
        Self { index, positions: PositionCache::new() }
    }

    fn insert(&self, entry: &IndexEntry) {
        placement::insert(&self.index, &self.positions, scope(), entry).expect("memory");
    }

    fn remove(&self, entry: &IndexEntry) {
        placement::remove(&self.index, &self.positions, scope(), entry).expect("memory");
    }

    fn walk(&self, blocks: &[SeqHash]) -> Walk {
        self.walk_as(blocks, Search::Fast, &|_| true)
    }

    fn walk_as(&self, blocks: &[SeqHash], search: Search, usable: &dyn Fn(&IndexRow) -> bool) -> Walk {
        walk(&self.index, &self.positions, scope(), &start(), blocks, search, &Usable::of(usable))
            .expect("memory")
    }

    fn walk_chunks(&self, ids: &[SeqHash]) -> Vec<IndexRow> {
        walk_chunks(&self.index, &self.positions, scope(), &start(), ids, &Usable::of(&|_| true))
            .expect("memory")
    }

    /// As after a restart.
    fn forget_positions(&mut self) {
        self.positions = PositionCache::new();
    }
}

/// Longest match by trying everything.
fn exhaustive(rows: &[IndexEntry], parent: &[u8; 32], blocks: &[SeqHash]) -> usize {
    let mut best = 0;
    for row in rows.iter().filter(|r| r.parent_hash == *parent) {
        let common = row.blocks.iter().zip(blocks).take_while(|(a, b)| **a == short(b.as_bytes())).count();
        let whole = common == row.blocks.len();
        let after = if whole { exhaustive(rows, row.row.seq_hash.as_bytes(), &blocks[common..]) } else { 0 };
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

fn any_rows() -> impl Strategy<Value = Vec<IndexEntry>> {
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
        let index = Rows::new(MemoryIndex::default());
        rows.iter().for_each(|row| index.insert(row));
        let chain = TokenChain::new(ROOT.into(), &query);
        let walk = index.walk(chain.blocks());
        prop_assert_eq!(walk.matched_blocks(), exhaustive(&rows, &start(), chain.blocks()));
        // And its chunks are a chain of the request's own blocks.
        let (mut at, mut parent) = (0, start());
        for (i, chunk) in walk.chunks.iter().enumerate() {
            prop_assert_eq!(chunk.first_block, at);
            let entry = rows.iter().find(|entry| *entry.row == chunk.row && entry.parent_hash == parent);
            prop_assert!(entry.is_some(), "one of the rows, after the one before");
            prop_assert!(i + 1 == walk.chunks.len() || chunk.matched_blocks == chunk.row.block_count());
            at += chunk.matched_blocks;
            parent = *chain.blocks()[at - 1].as_bytes();
        }
        prop_assert!(walk.whole_blocks <= walk.matched_blocks());
    }

    #[test]
    fn restarts_give_no_false_matches_and_lose_none_where_there_are_no_siblings(
        rows in any_rows(), query in any_context(), restarts in prop::collection::vec(0usize..40, 0..4),
    ) {
        let mut index = Rows::new(MemoryIndex::default());
        let mut parents = std::collections::HashSet::new();
        let rows: Vec<_> = rows.into_iter().filter(|row| parents.insert(row.parent_hash)).collect();
        for (i, row) in rows.iter().enumerate() {
            if restarts.contains(&i) {
                index.forget_positions();
            }
            index.insert(row);
        }
        let chain = TokenChain::new(ROOT.into(), &query);
        prop_assert_eq!(index.walk(chain.blocks()).matched_blocks(), exhaustive(&rows, &start(), chain.blocks()));
    }

    #[test]
    fn by_their_ids_the_same_chunks_are_found(rows in any_rows(), query in any_context()) {
        let index = Rows::new(MemoryIndex::default());
        rows.iter().for_each(|row| index.insert(row));
        let chain = TokenChain::new(ROOT.into(), &query);
        let walk = index.walk(chain.blocks());
        let whole = |chunk: &&MatchedChunk| chunk.matched_blocks == chunk.row.block_count();
        let chunks: Vec<_> = walk.chunks.iter().take_while(whole).map(|chunk| chunk.row.clone()).collect();
        let mut ids: Vec<_> = chunks.iter().map(|row| row.seq_hash).collect();
        ids.push([0xee; 32].into());
        let found = index.walk_chunks(&ids);
        prop_assert_eq!(found.len(), chunks.len());
        for (found, chunk) in found.iter().zip(&chunks) {
            prop_assert_eq!(found.seq_hash, chunk.seq_hash);
        }
    }

    #[test]
    fn removed_rows_are_gone_and_what_comes_back_is_found(
        rows in any_rows(), order in prop::collection::vec(any::<prop::sample::Index>(), 0..40), query in any_context(),
    ) {
        prop_assume!(!rows.is_empty());
        let index = Rows::new(MemoryIndex::default());
        rows.iter().for_each(|row| index.insert(row));
        let chain = TokenChain::new(ROOT.into(), &query);
        let found = || index.walk(chain.blocks()).matched_blocks();
        let same = |a: &IndexEntry, b: &IndexEntry| {
            (a.parent_hash, a.row.seq_hash, a.row.object_digest) == (b.parent_hash, b.row.seq_hash, b.row.object_digest)
        };
        let mut left = rows.clone();
        for at in &order {
            let gone = at.get(&rows);
            index.remove(gone);
            left.retain(|entry| !same(entry, gone));
            // Children whose parent went are unreachable, here as in the search.
            prop_assert_eq!(found(), exhaustive(&left, &start(), chain.blocks()));
        }
        rows.iter().rev().for_each(|row| index.insert(row));
        prop_assert_eq!(found(), exhaustive(&rows, &start(), chain.blocks()));
        rows.iter().for_each(|row| index.remove(row));
        prop_assert_eq!(index.index.len(), 0);
    }

    /// Whatever changes between two walks, what is kept in memory says what the rows say.
    #[test]
    fn a_cache_changes_no_walk(
        rows in any_rows(), steps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..40), query in any_context(),
    ) {
        prop_assume!(!rows.is_empty());
        let plain = Rows::new(MemoryIndex::default());
        let cached = Rows::new(HookedIndex::new(|_| Ok(())).caching(Some(LineageCache::new(1 << 20))));
        let chain = TokenChain::new(ROOT.into(), &query);
        for (at, is_removed) in &steps {
            let entry = at.get(&rows);
            if *is_removed {
                plain.remove(entry);
                cached.remove(entry);
            } else {
                plain.insert(entry);
                cached.insert(entry);
            }
            let walk = plain.walk(chain.blocks());
            let ids: Vec<_> = walk.chunks.iter().map(|chunk| chunk.row.seq_hash).collect();
            prop_assert_eq!(cached.walk(chain.blocks()), walk);
            prop_assert_eq!(cached.walk_chunks(&ids), plain.walk_chunks(&ids));
        }
    }

    #[test]
    fn rows_of_dead_objects_are_skipped(rows in any_rows(), query in any_context()) {
        let index = Rows::new(MemoryIndex::default());
        rows.iter().for_each(|row| index.insert(row));
        let alive = |row: &IndexRow| row.object_digest.as_bytes()[0].is_multiple_of(2);
        let living: Vec<_> = rows.iter().filter(|entry| alive(&entry.row)).cloned().collect();
        let chain = TokenChain::new(ROOT.into(), &query);
        let walk = index.walk_as(chain.blocks(), Search::Fast, &alive);
        prop_assert_eq!(walk.matched_blocks(), exhaustive(&living, &start(), chain.blocks()));
    }
}

#[test]
fn a_chunk_of_which_one_object_is_gone_is_found() {
    let tokens = [1; 40];
    for gone in [1, 2] {
        let index = Rows::new(MemoryIndex::default());
        [1, 2].iter().for_each(|&object| index.insert(&row(&tokens, 0, 40, object)));
        let chain = TokenChain::new(ROOT.into(), &tokens);
        let alive = |row: &IndexRow| row.object_digest.as_bytes()[0] != gone;
        let walk = index.walk_as(chain.blocks(), Search::Fast, &alive);
        assert_eq!(walk.whole_blocks, 3, "{gone} is gone");
    }
}

/// What is kept of a chunk with siblings is its preferred object, not the one that was usable when it was read.
#[test]
fn an_object_that_comes_back_is_preferred_again() {
    let index = Rows::new(HookedIndex::new(|_| Ok(())).caching(Some(LineageCache::new(1 << 20))));
    let tokens = [1; 40];
    [1, 2].iter().for_each(|&object| index.insert(&row(&tokens, 0, 40, object)));
    index.insert(&row(&[2; 40], 0, 40, 3));
    let chain = TokenChain::new(ROOT.into(), &tokens);
    for gone in [1, 3, 1, 2, 3] {
        let alive = |row: &IndexRow| row.object_digest.as_bytes()[0] != gone;
        let walk = index.walk_as(chain.blocks(), Search::Fast, &alive);
        let preferred: u8 = if gone == 1 { 2 } else { 1 };
        assert_eq!(walk.chunks[0].row.object_digest, [preferred; 32].into(), "{gone} is gone");
    }
}

#[test]
fn a_thorough_walk_finds_children_that_lie_at_two_positions() {
    let tokens = [1; 64];
    let chunk = |start, end| row(&tokens, start, end, 1);
    let mut index = Rows::new(MemoryIndex::default());
    // The child of 16..32 lies beside it. After a restart, what follows the same hash lies under its name.
    [(0, 16), (16, 32), (32, 48)].iter().for_each(|&(start, end)| index.insert(&chunk(start, end)));
    index.forget_positions();
    [(32, 64), (0, 32)].iter().for_each(|&(start, end)| index.insert(&chunk(start, end)));
    let chain = TokenChain::new(ROOT.into(), &tokens);
    let found = |search| index.walk_as(chain.blocks(), search, &|_| true).whole_blocks;
    assert_eq!((found(Search::Fast), found(Search::Thorough)), (3, 4));
}

#[test]
fn the_preferred_object_does_not_depend_on_the_order_of_arrival() {
    let tokens = vec![5; 64];
    let objects: Vec<_> = [3u8, 1, 2].map(|o| row(&tokens, 0, 64, o)).into();
    let chain = TokenChain::new(ROOT.into(), &tokens);
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let index = Rows::new(MemoryIndex::default());
        order.iter().for_each(|&i: &usize| index.insert(&objects[i]));
        let walk = index.walk(chain.blocks());
        assert_eq!(walk.chunks[0].row.object_digest, [1; 32].into());
    }
}

#[test]
fn another_tenant_s_rows_are_not_met() {
    let tokens = vec![5; 64];
    let index = Rows::new(MemoryIndex::default());
    index.insert(&row(&tokens, 0, 64, 1));
    let chain = TokenChain::new(ROOT.into(), &tokens);
    let other = Scope::new(&"u".parse().expect("a name"), &ModelId::from([1; 32]));
    assert_eq!(
        walk(
            &index.index,
            &index.positions,
            other,
            &start(),
            chain.blocks(),
            Search::Fast,
            &Usable::of(&|_| true)
        )
        .expect("memory"),
        Walk::default()
    );
}

/// An empty index, and its seeks since they were last asked for.
fn counting() -> (Rows<impl HotIndex>, impl Fn() -> usize) {
    counting_caching(None)
}

fn counting_caching(lineages: Option<LineageCache>) -> (Rows<impl HotIndex>, impl Fn() -> usize) {
    let seeks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seeks);
    let index = HookedIndex::new(move |operation| {
        counted.fetch_add(usize::from(operation == Operation::Seek), Ordering::Relaxed);
        Ok(())
    });
    (Rows::new(index.caching(lineages)), move || seeks.swap(0, Ordering::Relaxed))
}

#[test]
fn a_context_that_was_walked_before_needs_no_seek() {
    let (index, seeks) = counting_caching(Some(LineageCache::new(1 << 20)));
    let tokens: Vec<u32> = (0..64 * 32).collect();
    for chunk in 0..64 {
        index.insert(&row(&tokens[..(chunk + 1) * 32], chunk * 32, (chunk + 1) * 32, 1));
    }
    let chain = TokenChain::new(ROOT.into(), &tokens);
    let walk = index.walk(chain.blocks());
    let ids: Vec<_> = walk.chunks.iter().map(|chunk| chunk.row.seq_hash).collect();
    seeks();
    assert_eq!((index.walk_chunks(&ids).len(), seeks()), (64, 0), "by ids");
    assert_eq!((index.walk(chain.blocks()).chunks.len(), seeks()), (64, 0), "by blocks");
}

/// The first chunks of contexts are siblings: all follow the root.
#[test]
fn a_context_among_others_that_was_looked_up_before_needs_no_seek_by_its_ids() {
    let (index, seeks) = counting_caching(Some(LineageCache::new(1 << 20)));
    let tokens = |context: u32| -> Vec<u32> { (0..64 * 32).map(|i| i ^ (context << 16)).collect() };
    for context in 0..20 {
        let tokens = tokens(context);
        for chunk in 0..64 {
            index.insert(&row(&tokens[..(chunk + 1) * 32], chunk * 32, (chunk + 1) * 32, 1));
        }
    }
    for context in [0, 7, 19] {
        let chain = TokenChain::new(ROOT.into(), &tokens(context));
        let ids: Vec<_> = index.walk(chain.blocks()).chunks.iter().map(|chunk| chunk.row.seq_hash).collect();
        index.walk_chunks(&ids);
        seeks();
        assert_eq!((index.walk_chunks(&ids).len(), seeks()), (64, 0), "context {context}");
        assert_eq!(index.walk(chain.blocks()).chunks.len(), 64);
        let by_blocks = seeks();
        assert!(by_blocks <= 4, "context {context}: {by_blocks}");
    }
}

#[test]
fn seeks_do_not_grow_with_the_number_of_siblings() {
    let (index, seeks) = counting();
    let shared = vec![7; 8 * BLOCK_TOKENS];
    for i in 0..2_000u32 {
        let tokens = [&shared[..], &[i; 8 * BLOCK_TOKENS]].concat();
        index.insert(&row(&tokens, 0, tokens.len(), 1));
    }
    let query = [&shared[..], &[9_999; 64]].concat();
    let chain = TokenChain::new(ROOT.into(), &query);
    seeks();
    let walk = index.walk(chain.blocks());
    assert_eq!(walk.matched_blocks(), 8);
    assert!(seeks() <= 8);
}

#[test]
fn a_context_that_is_cut_in_two_ways_is_a_few_seeks() {
    let (index, seeks) = counting();
    let tokens: Vec<u32> = (0..400 * 16).collect();
    for first in [16, 32] {
        index.insert(&row(&tokens, 0, first, 1));
        for start in (first..=tokens.len() - 32).step_by(32) {
            index.insert(&row(&tokens, start, start + 32, 1));
        }
    }
    let chain = TokenChain::new(ROOT.into(), &tokens);
    seeks();
    assert_eq!(index.walk(chain.blocks()).whole_blocks, 400);
    let seeks = seeks();
    assert!(seeks <= 40, "{seeks}");
}

#[test]
fn a_long_context_is_a_few_seeks_and_a_scan() {
    let (index, seeks) = counting();
    // Conversations that share their first chunk; and one that is alone.
    for conversation in 0..20u32 {
        let tokens: Vec<u32> =
            (0..64 * 32).map(|i| if i < 32 { i } else { i ^ (conversation << 16) }).collect();
        for chunk in 0..64 {
            index.insert(&row(&tokens[..(chunk + 1) * 32], chunk * 32, (chunk + 1) * 32, 1));
        }
    }
    for conversation in [0, 1, 19u32] {
        let tokens: Vec<u32> =
            (0..64 * 32).map(|i| if i < 32 { i } else { i ^ (conversation << 16) }).collect();
        let chain = TokenChain::new(ROOT.into(), &tokens);
        seeks();
        let walk = index.walk(chain.blocks());
        assert_eq!((walk.chunks.len(), walk.whole_blocks), (64, 128));
        assert!(seeks() <= 16, "conversation {conversation}");
        let ids: Vec<_> = walk.chunks.iter().map(|chunk| chunk.row.seq_hash).collect();
        assert_eq!(index.walk_chunks(&ids).len(), 64);
        assert!(seeks() <= 5, "conversation {conversation}, by ids");
    }
}
