//! The longest match: a walk over whole chunks, and at its end a part of one more.

use std::collections::{BTreeMap, HashMap};

use kvasir_types::{BLOCK_TOKENS, SeqHash};

use super::{
    HotIndex, IndexError, IndexRow, Scope,
    key::{self, BLOCK_BYTES, END, ONE, PREFIX_BYTES},
    line::{Child, along, objects, objects_under},
    place::{Lines, Spot, check_matching},
    row::{BLOCKS_MAX, Decoded, short},
};

/// Last steps of a walk whose places are remembered.
const STEPS_LEARNT: usize = 4;

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
    /// Of whole chunks that follow each other from the root on.
    pub(crate) fn of_rows(rows: Vec<IndexRow>) -> Self {
        let mut whole_blocks = 0;
        let steps = rows.into_iter().map(|row| {
            let (first_block, matched_blocks) = (whole_blocks, row.block_count());
            whole_blocks += matched_blocks;
            Step { row, first_block, matched_blocks }
        });
        let steps = steps.collect();
        Self { steps, whole_blocks }
    }

    /// Blocks covered in all.
    pub fn matched_blocks(&self) -> usize {
        self.steps.last().map_or(0, Step::end)
    }
}

/// How a position was reached.
struct Way {
    step: Step,
    children: [Option<Spot>; 2],
}

/// What follows one parent: whole chunks, longest first, and the best part of another.
#[derive(Default)]
struct Fits {
    whole: Vec<Child>,
    part: Option<(usize, IndexRow)>,
}

