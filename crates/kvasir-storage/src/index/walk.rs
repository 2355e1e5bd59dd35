//! The longest match: a walk over whole chunks, and at its end a part of one more.

use std::collections::{BTreeMap, HashMap};

use kvasir_types::{BLOCK_TOKENS, SeqHash};

use super::{
    HotIndex, IndexError, IndexRow, Scope,
    row::{BLOCK_BYTES, BLOCKS_MAX, END, ONE, PREFIX_BYTES, key_prefix, short},
};

/// One chunk of a walk.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The object.
    pub row: IndexRow,
    /// Index of its first block in the request.
    pub first_block: usize,
    /// Leading blocks of it that match.
    pub matched_blocks: usize,
}

impl Step {
    /// Leading tokens that match.
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
    /// The chunks, in order; all but the last match whole.
    pub steps: Vec<Step>,
    /// Blocks covered by whole chunks.
    pub whole_blocks: usize,
}

impl Walk {
    /// Blocks covered in all.
    pub fn matched_blocks(&self) -> usize {
        self.steps.last().map_or(0, Step::end)
    }
}

/// What follows one parent: whole chunks, longest first, and the best part of another.
#[derive(Default)]
struct Fits {
    whole: Vec<IndexRow>,
    part: Option<(usize, IndexRow)>,
}

/// Walks from `root` along `blocks`. Chunks of any lengths are combined; where several ways reach as far, the one of
/// fewest chunks wins, then the preferred object, so that readers choose alike.
pub(super) fn walk(
    index: &dyn HotIndex,
    scope: Scope,
    root: &[u8; 32],
    blocks: &[SeqHash],
    usable: &dyn Fn(&IndexRow) -> bool,
) -> Result<Walk, IndexError> {
    // Reached positions in order, each with the step that led there and the number of steps so far.
    let mut reached: BTreeMap<usize, usize> = BTreeMap::from([(0, 0)]);
    let mut came_by: HashMap<usize, Step> = HashMap::new();
    let (mut best_part, mut best_end, mut whole_blocks): (Option<Step>, usize, usize) = (None, 0, 0);
    while let Some((at, steps)) = reached.pop_first() {
        whole_blocks = at;
        let Some(rest) = blocks.get(at..).filter(|rest| !rest.is_empty()) else { continue };
        let parent = at.checked_sub(1).and_then(|i| blocks.get(i)).map_or(root, SeqHash::as_bytes);
        let fits = fits(index, scope, parent, rest, usable)?;
        for row in fits.whole {
            let step = Step { matched_blocks: row.blocks.len(), first_block: at, row };
            let end = step.end();
            let better = reached.get(&end).is_none_or(|&other| {
                steps + 1 < other
                    || (steps + 1 == other && came_by.get(&end).is_none_or(|s| prefer(&step.row, &s.row)))
            });
            if better {
                reached.insert(end, steps + 1);
                came_by.insert(end, step);
            }
        }
        if let Some((matched_blocks, row)) = fits.part
            && at + matched_blocks > best_end
        {
            best_end = at + matched_blocks;
            best_part = Some(Step { row, first_block: at, matched_blocks });
        }
    }
    let last = best_part.filter(|part| part.end() > whole_blocks);
    let mut steps: Vec<Step> = Vec::new();
    let mut at = last.as_ref().map_or(whole_blocks, |part| part.first_block);
    steps.extend(last);
    while let Some(step) = came_by.remove(&at) {
        at = step.first_block;
        steps.push(step);
    }
    steps.reverse();
    Ok(Walk { steps, whole_blocks })
}

/// Whether readers prefer `a` to `b`: the smaller error beneath, then the smaller digest.
pub(crate) fn prefer(a: &IndexRow, b: &IndexRow) -> bool {
    a.kl_beneath.total_cmp(&b.kl_beneath).then_with(|| a.object_digest.cmp(&b.object_digest)).is_lt()
}

/// All chunks after `parent` that lie whole in `blocks`, and the longest part of another.
///
/// Rows that are prefixes of the query sort before it; between two of them, whole ranges of siblings are jumped over
/// by cutting the query where they diverge. So the number of seeks depends on the lengths that occur, not on how many
/// siblings there are.
fn fits(
    index: &dyn HotIndex,
    scope: Scope,
    parent: &[u8; 32],
    blocks: &[SeqHash],
    usable: &dyn Fn(&IndexRow) -> bool,
) -> Result<Fits, IndexError> {
    let mut query = key_prefix(scope, parent);
    query.extend(blocks.iter().take(BLOCKS_MAX).flat_map(|b| short(b.as_bytes())));
    let mut found = Fits::default();
    let mut bound = query.clone();
    // Above the query: the row that extends it, its own objects (taken by the loop below), or a diverging one.
    while let Some((key, value)) = index.at_or_above(&query)?.filter(|(k, _)| shares_parent(k, &query)) {
        let row = IndexRow::decode(&key, &value)?;
        if !usable(&row) {
            index.remove(&key)?;
            continue;
        }
        let common = common_blocks(&key, &query);
        if is_end_at(&key, common) {
            bound = above_whole(&query, common);
        } else {
            found.offer_part(common, row);
        }
        break;
    }
    while let Some((key, value)) = index.below(&bound)?.filter(|(k, _)| shares_parent(k, &query)) {
        let common = common_blocks(&key, &query);
        if common == 0 {
            break;
        }
        let row = IndexRow::decode(&key, &value)?;
        if !usable(&row) {
            index.remove(&key)?;
        } else if is_end_at(&key, common) {
            // The full hash decides; the cut ones in the key only led here. The next row below may be another
            // object of the same chunk; they are few, GC removes duplicates.
            if blocks.get(common - 1) == Some(&row.seq_hash) {
                found.offer_whole(row);
            }
            bound = key;
        } else {
            found.offer_part(common, row);
            bound = above_whole(&query, common);
        }
    }
    Ok(found)
}

impl Fits {
    fn offer_part(&mut self, common: usize, row: IndexRow) {
        if common > 0 && self.part.as_ref().is_none_or(|(best, _)| common > *best) {
            self.part = Some((common, row));
        }
    }

    fn offer_whole(&mut self, row: IndexRow) {
        match self.whole.last_mut().filter(|last| last.seq_hash == row.seq_hash) {
            Some(last) if prefer(&row, last) => *last = row,
            Some(_) => {}
            None => self.whole.push(row),
        }
    }
}

/// First key above all whole chunks that end after `blocks` of the query's blocks.
fn above_whole(query: &[u8], blocks: usize) -> Vec<u8> {
    let mut bound = query.get(..PREFIX_BYTES + blocks * BLOCK_BYTES).unwrap_or(query).to_vec();
    bound.extend(ONE);
    bound
}

fn shares_parent(key: &[u8], query: &[u8]) -> bool {
    key.get(..PREFIX_BYTES) == query.get(..PREFIX_BYTES)
}

/// Blocks that a row's key and the query have in common.
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
