//! Lineages packed in memory for lookups of whole contexts, in a fifth of the memory that the same rows take
//! as database pages.
//!
//! A *run* is the chunks of one lineage (`position`) at consecutive depths, each alone at its depth; or one chunk
//! that has siblings, as the first of a context mostly has. Scans fill runs, and the first change to one of their
//! rows drops them, so they never disagree with the database: a scan whose lineage changed in the meantime is not
//! kept. At about 90 bytes per chunk, the lineages of a million chunks fit into
//! [`INDEX_CACHE_BYTES`](crate::limits::INDEX_CACHE_BYTES), and a lookup costs the same however many there are.

use std::{collections::HashMap, sync::Arc};

use kvasir_eviction::{Access, ClassId, EvictionPolicy, Lru, Moment};
use kvasir_types::ProfileHash;
use parking_lot::Mutex;

use super::{position::LineageId, row::IndexRow, truncated::NAME_BYTES};
use crate::limits;

/// Shards of the memory, so that lookups rarely wait for each other.
const SHARDS: usize = 16;
/// Overhead of a run beyond its bytes: entries in a map and in a list, and allocation headers.
const RUN_OVERHEAD_BYTES: u64 = 240;

/// Names a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RunId {
    lineage: LineageId,
    /// Of one chunk that has siblings: its depth, and the beginning of its seq_hash.
    sibling: Option<(u32, [u8; NAME_BYTES])>,
}

impl RunId {
    /// The chunks of a lineage.
    pub(super) fn of_lineage(lineage: LineageId) -> Self {
        Self { lineage, sibling: None }
    }

    /// One chunk of those at a depth of a lineage.
    pub(super) fn of_sibling(lineage: LineageId, depth: u32, name: [u8; NAME_BYTES]) -> Self {
        Self { lineage, sibling: Some((depth, name)) }
    }
}

/// Chunks of one lineage at consecutive depths.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct LineageRun {
    /// Depth of the first.
    first: u32,
    /// How many there are.
    count: u32,
    /// The last one's profile.
    profile: Option<ProfileHash>,
    /// For each: whether its children are next to it, and the packed row.
    bytes: Vec<u8>,
}

impl LineageRun {
    pub(super) fn at(first: u32) -> Self {
        Self { first, ..Self::default() }
    }

    /// The depth after the last one.
    pub(super) fn end(&self) -> u32 {
        self.first + self.count
    }

    pub(super) fn push(&mut self, row: &IndexRow, continues: bool) {
        self.bytes.push(u8::from(continues));
        row.pack(&mut self.bytes, self.profile.as_ref());
        self.profile = Some(row.profile_hash);
        self.count += 1;
    }

    /// The chunks from a depth on, if the run covers it, each with whether its children are next to it.
    pub(super) fn from(&self, depth: u32) -> impl Iterator<Item = (IndexRow, bool)> {
        let skipped = depth.checked_sub(self.first).unwrap_or(self.count);
        // Nothing is unpacked for a walk behind the run, which asks at each step.
        let bytes: &[u8] = if skipped < self.count { &self.bytes } else { &[] };
        let (mut rest, mut before) = (bytes, None);
        let rows = std::iter::from_fn(move || {
            let (&continues, packed) = rest.split_first()?;
            rest = packed;
            let row = IndexRow::unpack(&mut rest, before.as_ref())?;
            before = Some(row.profile_hash);
            Some((row, continues != 0))
        });
        rows.skip(skipped as usize)
    }
}

#[derive(Debug, Default)]
struct Shard {
    runs: HashMap<RunId, Arc<LineageRun>>,
    order: Lru<RunId>,
    /// Number of changes to rows of any of its lineages.
    changes: u64,
}

impl Shard {
    fn remove(&mut self, id: &RunId) {
        if self.runs.remove(id).is_some() {
            self.order.remove(id);
        }
    }
}

/// The number of changes when a scan started.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheVersion(u64);

/// Recently used runs.
#[derive(Debug)]
pub(super) struct LineageCache {
    shards: [Mutex<Shard>; SHARDS],
    shard_bytes_max: u64,
}

impl LineageCache {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { shards: Default::default(), shard_bytes_max: bytes_max / SHARDS as u64 }
    }

    fn shard(&self, lineage: &LineageId) -> &Mutex<Shard> {
        // The lineage's name is the beginning of a hash.
        &self.shards[usize::from(lineage[8]) % SHARDS]
    }

    /// A cached run, and the version that a scan which continues or makes it must present to be kept.
    pub(super) fn get(&self, id: &RunId) -> (Option<Arc<LineageRun>>, CacheVersion) {
        let mut shard = self.shard(&id.lineage).lock();
        let run = shard.runs.get(id).cloned();
        if let Some(run) = &run {
            shard.order.touch(id, &access(run));
        }
        (run, CacheVersion(shard.changes))
    }

    /// Adds a run that was read after `before`, if nothing changed since.
    pub(super) fn offer(&self, id: RunId, mut run: LineageRun, before: CacheVersion) {
        run.bytes.shrink_to_fit();
        let mut guard = self.shard(&id.lineage).lock();
        let shard = &mut *guard;
        if shard.changes != before.0 {
            return;
        }
        shard.order.insert(id, &access(&run));
        shard.runs.insert(id, Arc::new(run));
        while shard.order.bytes() > self.shard_bytes_max {
            let Some(victim) = shard.order.evict(Moment::default()) else { break };
            shard.runs.remove(&victim);
        }
    }

    /// A row of a lineage at some depth has changed, of the chunk whose seq_hash begins with `name`.
    pub(super) fn changed(&self, lineage: LineageId, depth: u32, name: [u8; NAME_BYTES]) {
        let mut shard = self.shard(&lineage).lock();
        shard.changes += 1;
        shard.remove(&RunId::of_sibling(lineage, depth, name));
        // A row after a run extends it, but does not invalidate it.
        let id = RunId::of_lineage(lineage);
        if shard.runs.get(&id).is_some_and(|run| (run.first..run.end()).contains(&depth)) {
            shard.remove(&id);
        }
    }

    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            *shard = Shard { changes: shard.changes + 1, ..Shard::default() };
        }
    }
}

