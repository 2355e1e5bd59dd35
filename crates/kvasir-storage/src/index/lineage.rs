//! Reads objects: those of a lineage in order, and those of one chunk.

use std::cell::RefCell;

use kvasir_types::SeqHash;

use super::{
    IndexError,
    database::HotIndex,
    key::{self, PREFIX_BYTES},
    packed_lineage::{LineageRun, RunId},
    position::RowPosition,
    row::{Decoded, IndexRow, prefer},
    scope::Scope,
    truncated::{NAME_BYTES, name},
};

/// The objects that a walk may return, and the rows of others that it found.
pub(super) struct Usable<'a> {
    is_usable: &'a dyn Fn(&IndexRow) -> bool,
    stale: RefCell<Vec<Vec<u8>>>,
}

impl<'a> Usable<'a> {
    pub(super) fn of(is_usable: &'a dyn Fn(&IndexRow) -> bool) -> Self {
        Self { is_usable, stale: RefCell::default() }
    }

    pub(super) fn has(&self, row: &IndexRow) -> bool {
        (self.is_usable)(row)
    }

    /// Records the key of a row that appears to be stale.
    pub(super) fn note_stale(&self, key: &[u8]) {
        self.stale.borrow_mut().push(key.to_vec());
    }

    /// How many keys are recorded.
    fn stale_count(&self) -> usize {
        self.stale.borrow().len()
    }

    /// The recorded keys.
    pub(super) fn take_stale(&self) -> Vec<Vec<u8>> {
        self.stale.take()
    }
}

/// A chunk's preferred object, and where the chunk's children may be: next to it, and under its own name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Child {
    pub(super) row: IndexRow,
    pub(super) children: [Option<RowPosition>; 2],
}

impl Child {
    pub(super) fn new(position: RowPosition, row: IndexRow, continues: bool) -> Self {
        let own = RowPosition::under(row.seq_hash.as_bytes());
        let beside = position.of_children(&row.seq_hash, continues);
        Self { children: [Some(beside), continues.then_some(own)], row }
    }

    /// Whether its children are next to it.
    fn continues(&self) -> bool {
        self.children[1].is_some()
    }
}

/// Visits the chunks from `position` along its lineage, one per depth, while `visit` returns true; ends at
/// siblings. The first sibling is visited, unless `alone` is requested. Returns the position of siblings, if it ended there.
pub(super) fn along(
    index: &dyn HotIndex,
    scope: Scope,
    mut position: RowPosition,
    alone: bool,
    visit: &mut dyn FnMut(Child) -> bool,
) -> Result<Option<RowPosition>, IndexError> {
    let Some(cache) = index.lineages() else {
        return scanned(index, scope, position, alone, &mut |child, _, _| visit(child));
    };
    let lineage = RunId::of_lineage(position.lineage_in(scope));
    let (known, before) = cache.get(&lineage);
    let depth = position.depth();
    for (row, continues) in known.iter().flat_map(|run| run.from(depth)) {
        let beside = position.of_children(&row.seq_hash, continues);
        if !visit(Child::new(position, row, continues)) || !continues {
            return Ok(None);
        }
        position = beside;
    }
    // Read the rest, and keep it after the known part.
    let mut run = match known {
        Some(run) if run.end() == position.depth() => LineageRun::clone(&run),
        _ => LineageRun::at(position.depth()),
    };
    let known = run.end();
    let siblings = scanned(index, scope, position, alone, &mut |child, continues, has_siblings| {
        if !has_siblings {
            run.push(&child.row, continues);
        }
        visit(child)
    })?;
    if run.end() > known {
        cache.offer(lineage, run, before);
    }
    Ok(siblings)
}

/// Like [`along`], from the database itself. `visit` also learns whether the chunk's children are next to it,
/// and whether it has siblings.
fn scanned(
    index: &dyn HotIndex,
    scope: Scope,
    mut position: RowPosition,
    alone: bool,
    visit: &mut dyn FnMut(Child, bool, bool) -> bool,
) -> Result<Option<RowPosition>, IndexError> {
    let mut prefix = key::infos(scope, position);
    let mut waiting: Option<(Child, bool)> = None;
    let mut has_siblings = false;
    index.scan(&prefix.clone(), &mut |key, value| {
        let is_deeper = !key.starts_with(&prefix);
        if is_deeper {
            // The previous depth is complete. Continue with the next one, where this row must be.
            let Some((child, continues)) = waiting.take() else { return Ok(false) };
            position = position.of_children(&child.row.seq_hash, continues);
            prefix = key::infos(scope, position);
            if !visit(child, continues, false) || !continues || !key.starts_with(&prefix) {
                return Ok(false);
            }
        }
        let Decoded { row, continues, .. } = IndexRow::decode(key, value)?;
        match &mut waiting {
            None => waiting = Some((Child::new(position, row, continues), continues)),
            Some((child, _)) if child.row.seq_hash != row.seq_hash => has_siblings = true,
            Some((child, _)) if prefer(&row, &child.row) => child.row = row,
            Some(_) => {}
        }
        Ok(!has_siblings)
    })?;
    if let Some((child, continues)) = waiting.filter(|_| !(has_siblings && alone)) {
        visit(child, continues, has_siblings);
    }
    Ok(has_siblings.then_some(position))
}

