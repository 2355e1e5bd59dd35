//! Where rows lie, so that a context's chunks are neighbours: one lookup of 64 chunks is one seek and a short scan,
//! and touches a few pages of a large database instead of 64.
//!
//! A *spot* is a line and a depth on it. The chunks after a parent all lie at one spot. The first child to come goes on
//! along its parent's line, one deeper; a child with an elder sibling, or whose parent is unknown, begins a line of its
//! own, named after the parent. So the rows of a conversation follow each other, and where a thousand conversations
//! share a beginning, each is together behind it.
//!
//! Nothing rests on it: a chunk whose spot is not found is unknown, and the store is asked.

use kvasir_types::{BLOCK_TOKENS, SeqHash};

use super::{
    HotIndex, IndexEntry, IndexError, IndexRow, Scope,
    hot::Pair,
    key,
    row::{BLOCKS_MAX, Decoded, checksum},
};
use crate::{cache::BoundedMap, limits};

/// Depths end here; whoever is deeper begins a new line.
const DEPTH_MAX: u32 = (1 << 24) - 1;

/// A place in the order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    line: [u8; 8],
    depth: u32,
}

impl Spot {
    pub(super) const BYTES: usize = 8 + 3;

    /// Where the children of a chunk lie that has a line of its own, or is a root.
    pub(super) fn under(parent_hash: &[u8; 32]) -> Self {
        Self { line: *key::name(parent_hash), depth: 0 }
    }

    pub(super) fn line(&self) -> &[u8; 8] {
        &self.line
    }

    pub(super) fn depth(self) -> u32 {
        self.depth
    }

    fn deeper(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }

    /// Where the children of a chunk lie that is at this spot.
    pub(super) fn of_children(self, seq_hash: &SeqHash, continues: bool) -> Self {
        if continues { self.deeper() } else { Self::under(seq_hash.as_bytes()) }
    }

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let [_, depth @ ..] = self.depth.to_be_bytes();
        bytes[..8].copy_from_slice(&self.line);
        bytes[8..].copy_from_slice(&depth);
        bytes
    }
}

/// Where the children of what was met lately lie. Bounded, and lost with the process: whoever is not in it begins a line.
#[derive(Debug)]
pub(super) struct Lines(BoundedMap<(Scope, [u8; 32]), Spot>);

impl Lines {
    pub(super) fn new() -> Self {
        Self(BoundedMap::new(limits::INDEX_LINES_MAX, None))
    }

    fn known(&self, scope: Scope, hash: &[u8; 32]) -> Option<Spot> {
        self.0.get(&(scope, *hash))
    }

    /// Where new children of `parent_hash` go.
    pub(super) fn after(&self, scope: Scope, parent_hash: &[u8; 32]) -> Spot {
        self.known(scope, parent_hash).unwrap_or(Spot::under(parent_hash))
    }

    /// Takes note of where the children of what ends with `hash` lie. The first to say so is right.
    pub(super) fn learn(&self, scope: Scope, hash: &SeqHash, children: Spot) {
        if self.known(scope, hash.as_bytes()).is_none() {
            self.0.insert((scope, *hash.as_bytes()), children);
        }
    }
}

/// Takes an object in. Not at once with another insertion or removal.
pub(super) fn insert(
    index: &dyn HotIndex,
    lines: &Lines,
    scope: Scope,
    entry: &IndexEntry,
) -> Result<(), IndexError> {
    let row = &*entry.row;
    let is_impossible = entry.blocks.len() != row.block_count() || entry.blocks.len() > BLOCKS_MAX;
    if entry.blocks.is_empty() || is_impossible {
        return Ok(());
    }
    let spot = lines.after(scope, &entry.parent_hash);
    let there = residents(index, scope, spot, &row.seq_hash)?;
    let is_alone = there.others.is_empty() && there.own.is_none_or(|(_, alone)| alone);
    let continues = match (there.own, lines.known(scope, row.seq_hash.as_bytes())) {
        (Some((continues, _)), _) => continues,
        (None, Some(children)) => children == spot.deeper(),
        (None, None) => {
            let own = key::infos(scope, Spot::under(row.seq_hash.as_bytes()));
            there.others.is_empty() && spot.depth < DEPTH_MAX && !is_any(index, &own)?
        }
    };
    lines.learn(scope, &row.seq_hash, spot.of_children(&row.seq_hash, continues));
    for (key, value) in there.others {
        part_from_blocks(index, scope, spot, &key, &value)?;
    }
    let put = |key: &[u8], value: &[u8]| {
        // Most of what is taken in is known: reading is cheaper than writing.
        if index.get(key)?.as_deref() == Some(value) { Ok(()) } else { index.put(key, value) }
    };
    if !is_alone {
        let key = key::matching(scope, spot, &entry.blocks, &row.seq_hash);
        put(&key, &checksum(&key, &[]).to_le_bytes())?;
    }
    let key = key::info(scope, spot, row);
    put(&key, &row.value(&key, continues, if is_alone { &entry.blocks } else { &[] }))
}

/// Who is at a spot.
struct Residents {
    /// Whether the chunk's children lie beside it, and whether its blocks are in its rows; where it is there.
    own: Option<(bool, bool)>,
    /// Rows of the first other chunk.
    others: Vec<Pair>,
}