/// Walks from `root` along `blocks`. Chunks of any lengths are combined; where several ways reach as far, the one of
/// fewest chunks wins, then the preferred object, so that readers choose alike.
pub(super) fn walk(
    index: &dyn HotIndex,
    lines: &Lines,
    scope: Scope,
    root: &[u8; 32],
    blocks: &[SeqHash],
    usable: &dyn Fn(&IndexRow) -> bool,
) -> Result<Walk, IndexError> {
    // Reached positions in order, each with the number of steps so far.
    let mut reached: BTreeMap<usize, usize> = BTreeMap::from([(0, 0)]);
    let mut came_by: HashMap<usize, Way> = HashMap::new();
    let mut only_children: HashMap<usize, Child> = HashMap::new();
    let (mut best_part, mut best_end, mut whole_blocks): (Option<Step>, usize, usize) = (None, 0, 0);
    while let Some((at, steps)) = reached.pop_first() {
        whole_blocks = at;
        let Some(rest) = blocks.get(at..).filter(|rest| !rest.is_empty()) else { continue };
        let spots = came_by.get(&at).map_or([Some(Spot::under(root)), None], |way| way.children);
        let [Some(first), second] = spots else { continue };
        if !only_children.contains_key(&at) {
            only_children = only_children_from(index, scope, first, at, blocks, usable)?;
        }
        let only_child = only_children.remove(&at);
        let is_only = only_child.is_some();
        let mut found = match only_child {
            Some(child) => Fits { whole: vec![child], part: None },
            None => fits(index, scope, first, rest, usable)?,
        };
        if !is_only {
            let parent = at.checked_sub(1).and_then(|i| blocks.get(i)).map_or(root, SeqHash::as_bytes);
            for spot in elsewhere(lines, scope, parent, first, second) {
                found.merge(fits(index, scope, spot, rest, usable)?);
            }
        }
        for child in found.whole {
            let Child { row, children } = child;
            let step = Step { matched_blocks: row.block_count(), first_block: at, row };
            let end = step.end();
            let better = reached.get(&end).is_none_or(|&other| {
                let prefers = || came_by.get(&end).is_none_or(|way| prefer(&step.row, &way.step.row));
                steps + 1 < other || (steps + 1 == other && prefers())
            });
            if better {
                reached.insert(end, steps + 1);
                came_by.insert(end, Way { step, children });
            }
        }
        if let Some((matched_blocks, row)) = found.part
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
    while let Some(way) = came_by.remove(&at) {
        at = way.step.first_block;
        // What is stored next will mostly follow one of these.
        if let (Some(children), true) = (way.children[0], steps.len() < STEPS_LEARNT) {
            lines.learn(scope, &way.step.row.seq_hash, children);
        }
        steps.push(way.step);
    }
    steps.reverse();
    Ok(Walk { steps, whole_blocks })
}

/// The run of chunks behind `at` that lie on one line, have no siblings and match whole: most of most walks.
fn only_children_from(
    index: &dyn HotIndex,
    scope: Scope,
    spot: Spot,
    at: usize,
    blocks: &[SeqHash],
    usable: &dyn Fn(&IndexRow) -> bool,
) -> Result<HashMap<usize, Child>, IndexError> {
    let (mut run, mut end) = (HashMap::new(), at);
    along(index, scope, spot, true, &mut |child| {
        let next = end + child.row.block_count();
        let fits = next > end && blocks.get(next - 1) == Some(&child.row.seq_hash) && usable(&child.row);
        if fits {
            run.insert(end, child);
            end = next;
        }
        fits
    })?;
    Ok(run)
}

/// The chunks of a list of ids, each following the one before.
pub(super) fn walk_chunks(
    index: &dyn HotIndex,
    lines: &Lines,
    scope: Scope,
    root: &[u8; 32],
    chunks: &[SeqHash],
    usable: &dyn Fn(&IndexRow) -> bool,
) -> Result<Vec<IndexRow>, IndexError> {
    let mut rows: Vec<IndexRow> = Vec::new();
    let mut spots = [Some(Spot::under(root)), None];
    loop {
        let known = rows.len();
        let [Some(first), second] = spots else { break };
        along(index, scope, first, false, &mut |child| {
            let fits = chunks.get(rows.len()) == Some(&child.row.seq_hash) && usable(&child.row);
            if fits {
                rows.push(child.row);
                spots = child.children;
            }
            fits
        })?;
        let Some(wanted) = chunks.get(rows.len()) else { break };
        if rows.len() > known {
            continue;
        }
        // It has siblings, which the scan does not look through; or it lies elsewhere.
        let parent = known.checked_sub(1).and_then(|i| chunks.get(i)).map_or(root, SeqHash::as_bytes);
        let mut child = objects(index, scope, first, wanted, usable)?;
        if child.is_none() {
            for spot in elsewhere(lines, scope, parent, first, second) {
                child = child.or(objects(index, scope, spot, wanted, usable)?);
            }
        }
        let Some(child) = child else { break };
        rows.push(child.row);
        spots = child.children;
    }
    Ok(rows)
}

/// Where else than at `first` the children of `parent` may lie: a chunk of another length may end where theirs does and
/// have been first, and they may have come before their parent.
fn elsewhere(
    lines: &Lines,
    scope: Scope,
    parent: &[u8; 32],
    first: Spot,
    second: Option<Spot>,
) -> impl Iterator<Item = Spot> + use<> {
    let third = Some(lines.after(scope, parent)).filter(|&third| Some(third) != second);
    second.into_iter().chain(third).filter(move |&spot| spot != first)
}

/// Whether readers prefer `a` to `b`: the smaller error beneath, then the smaller digest.
pub(crate) fn prefer(a: &IndexRow, b: &IndexRow) -> bool {
    a.kl_beneath.total_cmp(&b.kl_beneath).then_with(|| a.object_digest.cmp(&b.object_digest)).is_lt()
}

/// All chunks at a spot that lie whole in `blocks`, and the longest part of another.
///
/// Rows that are prefixes of the query sort before it; between two of them, whole ranges of siblings are jumped over
/// by cutting the query where they diverge. So the number of seeks depends on the lengths that occur, not on how many
/// siblings there are.
fn fits(
    index: &dyn HotIndex,
    scope: Scope,
    spot: Spot,
    blocks: &[SeqHash],
    usable: &dyn Fn(&IndexRow) -> bool,
) -> Result<Fits, IndexError> {
    let mut query = key::matches(scope, spot);
    query.extend(blocks.iter().take(BLOCKS_MAX).flat_map(|b| short(b.as_bytes())));
    let mut found = Fits::default();
    if let Some((child, common)) = only_child(index, scope, spot, &query)? {
        if !usable(&child.row) {
            objects(index, scope, spot, &child.row.seq_hash, usable)?;
        } else if common < child.row.block_count() {
            found.offer_part(common, child.row);
        } else if blocks.get(common - 1) == Some(&child.row.seq_hash) {
            found.whole.push(child);
        }
        return Ok(found);
    }
    let mut bound = query.clone();
    // Above the query: the row that extends it, its own (taken by the loop below), or a diverging one.
    while let Some((key, value)) = index.at_or_above(&query)?.filter(|(k, _)| shares_spot(k, &query)) {
        check_matching(&key, &value)?;
        let Some(child) = named(index, spot, &key, usable)? else {
            index.remove(&key)?;
            continue;
        };
        let common = common_blocks(&key, &query);
        if is_end_at(&key, common) {
            bound = above_whole(&query, common);
        } else {
            found.offer_part(common, child.row);
        }
        break;
    }
    while let Some((key, value)) = index.below(&bound)?.filter(|(k, _)| shares_spot(k, &query)) {
        check_matching(&key, &value)?;
        let common = common_blocks(&key, &query);
        if common == 0 {
            break;
        }
        let child = named(index, spot, &key, usable)?;
        let Some(child) = child else {
            index.remove(&key)?;
            continue;
        };
        if is_end_at(&key, common) {
            // The full hash decides; the cut ones in the key only led here.
            if blocks.get(common - 1) == Some(&child.row.seq_hash) {
                found.whole.push(child);
            }
            bound = key;
        } else {
            found.offer_part(common, child.row);
            bound = above_whole(&query, common);
        }
    }
    Ok(found)
}

/// The chunk that is alone at a spot, and how many of its leading blocks match.
fn only_child(
    index: &dyn HotIndex,
    scope: Scope,
    spot: Spot,
    query: &[u8],
) -> Result<Option<(Child, usize)>, IndexError> {
    let (mut found, prefix) = (None, key::infos(scope, spot));
    index.scan(&prefix, &mut |key, value| {
        if key.starts_with(&prefix) {
            let Decoded { row, continues, blocks } = IndexRow::decode(key, value)?;
            let common = blocks.iter().zip(key_blocks(query)).take_while(|(a, b)| a == b).count();
            found = (!blocks.is_empty()).then(|| (Child::new(spot, row, continues), common));
        }
        Ok(false)
    })?;
    Ok(found)
}

/// The preferred object of the chunk that a matching row names.
fn named(
    index: &dyn HotIndex,
    spot: Spot,
    matching: &[u8],
    usable: &dyn Fn(&IndexRow) -> bool,
) -> Result<Option<Child>, IndexError> {
    match key::infos_of_matching(matching) {
        Some(prefix) => objects_under(index, spot, &prefix, usable),
        None => Ok(None),
    }
}

impl Fits {
    fn offer_part(&mut self, common: usize, row: IndexRow) {
        if common > 0 && self.part.as_ref().is_none_or(|(best, _)| common > *best) {
            self.part = Some((common, row));
        }
    }

    fn merge(&mut self, other: Self) {
        self.whole.extend(other.whole);
        if let Some((common, row)) = other.part {
            self.offer_part(common, row);
        }
    }
}

/// First key above all whole chunks that end after `blocks` of the query's blocks.
fn above_whole(query: &[u8], blocks: usize) -> Vec<u8> {
    let mut bound = query.get(..PREFIX_BYTES + blocks * BLOCK_BYTES).unwrap_or(query).to_vec();
    bound.extend(ONE);
    bound
}

fn shares_spot(key: &[u8], query: &[u8]) -> bool {
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
