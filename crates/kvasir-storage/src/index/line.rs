//! Reading objects: along a line, and those of one chunk.

use kvasir_types::SeqHash;

use super::{
    HotIndex, IndexError, IndexRow, Scope,
    key::{self, NAME_BYTES, PREFIX_BYTES},
    place::Spot,
    row::Decoded,
    runs::{Run, Runs},
    walk::prefer,
};

/// A chunk's preferred object, and where the chunk's children may lie: beside it, and under its own name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Child {
    pub(super) row: IndexRow,
    pub(super) children: [Option<Spot>; 2],
}

impl Child {
    pub(super) fn new(spot: Spot, row: IndexRow, continues: bool) -> Self {
        let own = Spot::under(row.seq_hash.as_bytes());
        let beside = spot.of_children(&row.seq_hash, continues);
        Self { children: [Some(beside), continues.then_some(own)], row }
    }
}

/// Visits the chunks from `spot` on along its line, one per depth, while `visit` says so; ends where one has siblings.
/// Of those the first is visited, unless `alone` is asked for.
pub(super) fn along(
    index: &dyn HotIndex,
    scope: Scope,
    mut spot: Spot,
    alone: bool,
    visit: &mut dyn FnMut(Child) -> bool,
) -> Result<(), IndexError> {
    let Some(runs) = index.runs() else {
        return scanned(index, scope, spot, alone, &mut |child, _, _| visit(child));
    };
    let line = Runs::name(scope, spot);
    let (known, before) = runs.get(&line);
    let depth = spot.depth();
    for (row, continues) in known.iter().flat_map(|run| run.from(depth)) {
        let beside = spot.of_children(&row.seq_hash, continues);
        if !visit(Child::new(spot, row, continues)) || !continues {
            return Ok(());
        }
        spot = beside;
    }
    // What follows is read, and kept behind what is known.
    let mut run = match known {
        Some(run) if run.end() == spot.depth() => Run::clone(&run),
        _ => Run::at(spot.depth()),
    };
    let known = run.end();
    scanned(index, scope, spot, alone, &mut |child, continues, has_siblings| {
        if !has_siblings {
            run.push(&child.row, continues);
        }
        visit(child)
    })?;
    if run.end() > known {
        runs.offer(line, run, before);
    }
    Ok(())
}

/// As [`along`], from the database itself. `visit` is also told whether the chunk's children lie beside it, and whether it
/// has siblings.
fn scanned(
    index: &dyn HotIndex,
    scope: Scope,
    mut spot: Spot,
    alone: bool,
    visit: &mut dyn FnMut(Child, bool, bool) -> bool,
) -> Result<(), IndexError> {
    let mut prefix = key::infos(scope, spot);
    let mut waiting: Option<(Child, bool)> = None;
    let mut has_siblings = false;
    index.scan(&prefix.clone(), &mut |key, value| {
        let is_deeper = !key.starts_with(&prefix);
        if is_deeper {
            // The depth before is complete. On to the next one, where this row must be.
            let Some((child, continues)) = waiting.take() else { return Ok(false) };
            spot = spot.of_children(&child.row.seq_hash, continues);
            prefix = key::infos(scope, spot);
            if !visit(child, continues, false) || !continues || !key.starts_with(&prefix) {
                return Ok(false);
            }
        }
        let Decoded { row, continues, .. } = IndexRow::decode(key, value)?;
        match &mut waiting {
            None => waiting = Some((Child::new(spot, row, continues), continues)),
            Some((child, _)) if child.row.seq_hash != row.seq_hash => has_siblings = true,
            Some((child, _)) if prefer(&row, &child.row) => child.row = row,
            Some(_) => {}
        }
        Ok(!has_siblings)
    })?;
    if let Some((child, continues)) = waiting.filter(|_| !(has_siblings && alone)) {
        visit(child, continues, has_siblings);
    }
    Ok(())
}

/// The preferred usable object of a chunk at a spot; those that are not usable are removed on the way.
pub(super) fn objects(
    index: &dyn HotIndex,
    scope: Scope,
    spot: Spot,
    seq_hash: &SeqHash,
    usable: &dyn Fn(&IndexRow) -> bool,
) -> Result<Option<Child>, IndexError> {
    let prefix = key::infos_of(scope, spot, seq_hash);
    Ok(objects_under(index, spot, &prefix, usable)?.filter(|child| child.row.seq_hash == *seq_hash))
}

/// As [`objects`], of the chunk whose rows begin with `prefix`.
pub(super) fn objects_under(
    index: &dyn HotIndex,
    spot: Spot,
    prefix: &[u8],
    usable: &dyn Fn(&IndexRow) -> bool,
) -> Result<Option<Child>, IndexError> {
    debug_assert_eq!(prefix.len(), PREFIX_BYTES + NAME_BYTES, "names one chunk");
    let (mut best, mut dead): (Option<Child>, Vec<Vec<u8>>) = (None, Vec::new());
    index.scan(prefix, &mut |key, value| {
        if !key.starts_with(prefix) {
            return Ok(false);
        }
        let Decoded { row, continues, .. } = IndexRow::decode(key, value)?;
        if !usable(&row) {
            dead.push(key.to_vec());
        } else if best.as_ref().is_none_or(|best| prefer(&row, &best.row)) {
            best = Some(Child::new(spot, row, continues));
        }
        Ok(true)
    })?;
    dead.iter().try_for_each(|key| index.remove(key))?;
    Ok(best)
}
