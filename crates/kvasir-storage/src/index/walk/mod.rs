//! The longest match: a walk over whole chunks, ending with a part of another one.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use kvasir_types::{BLOCK_TOKENS, SeqHash};

use super::{
    IndexError,
    database::{HotIndex, Pair},
    key::{self, PREFIX_BYTES},
    lineage::{Child, Usable, along, cached_sibling, objects, sibling},
    placement::check_matching,
    position::{PositionCache, RowPosition},
    row::{BLOCKS_MAX, Decoded, IndexRow, prefer},
    scope::Scope,
    truncated::{BLOCK_BYTES, END, NAME_BYTES, ONE, name, short},
};

/// Last chunks of a walk whose children's positions are recorded.
const POSITIONS_RECORDED: usize = 4;
/// Rows for which a walk along ids takes memory at once: few contexts have more chunks, and a list that matches nothing may be
/// long.
const ROWS_RESERVED: usize = 128;

/// One chunk of a walk.
#[derive(Debug, Clone, PartialEq)]
pub struct MatchedChunk {
    /// The object.
    pub row: IndexRow,
    /// Index of its first block in the request.
    pub first_block: usize,
    /// Leading blocks of it that match.
    pub matched_blocks: usize,
}

impl MatchedChunk {
    /// Number of leading tokens that match.
    pub fn matched_tokens(&self) -> u32 {
        self.row.token_count.min((self.matched_blocks * BLOCK_TOKENS) as u32)
    }

    fn end(&self) -> usize {
        self.first_block + self.matched_blocks
    }
}

/// The longest match.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Walk {
    /// The chunks, in order; all except the last match as a whole.
    pub chunks: Vec<MatchedChunk>,
    /// Blocks covered by whole chunks.
    pub whole_blocks: usize,
}

impl Walk {
    /// A walk of whole, consecutive chunks from the root.
    pub(crate) fn of_rows(rows: Vec<IndexRow>) -> Self {
        let mut whole_blocks = 0;
        let chunks = rows.into_iter().map(|row| {
            let (first_block, matched_blocks) = (whole_blocks, row.block_count());
            whole_blocks += matched_blocks;
            MatchedChunk { row, first_block, matched_blocks }
        });
        let chunks = chunks.collect();
        Self { chunks, whole_blocks }
    }

    /// Ends before the chunk `end`.
    pub(crate) fn truncate(&mut self, end: usize) {
        if let Some(cut) = self.chunks.get(end) {
            self.whole_blocks = self.whole_blocks.min(cut.first_block);
            self.chunks.truncate(end);
        }
    }

    /// Total number of covered blocks.
    pub fn matched_blocks(&self) -> usize {
        self.chunks.last().map_or(0, MatchedChunk::end)
    }
}

/// By the index of a block in the request.
type ByBlock<T> = HashMap<usize, T, RandomState>;

/// A block that a walk has reached: the chunk that ends there, and the position of its children.
struct Cursor {
    chunk: MatchedChunk,
    children: [Option<RowPosition>; 2],
}

/// The blocks that a walk has reached.
struct Reached {
    /// Those from which it has not gone on, in order, each with the number of chunks before it.
    open: BTreeMap<usize, usize>,
    cursors: ByBlock<Cursor>,
}

impl Reached {
    /// Reaches the end of a whole chunk from block `at`, which has `count` chunks before it.
    fn add(&mut self, at: usize, count: usize, Child { row, children }: Child) {
        let chunk = MatchedChunk { matched_blocks: row.block_count(), first_block: at, row };
        let end = chunk.end();
        let better = self.open.get(&end).is_none_or(|&other| {
            let prefers =
                || self.cursors.get(&end).is_none_or(|cursor| prefer(&chunk.row, &cursor.chunk.row));
            count + 1 < other || (count + 1 == other && prefers())
        });
        if better {
            self.open.insert(end, count + 1);
            self.cursors.insert(end, Cursor { chunk, children });
        }
    }
}

/// The matching children of one parent: whole chunks, longest first, and the best partial match of another.
#[derive(Default)]
struct ChildMatches {
    whole: Vec<Child>,
    partial: Option<PartialMatch>,
}