fn residents(
    index: &dyn HotIndex,
    scope: Scope,
    spot: Spot,
    seq_hash: &SeqHash,
) -> Result<Residents, IndexError> {
    let mut found = Residents { own: None, others: Vec::new() };
    let own = key::infos_of(scope, spot, seq_hash);
    index.scan(&own, &mut |key, value| {
        let is_own = key.starts_with(&own);
        if is_own {
            let decoded = IndexRow::decode(key, value)?;
            found.own = Some((decoded.continues, !decoded.blocks.is_empty()));
        }
        Ok(false)
    })?;
    let spot = key::infos(scope, spot);
    let mut first: Option<SeqHash> = None;
    index.scan(&spot, &mut |key, value| {
        if !key.starts_with(&spot) {
            return Ok(false);
        }
        let seq = IndexRow::decode(key, value)?.row.seq_hash;
        if seq != *seq_hash && *first.get_or_insert(seq) == seq {
            found.others.push((key.to_vec(), value.to_vec()));
        }
        Ok(first.is_none_or(|first| first == seq || seq == *seq_hash))
    })?;
    Ok(found)
}

/// Gives the blocks of a chunk that is alone no more a row of their own.
fn part_from_blocks(
    index: &dyn HotIndex,
    scope: Scope,
    spot: Spot,
    key: &[u8],
    value: &[u8],
) -> Result<(), IndexError> {
    let Decoded { row, continues, blocks } = IndexRow::decode(key, value)?;
    if blocks.is_empty() {
        return Ok(());
    }
    let matching = key::matching(scope, spot, blocks, &row.seq_hash);
    index.put(&matching, &checksum(&matching, &[]).to_le_bytes())?;
    index.put(key, &row.value(key, continues, &[]))
}

fn is_any(index: &dyn HotIndex, prefix: &[u8]) -> Result<bool, IndexError> {
    Ok(index.at_or_above(prefix)?.is_some_and(|(key, _)| key.starts_with(prefix)))
}

/// Removes an object, and with the last one of its chunk what matches the chunk's blocks; where its spot is not known any
/// more, it goes when it is met.
pub(super) fn remove(
    index: &dyn HotIndex,
    lines: &Lines,
    scope: Scope,
    entry: &IndexEntry,
) -> Result<(), IndexError> {
    let row = &*entry.row;
    for spot in [lines.after(scope, &entry.parent_hash), Spot::under(&entry.parent_hash)] {
        index.remove(&key::info(scope, spot, row))?;
        if !is_any(index, &key::infos_of(scope, spot, &row.seq_hash))? {
            index.remove(&key::matching(scope, spot, &entry.blocks, &row.seq_hash))?;
        }
    }
    Ok(())
}

/// Candidates for a longer sibling that are looked at.
const SIBLINGS_MAX: usize = 16;

/// A chunk at the same spot that shares all whole blocks of `entry` and has more tokens. Whether it holds all of its
/// tokens is for its head to say.
pub(super) fn longer_sibling(
    index: &dyn HotIndex,
    lines: &Lines,
    scope: Scope,
    entry: &IndexEntry,
) -> Result<Option<IndexRow>, IndexError> {
    let whole_blocks = entry.row.token_count as usize / BLOCK_TOKENS;
    let shared = entry.blocks.get(..whole_blocks).unwrap_or_default();
    for spot in [lines.after(scope, &entry.parent_hash), Spot::under(&entry.parent_hash)] {
        let mut prefix = key::matches(scope, spot);
        prefix.extend(shared.iter().flatten());
        let (mut longest, mut met): (Option<Vec<u8>>, usize) = (None, 0);
        index.scan(&prefix, &mut |key, _| {
            let is_candidate = key.starts_with(&prefix) && met < SIBLINGS_MAX;
            met += 1;
            if is_candidate && longest.as_ref().is_none_or(|longest| key.len() > longest.len()) {
                longest = Some(key.to_vec());
            }
            Ok(is_candidate)
        })?;
        let Some(objects) = longest.and_then(|key| key::infos_of_matching(&key)) else { continue };
        let found = super::line::objects_under(index, spot, &objects, &|_| true)?;
        if let Some(found) = found.filter(|found| found.row.token_count > entry.row.token_count) {
            return Ok(Some(found.row));
        }
    }
    Ok(None)
}

/// Whether a chunk is known that follows `seq_hash`.
pub(super) fn has_children(
    index: &dyn HotIndex,
    lines: &Lines,
    scope: Scope,
    seq_hash: &SeqHash,
) -> Result<bool, IndexError> {
    let hash = seq_hash.as_bytes();
    Ok(is_any(index, &key::infos(scope, lines.after(scope, hash)))?
        || is_any(index, &key::infos(scope, Spot::under(hash)))?)
}

/// A row that matches blocks has nothing but its checksum.
pub(super) fn check_matching(key: &[u8], value: &[u8]) -> Result<(), IndexError> {
    if value == checksum(key, &[]).to_le_bytes() {
        return Ok(());
    }
    Err(IndexError::Corrupt { what: "row that matches blocks".to_owned() })
}