fn access(run: &LineageRun) -> Access<RunId> {
    Access::new(Moment::default(), ClassId::OTHER).bytes(run.bytes.len() as u64 + RUN_OVERHEAD_BYTES)
}

/// The division of an index's memory: bytes of the database's pages, and of runs.
pub(super) fn divided(bytes: u64) -> (u64, u64) {
    let pages = bytes / limits::INDEX_PAGES_DIVISOR;
    (pages, bytes - pages)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::index::{position::RowPosition, row::tests::any_entry, scope::Scope};

    fn position(depth: u32) -> RowPosition {
        (0..depth)
            .fold(RowPosition::under(&[3; 32]), |position, _| position.of_children(&[0; 32].into(), true))
    }

    proptest! {
        #[test]
        fn runs_give_back_what_they_were_given(
            entries in prop::collection::vec((any_entry(), any::<bool>(), any::<bool>()), 0..8), first in 0u32..9, asked in 0u32..20,
        ) {
            let mut run = LineageRun::at(first);
            let mut rows: Vec<(IndexRow, bool)> = Vec::new();
            for (entry, same_profile, continues) in &entries {
                let mut row = IndexRow::clone(&entry.row);
                if let (true, Some((before, _))) = (same_profile, rows.last()) {
                    row.profile_hash = before.profile_hash;
                }
                run.push(&row, *continues);
                rows.push((row, *continues));
            }
            let expected = if asked < first { &[] } else { rows.get((asked - first) as usize..).unwrap_or_default() };
            prop_assert_eq!(&run.from(asked).collect::<Vec<_>>()[..], expected);
            prop_assert_eq!(run.end(), first + rows.len() as u32);
        }
    }

    #[test]
    fn a_change_ends_the_run_that_holds_it_and_scans_that_began_before_it() {
        let scope = Scope::new(&"t".parse().expect("a name"), &[7; 32].into());
        let lineage = position(0).lineage_in(scope);
        let (id, name) = (RunId::of_lineage(lineage), [6; NAME_BYTES]);
        let runs = LineageCache::new(1 << 20);
        let of = |count: u32| {
            let mut run = LineageRun::at(1);
            run.bytes = vec![0; 10];
            run.count = count;
            run
        };
        let (none, before) = runs.get(&id);
        assert!(none.is_none());
        runs.offer(id, of(3), before);
        assert_eq!(runs.get(&id).0.map(|run| run.end()), Some(4));
        // Before it and after it.
        runs.changed(lineage, 0, name);
        runs.changed(lineage, 4, name);
        assert!(runs.get(&id).0.is_some());
        runs.changed(lineage, 3, name);
        let (none, late) = runs.get(&id);
        assert!(none.is_none());
        runs.offer(id, of(3), before);
        assert!(runs.get(&id).0.is_none(), "it was read before the change");
        runs.offer(id, of(2), late);
        assert!(runs.get(&id).0.is_some());
        runs.clear();
        assert!(runs.get(&id).0.is_none());
        runs.offer(id, of(2), late);
        assert!(runs.get(&id).0.is_none());
    }

    #[test]
    fn a_chunk_with_siblings_is_kept_until_its_own_row_changes() {
        let scope = Scope::new(&"t".parse().expect("a name"), &[7; 32].into());
        let lineage = position(0).lineage_in(scope);
        let [name, other] = [[6; NAME_BYTES], [7; NAME_BYTES]];
        let runs = LineageCache::new(1 << 20);
        let id = RunId::of_sibling(lineage, 2, name);
        let run = || LineageRun { first: 2, count: 1, bytes: vec![0; 10], ..LineageRun::default() };
        let (none, before) = runs.get(&id);
        assert!(none.is_none());
        runs.offer(id, run(), before);
        for elsewhere in [RunId::of_lineage(lineage), RunId::of_sibling(lineage, 2, other)] {
            assert!(runs.get(&elsewhere).0.is_none());
        }
        for (depth, name) in [(1, name), (3, name), (2, other)] {
            runs.changed(lineage, depth, name);
        }
        assert!(runs.get(&id).0.is_some());
        runs.changed(lineage, 2, name);
        assert!(runs.get(&id).0.is_none());
        runs.offer(id, run(), before);
        assert!(runs.get(&id).0.is_none(), "it was read before the change");
    }

    #[test]
    fn its_memory_is_bounded() {
        let scope = Scope::new(&"t".parse().expect("a name"), &[7; 32].into());
        let runs = LineageCache::new(16 * 10_000);
        let id = |n: u64| {
            let position = RowPosition::under(blake3::hash(&n.to_le_bytes()).as_bytes());
            RunId::of_lineage(position.lineage_in(scope))
        };
        for n in 0..2_000 {
            let (_, before) = runs.get(&id(n));
            let run = LineageRun { bytes: vec![0; 800], count: 1, ..LineageRun::default() };
            runs.offer(id(n), run, before);
            assert!(runs.get(&id(n)).0.is_some());
        }
        let kept = (0..2_000).filter(|n| runs.get(&id(*n)).0.is_some()).count();
        assert!((100..=160).contains(&kept), "{kept} of at most 160");
    }
}