/// A chunk of which only the leading blocks match.
struct PartialMatch {
    blocks: usize,
    row: IndexRow,
}

/// How a walk searches for the children of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// A chunk without siblings at the walk's position counts as the only child of its parent. It nearly
    /// always is.
    Fast,
    /// Everywhere, because the store has a chunk that the fast walk did not find: children of one parent may
    /// be at two positions, if a parent was seen again in another order.
    Thorough,
}

/// Walks from `root` along `blocks`. Chunks of any lengths are combined; among equally long matches, the one
/// with the fewest chunks wins, then the preferred object, so that readers choose alike.
pub(super) fn walk(
    index: &dyn HotIndex,
    cache: &PositionCache,
    scope: Scope,
    root: &[u8; 32],
    blocks: &[SeqHash],
    search: Search,
    usable: &Usable<'_>,
) -> Result<Walk, IndexError> {
    let mut reached = Reached { open: BTreeMap::from([(0, 0)]), cursors: ByBlock::default() };
    let mut only_children: ByBlock<Child> = ByBlock::default();
    // Where the last scan met siblings: nobody has to scan for an only child there.
    let mut siblings: Option<RowPosition> = None;
    let (mut best_part, mut best_end, mut whole_blocks): (Option<MatchedChunk>, usize, usize) = (None, 0, 0);
    while let Some((at, count)) = reached.open.pop_first() {
        whole_blocks = at;
        let Some(rest) = blocks.get(at..).filter(|rest| !rest.is_empty()) else { continue };
        let positions =
            reached.cursors.get(&at).map_or([Some(RowPosition::under(root)), None], |cursor| cursor.children);
        let [Some(first), second] = positions else { continue };
        if search == Search::Fast && siblings != Some(first) && !only_children.contains_key(&at) {
            // Beside those of other chains: contexts that are cut in two ways take turns.
            siblings = add_only_children(index, scope, first, at, blocks, usable, &mut only_children)?;
            reached.cursors.reserve(only_children.len());
        }
        if let Some(child) = only_children.remove(&at) {
            reached.add(at, count, child);
            continue;
        }
        let mut found = child_matches(index, scope, first, siblings, rest, usable)?;
        let parent = at.checked_sub(1).and_then(|i| blocks.get(i)).map_or(root, SeqHash::as_bytes);
        for position in other_positions(cache, scope, parent, first, second) {
            found.merge(child_matches(index, scope, position, siblings, rest, usable)?);
        }
        for child in found.whole {
            reached.add(at, count, child);
        }
        if let Some(PartialMatch { blocks: matched_blocks, row }) = found.partial
            && at + matched_blocks > best_end
        {
            best_end = at + matched_blocks;
            best_part = Some(MatchedChunk { row, first_block: at, matched_blocks });
        }
    }
    let last = best_part.filter(|part| part.end() > whole_blocks);
    let mut cursors = reached.cursors;
    let mut chunks: Vec<MatchedChunk> = Vec::with_capacity(cursors.len() + 1);
    let mut at = last.as_ref().map_or(whole_blocks, |part| part.first_block);
    chunks.extend(last);
    while let Some(cursor) = cursors.remove(&at) {
        at = cursor.chunk.first_block;
        // The next stored chunk mostly follows one of these.
        if let (Some(children), true) = (cursor.children[0], chunks.len() < POSITIONS_RECORDED) {
            cache.record(scope, &cursor.chunk.row.seq_hash, children);
        }
        chunks.push(cursor.chunk);
    }
    chunks.reverse();
    Ok(Walk { chunks, whole_blocks })
}

/// Adds the run of chunks after `at` in one lineage that have no siblings and match as a whole: the largest part
/// of most walks. Returns the position of siblings, if the scan ended there.
fn add_only_children(
    index: &dyn HotIndex,
    scope: Scope,
    position: RowPosition,
    at: usize,
    blocks: &[SeqHash],
    usable: &Usable<'_>,
    only_children: &mut ByBlock<Child>,
) -> Result<Option<RowPosition>, IndexError> {
    let mut end = at;
    along(index, scope, position, true, &mut |child| {
        let next = end + child.row.block_count();
        let fits = next > end && blocks.get(next - 1) == Some(&child.row.seq_hash) && usable.has(&child.row);
        if fits {
            only_children.insert(end, child);
            end = next;
        }
        // Behind the last one nothing is wanted: the database would be read in vain.
        fits && end < blocks.len()
    })
}