/// The preferred usable object of a chunk at a position.
pub(super) fn objects(
    index: &dyn HotIndex,
    scope: Scope,
    position: RowPosition,
    seq_hash: &SeqHash,
    usable: &Usable<'_>,
) -> Result<Option<Child>, IndexError> {
    let found = sibling(index, scope, position, name(seq_hash.as_bytes()), usable)?;
    Ok(found.filter(|child| child.row.seq_hash == *seq_hash))
}

/// Like [`objects`], of the chunk whose seq_hash begins with `name`. Kept in memory: [`along`] keeps those without siblings.
pub(super) fn sibling(
    index: &dyn HotIndex,
    scope: Scope,
    position: RowPosition,
    name: &[u8; NAME_BYTES],
    usable: &Usable<'_>,
) -> Result<Option<Child>, IndexError> {
    if let Some(child) = cached_sibling(index, scope, position, name, usable) {
        return Ok(Some(child));
    }
    let id = sibling_id(scope, position, name);
    let cache = index.lineages().map(|cache| (cache, cache.get(&id).1));
    let stale = usable.stale_count();
    let found = objects_under(index, position, &key::infos_of_name(scope, position, name), usable)?;
    // Where an object is unusable, another one is found that is not preferred once that changes.
    if let (Some((cache, before)), Some(child)) = (cache, &found)
        && usable.stale_count() == stale
    {
        let mut run = LineageRun::at(position.depth());
        run.push(&child.row, child.continues());
        cache.offer(id, run, before);
    }
    Ok(found)
}

/// Like [`sibling`], if it is in memory.
pub(super) fn cached_sibling(
    index: &dyn HotIndex,
    scope: Scope,
    position: RowPosition,
    name: &[u8; NAME_BYTES],
    usable: &Usable<'_>,
) -> Option<Child> {
    let (run, _) = index.lineages()?.get(&sibling_id(scope, position, name));
    let (row, continues) = run?.from(position.depth()).next()?;
    usable.has(&row).then(|| Child::new(position, row, continues))
}

fn sibling_id(scope: Scope, position: RowPosition, name: &[u8; NAME_BYTES]) -> RunId {
    RunId::of_sibling(position.lineage_in(scope), position.depth(), *name)
}

/// All usable objects of a chunk at a position.
pub(super) fn all_objects(
    index: &dyn HotIndex,
    scope: Scope,
    position: RowPosition,
    seq_hash: &SeqHash,
    usable: &Usable<'_>,
) -> Result<Vec<IndexRow>, IndexError> {
    let mut rows = Vec::new();
    usable_under(index, &key::infos_of(scope, position, seq_hash), usable, &mut |row, _| {
        if row.seq_hash == *seq_hash {
            rows.push(row);
        }
    })?;
    Ok(rows)
}

/// Like [`objects`], for the chunk whose rows begin with `prefix`, from the database itself.
pub(super) fn objects_under(
    index: &dyn HotIndex,
    position: RowPosition,
    prefix: &[u8],
    usable: &Usable<'_>,
) -> Result<Option<Child>, IndexError> {
    debug_assert_eq!(prefix.len(), PREFIX_BYTES + NAME_BYTES, "names one chunk");
    let mut best: Option<Child> = None;
    usable_under(index, prefix, usable, &mut |row, continues| {
        if best.as_ref().is_none_or(|best| prefer(&row, &best.row)) {
            best = Some(Child::new(position, row, continues));
        }
    })?;
    Ok(best)
}

/// Takes the usable rows that begin with `prefix`, each with whether its chunk's children are next to it, and
/// records the others as stale.
fn usable_under(
    index: &dyn HotIndex,
    prefix: &[u8],
    usable: &Usable<'_>,
    take: &mut dyn FnMut(IndexRow, bool),
) -> Result<(), IndexError> {
    index.scan(prefix, &mut |key, value| {
        if !key.starts_with(prefix) {
            return Ok(false);
        }
        let Decoded { row, continues, .. } = IndexRow::decode(key, value)?;
        if usable.has(&row) {
            take(row, continues);
        } else {
            usable.note_stale(key);
        }
        Ok(true)
    })
}
