//! Writes, removes and finds rows at their positions.

use kvasir_types::{BLOCK_TOKENS, SeqHash};

use super::{
    IndexError,
    database::{HotIndex, Pair},
    key,
    lineage::{Usable, objects_under},
    position::{DEPTH_MAX, PositionCache, RowPosition},
    row::{Decoded, IndexEntry, IndexRow, checksum},
    scope::Scope,
};

/// Adds an object. Must not run concurrently with another insertion or removal.
pub(super) fn insert(
    index: &dyn HotIndex,
    cache: &PositionCache,
    scope: Scope,
    entry: &IndexEntry,
) -> Result<(), IndexError> {
    if !entry.has_all_blocks() {
        return Ok(());
    }
    let row = &*entry.row;
    let position = cache.after(scope, &entry.parent_hash);
    let there = chunks_at(index, scope, position, &row.seq_hash)?;
    let is_alone = there.others.is_empty() && there.own.is_none_or(|(_, alone)| alone);
    let continues = match (there.own, cache.known(scope, row.seq_hash.as_bytes())) {
        (Some((continues, _)), _) => continues,
        (None, Some(children)) => children == position.deeper(),
        (None, None) => {
            let own = key::infos(scope, RowPosition::under(row.seq_hash.as_bytes()));
            there.others.is_empty() && position.depth() < DEPTH_MAX && !is_any(index, &own)?
        }
    };
    cache.record(scope, &row.seq_hash, position.of_children(&row.seq_hash, continues));
    for (key, value) in there.others {
        move_blocks_to_row(index, scope, position, &key, &value)?;
    }
    let put = |key: &[u8], value: &[u8]| {
        // Most added rows are already known: reading is cheaper than writing.
        if index.get(key)?.as_deref() == Some(value) { Ok(()) } else { index.put(key, value) }
    };
    if !is_alone {
        let key = key::matching(scope, position, &entry.blocks, &row.seq_hash);
        put(&key, &checksum(&key, &[]).to_le_bytes())?;
    }
    let key = key::info(scope, position, row);
    put(&key, &row.value(&key, continues, if is_alone { &entry.blocks } else { &[] }))
}

/// The chunks at a position.
struct PositionChunks {
    /// Whether the chunk's children are next to it, and whether its blocks are in its rows; `None` if it is
    /// not present.
    own: Option<(bool, bool)>,
    /// Rows of the first other chunk.
    others: Vec<Pair>,
}

fn chunks_at(
    index: &dyn HotIndex,
    scope: Scope,
    position: RowPosition,
    seq_hash: &SeqHash,
) -> Result<PositionChunks, IndexError> {
    let mut found = PositionChunks { own: None, others: Vec::new() };
    let own = key::infos_of(scope, position, seq_hash);
    index.scan(&own, &mut |key, value| {
        let is_own = key.starts_with(&own);
        if is_own {
            let decoded = IndexRow::decode(key, value)?;
            found.own = Some((decoded.continues, !decoded.blocks.is_empty()));
        }
        Ok(false)
    })?;
    let position = key::infos(scope, position);
    let mut first: Option<SeqHash> = None;
    index.scan(&position, &mut |key, value| {
        if !key.starts_with(&position) {
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

/// When a chunk gains its first sibling, moves its block hashes into a separate row.
fn move_blocks_to_row(
    index: &dyn HotIndex,
    scope: Scope,
    position: RowPosition,
    key: &[u8],
    value: &[u8],
) -> Result<(), IndexError> {
    let Decoded { row, continues, blocks } = IndexRow::decode(key, value)?;
    if blocks.is_empty() {
        return Ok(());
    }
    let matching = key::matching(scope, position, blocks, &row.seq_hash);
    index.put(&matching, &checksum(&matching, &[]).to_le_bytes())?;
    index.put(key, &row.value(key, continues, &[]))
}

fn is_any(index: &dyn HotIndex, prefix: &[u8]) -> Result<bool, IndexError> {
    Ok(index.at_or_above(prefix)?.is_some_and(|(key, _)| key.starts_with(prefix)))
}

/// Removes an object, and with the last object of its chunk the row of the chunk's blocks; if its position is
/// no longer known, it is removed when a walk finds it.
pub(super) fn remove(
    index: &dyn HotIndex,
    cache: &PositionCache,
    scope: Scope,
    entry: &IndexEntry,
) -> Result<(), IndexError> {
    let row = &*entry.row;
    for position in [cache.after(scope, &entry.parent_hash), RowPosition::under(&entry.parent_hash)] {
        index.remove(&key::info(scope, position, row))?;
        if !is_any(index, &key::infos_of(scope, position, &row.seq_hash))? {
            index.remove(&key::matching(scope, position, &entry.blocks, &row.seq_hash))?;
        }
    }
    Ok(())
}

/// Removes the rows that are really stale among those that a walk found: it may have read one while it was
/// being written, or one of an object that has returned since. Must not run concurrently with an insertion or
/// removal.
pub(super) fn sweep(index: &dyn HotIndex, stale: &[Vec<u8>], usable: &Usable<'_>) -> Result<(), IndexError> {
    // The rows of a chunk's objects come before the one that matches its blocks.
    for key in stale {
        let is_stale = if key::is_info(key) {
            match index.get(key)? {
                Some(value) => !usable.has(&IndexRow::decode(key, &value)?.row),
                None => false,
            }
        } else {
            match key::infos_of_matching(key) {
                Some(objects) => !is_any(index, &objects)?,
                None => true,
            }
        };
        if is_stale {
            index.remove(key)?;
        }
    }
    Ok(())
}

/// Maximum number of candidates for a longer sibling.
const SIBLINGS_MAX: usize = 16;

/// A chunk at the same position that shares all whole blocks of `entry` and has more tokens. Its head must
/// confirm that it contains all of the entry's tokens.
pub(super) fn longer_sibling(
    index: &dyn HotIndex,
    cache: &PositionCache,
    scope: Scope,
    entry: &IndexEntry,
) -> Result<Option<IndexRow>, IndexError> {
    let whole_blocks = entry.row.token_count as usize / BLOCK_TOKENS;
    let shared = entry.blocks.get(..whole_blocks).unwrap_or_default();
    for position in [cache.after(scope, &entry.parent_hash), RowPosition::under(&entry.parent_hash)] {
        let mut prefix = key::matches(scope, position);
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
        let found = objects_under(index, position, &objects, &Usable::of(&|_| true))?;
        if let Some(found) = found.filter(|found| found.row.token_count > entry.row.token_count) {
            return Ok(Some(found.row));
        }
    }
    Ok(None)
}

/// Whether a child of `seq_hash` is known.
pub(super) fn has_children(
    index: &dyn HotIndex,
    cache: &PositionCache,
    scope: Scope,
    seq_hash: &SeqHash,
) -> Result<bool, IndexError> {
    let hash = seq_hash.as_bytes();
    Ok(is_any(index, &key::infos(scope, cache.after(scope, hash)))?
        || is_any(index, &key::infos(scope, RowPosition::under(hash)))?)
}

/// A row that matches blocks contains only its checksum.
pub(super) fn check_matching(key: &[u8], value: &[u8]) -> Result<(), IndexError> {
    if value == checksum(key, &[]).to_le_bytes() {
        return Ok(());
    }
    Err(IndexError::Corrupt { what: "row that matches blocks".to_owned() })
}