/// The chunks of a list of ids, each following the previous one.
pub(super) fn walk_chunks(
    index: &dyn HotIndex,
    cache: &PositionCache,
    scope: Scope,
    root: &[u8; 32],
    chunks: &[SeqHash],
    usable: &Usable<'_>,
) -> Result<Vec<IndexRow>, IndexError> {
    let mut rows: Vec<IndexRow> = Vec::with_capacity(chunks.len().min(ROWS_RESERVED));
    let mut positions = [Some(RowPosition::under(root)), None];
    loop {
        let known = rows.len();
        let ([Some(first), second], Some(wanted)) = (positions, chunks.get(known)) else { break };
        if let Some(child) = cached_sibling(index, scope, first, name(wanted.as_bytes()), usable)
            && child.row.seq_hash == *wanted
        {
            rows.push(child.row);
            positions = child.children;
            continue;
        }
        along(index, scope, first, false, &mut |child| {
            let fits = chunks.get(rows.len()) == Some(&child.row.seq_hash) && usable.has(&child.row);
            if fits {
                rows.push(child.row);
                positions = child.children;
            }
            // Behind the last one nothing is wanted: the database would be read in vain.
            fits && rows.len() < chunks.len()
        })?;
        if rows.len() > known {
            continue;
        }
        // It has siblings, which the scan skips; or it is elsewhere.
        let parent = known.checked_sub(1).and_then(|i| chunks.get(i)).map_or(root, SeqHash::as_bytes);
        let mut child = objects(index, scope, first, wanted, usable)?;
        if child.is_none() {
            for position in other_positions(cache, scope, parent, first, second) {
                child = child.or(objects(index, scope, position, wanted, usable)?);
            }
        }
        let Some(child) = child else { break };
        rows.push(child.row);
        positions = child.children;
    }
    Ok(rows)
}

/// Other positions than `first` for the children of `parent`: a chunk of another length may end at the same
/// block and have come first, and children may have arrived before their parent.
fn other_positions(
    cache: &PositionCache,
    scope: Scope,
    parent: &[u8; 32],
    first: RowPosition,
    second: Option<RowPosition>,
) -> impl Iterator<Item = RowPosition> + use<> {
    let third = Some(cache.after(scope, parent)).filter(|&third| Some(third) != second);
    second.into_iter().chain(third).filter(move |&position| position != first)
}

/// All chunks at a position that are contained in `blocks`, and the longest partial match of another.
///
/// Rows that are prefixes of the query sort before it; between two of them, truncating the query where they
/// diverge skips whole ranges of siblings. So the number of seeks depends on the lengths that occur, not on
/// the number of siblings. `siblings` is a position that is known to have some.
fn child_matches(
    index: &dyn HotIndex,
    scope: Scope,
    position: RowPosition,
    siblings: Option<RowPosition>,
    blocks: &[SeqHash],
    usable: &Usable<'_>,
) -> Result<ChildMatches, IndexError> {
    let mut query = key::matches(scope, position);
    query.extend(blocks.iter().take(BLOCKS_MAX).flat_map(|b| short(b.as_bytes())));
    let mut found = ChildMatches::default();
    let only_child = match siblings == Some(position) {
        true => None,
        false => only_child(index, scope, position, &query)?,
    };
    if let Some((first, common)) = only_child {
        let seq_hash = first.row.seq_hash;
        // Its first object may be gone, and another one not.
        let child = match usable.has(&first.row) {
            true => Some(first),
            false => objects(index, scope, position, &seq_hash, usable)?,
        };
        match child {
            Some(child) if common < child.row.block_count() => found.offer_partial(common, child.row),
            Some(child) if blocks.get(common - 1) == Some(&seq_hash) => found.whole.push(child),
            _ => {}
        }
        return Ok(found);
    }
    let is_beside = |(key, _): &Pair| shares_position(key, &query);
    // Where the loops go on; they begin at the query.
    let (mut from, mut bound): (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
    // Above the query: the row that extends it, its own (handled by the loop below), or a diverging one.
    while let Some((key, value)) = index.at_or_above(from.as_deref().unwrap_or(&query))?.filter(is_beside) {
        check_matching(&key, &value)?;
        let common = common_blocks(&key, &query);
        if common == 0 {
            // Nor has one above it anything in common.
            break;
        }
        let Some(child) = named(index, scope, position, &key, usable)? else {
            usable.note_stale(&key);
            from = Some([&key[..], &[0]].concat());
            continue;
        };
        if is_end_at(&key, common) {
            bound = Some(above_whole(&query, common));
        } else {
            found.offer_partial(common, child.row);
        }
        break;
    }
    while let Some((key, value)) = index.below(bound.as_deref().unwrap_or(&query))?.filter(is_beside) {
        check_matching(&key, &value)?;
        let common = common_blocks(&key, &query);
        if common == 0 {
            break;
        }
        let Some(child) = named(index, scope, position, &key, usable)? else {
            usable.note_stale(&key);
            bound = Some(key);
            continue;
        };
        if is_end_at(&key, common) {
            // The full hash decides; the truncated ones in the key are only hints.
            if blocks.get(common - 1) == Some(&child.row.seq_hash) {
                found.whole.push(child);
            }
            bound = Some(key);
        } else {
            found.offer_partial(common, child.row);
            bound = Some(above_whole(&query, common));
        }
    }
    Ok(found)
}

/// The chunk that is alone at a position, and how many of its leading blocks match.
fn only_child(
    index: &dyn HotIndex,
    scope: Scope,
    position: RowPosition,
    query: &[u8],
) -> Result<Option<(Child, usize)>, IndexError> {
    let (mut found, prefix) = (None, key::infos(scope, position));
    index.scan(&prefix, &mut |key, value| {
        if key.starts_with(&prefix) {
            let Decoded { row, continues, blocks } = IndexRow::decode(key, value)?;
            let common = blocks.iter().zip(key_blocks(query)).take_while(|(a, b)| a == b).count();
            found = (!blocks.is_empty()).then(|| (Child::new(position, row, continues), common));
        }
        Ok(false)
    })?;
    Ok(found)
}

/// The preferred object of the chunk named by a matching row.
fn named(
    index: &dyn HotIndex,
    scope: Scope,
    position: RowPosition,
    matching: &[u8],
    usable: &Usable<'_>,
) -> Result<Option<Child>, IndexError> {
    match matching.last_chunk::<NAME_BYTES>() {
        Some(name) => sibling(index, scope, position, name, usable),
        None => Ok(None),
    }
}

impl ChildMatches {
    fn offer_partial(&mut self, common: usize, row: IndexRow) {
        if common > 0 && self.partial.as_ref().is_none_or(|best| common > best.blocks) {
            self.partial = Some(PartialMatch { blocks: common, row });
        }
    }

    fn merge(&mut self, other: Self) {
        self.whole.extend(other.whole);
        if let Some(PartialMatch { blocks, row }) = other.partial {
            self.offer_partial(blocks, row);
        }
    }
}

/// First key above all whole chunks that end after `blocks` of the query's blocks.
fn above_whole(query: &[u8], blocks: usize) -> Vec<u8> {
    let mut bound = query.get(..PREFIX_BYTES + blocks * BLOCK_BYTES).unwrap_or(query).to_vec();
    bound.extend(ONE);
    bound
}

fn shares_position(key: &[u8], query: &[u8]) -> bool {
    key.get(..PREFIX_BYTES) == query.get(..PREFIX_BYTES)
}

/// Number of leading blocks that a row's key and the query have in common.
fn common_blocks(key: &[u8], query: &[u8]) -> usize {
    let pairs = key_blocks(key).iter().zip(key_blocks(query));
    pairs.take_while(|(a, b)| a == b && **a != END).count()
}

fn key_blocks(key: &[u8]) -> &[[u8; BLOCK_BYTES]] {
    key.get(PREFIX_BYTES..).unwrap_or_default().as_chunks().0
}

/// Whether a row's block hashes end after `blocks` of them.
fn is_end_at(key: &[u8], blocks: usize) -> bool {
    key_blocks(key).get(blocks) == Some(&END)
}

#[cfg(test)]
mod tests;
