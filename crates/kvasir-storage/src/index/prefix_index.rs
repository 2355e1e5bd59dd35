//! This replica's knowledge of chunk objects: the hot index, and the caches that must change with it.
//!
//! One rule connects them: **an object that is known to be gone is not offered**, whatever a row or a late
//! journal batch says. A walk that finds its row removes it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kvasir_eviction::ClassId;
use kvasir_store::cache::BoundedMap;
use kvasir_types::{ObjectDigest, SeqHash};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Index, IndexEntry, IndexRow, RemovedRow, Scope, Search, Walk};
use crate::limits;

/// The last use of an object of the cold tier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastUse {
    pub(crate) at: Instant,
    pub(crate) class: ClassId,
    /// Uses so far, this one included.
    pub(crate) uses: u32,
}

/// Removals that were dropped from memory, but may still have an index row.
#[derive(Debug, Default)]
struct Forgotten {
    /// How often removals were dropped.
    drops: u64,
    /// The last place in the order of removals that one of them may have.
    last: u64,
}

/// The hot index and its accompanying caches.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    index: Index,
    /// Known objects, so that a ranged read or a level needs no second request.
    rows: BoundedMap<(Scope, ObjectDigest), Arc<IndexRow>>,
    /// Recent entries of the index, so that they can be removed again.
    entries: BoundedMap<(Scope, ObjectDigest), Arc<IndexEntry>>,
    /// Chunks that were recently missing in the store; `None` without a time to live.
    missing: Option<BoundedMap<(Scope, SeqHash), ()>>,
    /// Objects known to be gone, and the number of removals at that time.
    gone: BoundedMap<(Scope, ObjectDigest), u64>,
    /// Objects that the store listed without a tombstone, and the number of removals before the listing.
    listed: BoundedMap<(Scope, ObjectDigest), u64>,
    /// Opaque objects whose writers were acknowledged, as far as this replica knows: they no longer give way.
    acknowledged: BoundedMap<(Scope, ObjectDigest), ()>,
    removals: AtomicU64,
    /// Held while an object changes between gone and offered: no removal falls between a check and its
    /// decision, and none leaves a row that outlives the memory of it.
    turning: Mutex<Forgotten>,
    /// When and by which request class objects were last found or read; only if the cold tier has a capacity.
    uses: Option<BoundedMap<(Scope, ObjectDigest), LastUse>>,
}

impl PrefixIndex {
    pub(crate) fn new(index: Index, negative_ttl: Duration, track_uses: bool) -> Self {
        let missing = || BoundedMap::new(limits::NEGATIVE_ENTRIES_MAX, Some(negative_ttl));
        Self {
            index,
            rows: BoundedMap::new(limits::CATALOG_ENTRIES_MAX, None),
            entries: BoundedMap::new(limits::INDEX_ENTRIES_MAX, None),
            missing: (!negative_ttl.is_zero()).then(missing),
            gone: BoundedMap::new(limits::GONE_ENTRIES_MAX, None),
            listed: BoundedMap::new(limits::GONE_ENTRIES_MAX, None),
            acknowledged: BoundedMap::new(limits::ACKNOWLEDGED_ENTRIES_MAX, None),
            removals: AtomicU64::new(0),
            turning: Mutex::default(),
            uses: track_uses.then(|| BoundedMap::new(limits::USES_MAX, None)),
        }
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// The longest match of `blocks` after `parent`, of objects that are not known to be gone.
    pub(crate) fn walk(&self, scope: Scope, parent: &[u8; 32], blocks: &[SeqHash], search: Search) -> Walk {
        self.index.walk(scope, parent, blocks, search, &|row| !self.is_gone(scope, row.object_digest))
    }

    /// Like [`walk`](Self::walk), for whole chunks, each the child of the previous one.
    pub(crate) fn walk_chunks(&self, scope: Scope, parent: &[u8; 32], chunks: &[SeqHash]) -> Vec<IndexRow> {
        self.index.walk_chunks(scope, parent, chunks, &|row| !self.is_gone(scope, row.object_digest))
    }

    /// The objects of an opaque object's name that are not known to be gone.
    pub(crate) fn opaque_objects(&self, scope: Scope, seq_hash: &SeqHash) -> Vec<IndexRow> {
        self.index.opaque_objects(scope, seq_hash, &|row| !self.is_gone(scope, row.object_digest))
    }

    fn clear_gone(&self, scope: Scope, object: &ObjectDigest) {
        self.gone.remove(&(scope, *object));
        self.index.clear_removed(scope, object);
    }

    /// Adds an object that the store has and that had no tombstone when it was checked, which began when
    /// [`removals`](Self::removals) was `before`. If it was removed since then, the removal may be younger
    /// than the check, and is kept.
    pub(crate) fn insert_listed(&self, scope: Scope, entry: &Arc<IndexEntry>, before: u64) {
        let object = entry.row.object_digest;
        let mut forgotten = self.turning.lock();
        if self.is_gone(scope, object) {
            let remembered = self.gone.get(&(scope, object));
            let drops = self.gone.dropped();
            if drops > forgotten.drops {
                *forgotten = Forgotten { drops, last: self.removals() };
            }
            // If only a row records its removal, that was before this process started, or was dropped from
            // memory.
            if remembered.unwrap_or(forgotten.last) > before {
                return;
            }
            self.clear_gone(scope, &object);
        }
        // An earlier query may be answered later.
        let listed = self.listed.get(&(scope, object)).map_or(before, |listed| listed.max(before));
        self.listed.insert((scope, object), listed);
        self.take_in(scope, entry);
    }

    /// Adds an object that was read, or that another replica stored, unless it is known to be gone: an
    /// earlier removal wins.
    pub(crate) fn insert_unless_gone(&self, scope: Scope, entry: &Arc<IndexEntry>) {
        let _turning = self.turning.lock();
        if !self.is_gone(scope, entry.row.object_digest) {
            self.take_in(scope, entry);
        }
    }

    /// Records that the writer of an opaque object was acknowledged.
    pub(crate) fn note_acknowledged(&self, scope: Scope, object: ObjectDigest) {
        self.acknowledged.insert((scope, object), ());
    }

    /// Whether its writer is known to be acknowledged.
    pub(crate) fn is_acknowledged(&self, scope: Scope, object: ObjectDigest) -> bool {
        self.acknowledged.contains(&(scope, object))
    }

    fn take_in(&self, scope: Scope, entry: &Arc<IndexEntry>) {
        self.index.insert(scope, entry);
        if let Some(missing) = &self.missing {
            missing.remove(&(scope, entry.row.seq_hash));
        }
        self.entries.insert((scope, entry.row.object_digest), Arc::clone(entry));
    }

    /// Removes an object that is being removed from the store, and keeps a row of that until its name may be
    /// used again.
    pub(crate) fn remove_for_good(&self, scope: Scope, object: ObjectDigest, row: RemovedRow) {
        let _turning = self.turning.lock();
        let at = self.next_removal();
        self.remove_at(scope, object, row, at);
    }

    /// Like [`remove_for_good`](Self::remove_for_good), for a removal that was durable in the bucket when
    /// [`next_removal`](Self::next_removal) returned `heard`. If the store has listed the object since then
    /// without a tombstone, the removal concerns an earlier object of this name.
    pub(crate) fn remove_heard(&self, scope: Scope, object: ObjectDigest, row: RemovedRow, heard: u64) {
        let _turning = self.turning.lock();
        if self.listed.get(&(scope, object)).is_none_or(|listed| listed < heard) {
            self.remove_at(scope, object, row, heard);
        }
    }

    fn remove_at(&self, scope: Scope, object: ObjectDigest, row: RemovedRow, at: u64) {
        let before = self.gone.get(&(scope, object)).unwrap_or(0);
        self.note_gone(scope, object, at.max(before));
        self.index.put_removed(scope, &object, row);
        self.take_out(scope, object);
    }

    /// Removes an object that is gone or damaged. Only this process remembers it: it may be written again
    /// under its name.
    pub(crate) fn remove(&self, scope: Scope, object: ObjectDigest) {
        let _turning = self.turning.lock();
        let at = self.next_removal();
        self.note_gone(scope, object, at);
        self.take_out(scope, object);
    }

    fn note_gone(&self, scope: Scope, object: ObjectDigest, at: u64) {
        // First: what the index does not know to be gone is offered.
        self.index.note_gone(&object);
        self.gone.insert((scope, object), at);
    }

    /// A place in the order of removals: after all earlier removals and listings.
    pub(crate) fn next_removal(&self) -> u64 {
        self.removals.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn take_out(&self, scope: Scope, object: ObjectDigest) {
        if let Some(entry) = self.entries.get(&(scope, object)) {
            self.index.remove(scope, &entry);
            self.entries.remove(&(scope, object));
        }
        self.rows.remove(&(scope, object));
    }

    /// The last place in the order of removals.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// Whether an object is known to be gone. A walk asks for each row that it meets, and mostly learns it without a lock.
    pub(crate) fn is_gone(&self, scope: Scope, object: ObjectDigest) -> bool {
        self.index.may_be_gone(&object)
            && (self.gone.contains(&(scope, object)) || self.index.removed(scope, &object).is_some())
    }

    /// Whether a request or a damaged object caused its removal.
    pub(crate) fn is_removed_by_request(&self, scope: Scope, object: &ObjectDigest) -> bool {
        self.index.removed(scope, object).is_some_and(|row| row.by_request)
    }

    pub(crate) fn row(&self, scope: Scope, object: ObjectDigest) -> Option<Arc<IndexRow>> {
        self.rows.get(&(scope, object))
    }

    pub(crate) fn note_row(&self, scope: Scope, row: &Arc<IndexRow>) {
        self.rows.insert((scope, row.object_digest), Arc::clone(row));
    }

    /// Records the rows of a match that are not recorded.
    pub(crate) fn note_rows(&self, scope: Scope, walk: &Walk) {
        let keys = walk.chunks.iter().map(|chunk| (scope, chunk.row.object_digest));
        self.rows.keep_all(keys, |index| Arc::new(walk.chunks[index].row.clone()));
    }

    /// Like [`note_row`](Self::note_row), unless the object is known to be gone.
    pub(crate) fn note_row_unless_gone(&self, scope: Scope, row: &Arc<IndexRow>) {
        let _turning = self.turning.lock();
        if !self.is_gone(scope, row.object_digest) {
            self.note_row(scope, row);
        }
    }

    pub(crate) fn entry(&self, scope: Scope, object: ObjectDigest) -> Option<Arc<IndexEntry>> {
        self.entries.get(&(scope, object))
    }

    /// The entries of objects that were stored or read lately.
    pub(crate) fn entries(&self) -> Vec<(Scope, Arc<IndexEntry>)> {
        self.entries.all().into_iter().map(|((scope, _), entry)| (scope, entry)).collect()
    }

    /// Whether the index has lost an object that it contained. Waits for concurrent insertions and removals:
    /// in between, its row may be gone already but its record not.
    pub(crate) fn has_lost(&self, scope: Scope, object: ObjectDigest) -> bool {
        let _turning = self.turning.lock();
        !self.entries.contains(&(scope, object))
    }

    /// Whether the store recently did not have the chunk.
    pub(crate) fn is_missing(&self, scope: Scope, seq_hash: SeqHash) -> bool {
        self.missing.as_ref().is_some_and(|missing| missing.contains(&(scope, seq_hash)))
    }

    /// Records that the store did not have the chunk when asked at `since`: the response may have taken long.
    pub(crate) fn note_missing(&self, scope: Scope, seq_hash: SeqHash, since: Instant) {
        if let Some(missing) = &self.missing {
            missing.insert_since((scope, seq_hash), (), since);
        }
    }

    pub(crate) fn last_use(&self, scope: Scope, object: ObjectDigest) -> Option<LastUse> {
        self.uses.as_ref()?.get(&(scope, object))
    }

    /// All last uses that are remembered, in no order.
    pub(crate) fn uses(&self) -> Vec<((Scope, ObjectDigest), LastUse)> {
        self.uses.as_ref().map_or_else(Vec::new, BoundedMap::all)
    }

    /// Records a use by a request of `class`; if that is unknown, keeps the class of the previous use.
    pub(crate) fn note_use(&self, scope: Scope, object: ObjectDigest, class: Option<ClassId>) {
        if let Some(uses) = &self.uses {
            let before = uses.get(&(scope, object));
            let class = class.or(before.map(|before| before.class)).unwrap_or(ClassId::OTHER);
            let count = before.map_or(0, |before| before.uses).saturating_add(1);
            uses.insert((scope, object), LastUse { at: Instant::now(), class, uses: count });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{OnceLock, mpsc};

    use super::*;
    use crate::index::{
        IndexRow,
        hooked::{HookedIndex, Operation},
    };

    fn entry() -> (Scope, Arc<IndexEntry>) {
        let scope = Scope::new(&"a".parse().expect("a name"), &[1; 32].into());
        let row = IndexRow {
            seq_hash: [2; 32].into(),
            object_digest: [3; 32].into(),
            profile_hash: [4; 32].into(),
            first_position: 0,
            token_count: 16,
            kl_beneath: 0.0,
            head_bytes: 300,
            object_bytes: 400,
            level_bytes: vec![400],
            errors: None,
        };
        let blocks = IndexEntry::short_blocks([&[2; 32][..]]);
        (scope, Arc::new(IndexEntry { parent_hash: [5; 32], blocks, row: Arc::new(row) }))
    }

    #[test]
    fn only_its_own_removal_keeps_a_listed_object_out() {
        let index = PrefixIndex::new(Index::memory(), Duration::ZERO, false);
        let (scope, entry) = entry();
        let object = entry.row.object_digest;
        let is_offered = || index.walk(scope, &[5; 32], &[[2; 32].into()], Search::Fast).whole_blocks == 1;
        let removal = RemovedRow { expires_ms: i64::MAX, by_request: true };
        index.remove_for_good(scope, object, removal);
        // The store lists it again: another replica stored it. Meanwhile another object is removed.
        let before = index.removals();
        index.remove_for_good(scope, [9; 32].into(), removal);
        index.insert_listed(scope, &entry, before);
        assert!(is_offered());
        let before = index.removals();
        index.remove_for_good(scope, object, removal);
        index.insert_listed(scope, &entry, before);
        assert!(!is_offered());
    }

    #[test]
    fn what_was_removed_before_the_store_listed_it_stays() {
        let index = PrefixIndex::new(Index::memory(), Duration::ZERO, false);
        let (scope, entry) = entry();
        let object = entry.row.object_digest;
        let is_offered = || index.walk(scope, &[5; 32], &[[2; 32].into()], Search::Fast).whole_blocks == 1;
        let removal = RemovedRow { expires_ms: i64::MAX, by_request: true };
        let heard = index.next_removal();
        // A listing that began afterwards, while the journal is read.
        let before = index.removals();
        index.remove_heard(scope, object, removal, heard);
        assert!(!is_offered());
        index.insert_listed(scope, &entry, before);
        assert!(is_offered());
        index.remove_heard(scope, object, removal, heard);
        assert!(is_offered(), "said twice");
        index.insert_listed(scope, &entry, 0);
        index.remove_heard(scope, object, removal, heard);
        assert!(is_offered(), "the answer to a question of before");
        // A listing that began before the journal was read proves nothing.
        let before = index.removals();
        let heard = index.next_removal();
        index.remove_heard(scope, object, removal, heard);
        index.insert_listed(scope, &entry, before);
        assert!(!is_offered());
    }

    /// Removals of other objects while the store is queried, however many.
    fn remove_others(index: &PrefixIndex, scope: Scope, count: usize) {
        for n in 0..count as u64 {
            let other = blake3::hash(&n.to_le_bytes()).as_bytes().to_owned();
            index.remove_for_good(scope, other.into(), RemovedRow { expires_ms: i64::MAX, by_request: true });
        }
    }

    #[test]
    fn other_removals_do_not_keep_out_what_an_earlier_process_removed() {
        let index = PrefixIndex::new(Index::memory(), Duration::ZERO, false);
        let (scope, entry) = entry();
        let object = entry.row.object_digest;
        index.index().put_removed(scope, &object, RemovedRow { expires_ms: i64::MAX, by_request: true });
        let before = index.removals();
        remove_others(&index, scope, 10);
        index.insert_listed(scope, &entry, before);
        assert!(!index.is_gone(scope, object));
    }

    #[test]
    fn a_removal_stands_that_is_forgotten_while_the_store_is_asked() {
        let index = PrefixIndex::new(Index::memory(), Duration::ZERO, false);
        let (scope, entry) = entry();
        let object = entry.row.object_digest;
        let before = index.removals();
        index.remove_for_good(scope, object, RemovedRow { expires_ms: i64::MAX, by_request: true });
        remove_others(&index, scope, limits::GONE_ENTRIES_MAX + 1);
        assert!(!index.gone.contains(&(scope, object)), "only its row is left");
        index.insert_listed(scope, &entry, before);
        assert!(index.is_gone(scope, object));
        // Of a repeated query, only the response counts.
        let before = index.removals();
        remove_others(&index, scope, 10);
        index.insert_listed(scope, &entry, before);
        assert!(!index.is_gone(scope, object));
    }

    #[test]
    fn a_broken_sibling_does_not_keep_a_listed_object_out() {
        let index = PrefixIndex::new(Index::memory(), Duration::ZERO, false);
        let (scope, entry) = entry();
        let object = entry.row.object_digest;
        // A row of an earlier process.
        index.index().put_removed(scope, &object, RemovedRow { expires_ms: i64::MAX, by_request: true });
        let before = index.removals();
        index.remove(scope, [9; 32].into());
        index.insert_listed(scope, &entry, before);
        assert!(!index.is_gone(scope, object));
    }

    /// Whether the index itself has a row, without the rule.
    fn has_row(index: &PrefixIndex, scope: Scope) -> bool {
        index.index().walk(scope, &[5; 32], &[[2; 32].into()], Search::Fast, &|_| true).whole_blocks == 1
    }

    #[test]
    fn what_only_this_process_knows_to_be_gone_is_not_offered() {
        let index = PrefixIndex::new(Index::memory(), Duration::ZERO, false);
        let (scope, entry) = entry();
        index.insert_unless_gone(scope, &entry);
        index.remove(scope, entry.row.object_digest);
        index.index().insert(scope, &entry);
        assert!(has_row(&index, scope));
        assert_eq!(index.walk(scope, &[5; 32], &[[2; 32].into()], Search::Fast).whole_blocks, 0);
    }

    #[test]
    fn an_object_is_lost_from_the_moment_that_its_row_is_gone() {
        let (scope, entry) = entry();
        let object = entry.row.object_digest;
        let shared: Arc<OnceLock<PrefixIndex>> = Arc::default();
        let (ask, asked) = mpsc::channel();
        let hook = Arc::clone(&shared);
        // A query arrives when its row is gone but the rest is not.
        let database = HookedIndex::new(move |operation| {
            let is_row_gone = |index: &&PrefixIndex| operation == Operation::Remove && !has_row(index, scope);
            if hook.get().filter(is_row_gone).is_some() {
                let (answer, answered) = mpsc::channel();
                let index = Arc::clone(&hook);
                std::thread::spawn(move || {
                    let is_lost = index.get().is_some_and(|index| index.has_lost(scope, object));
                    answer.send(is_lost)
                });
                let early = answered.recv_timeout(Duration::from_millis(200)).ok();
                let _ = ask.send((early, answered));
            }
            Ok(())
        });
        let index =
            shared.get_or_init(|| PrefixIndex::new(Index::over(Arc::new(database)), Duration::ZERO, false));
        index.insert_listed(scope, &entry, index.removals());
        assert!(!index.has_lost(scope, object));
        index.remove(scope, object);
        let (early, answered) = asked.recv().expect("somebody asked");
        assert_eq!(early, None, "the answer was there before the removal had ended");
        assert_eq!(answered.recv(), Ok(true));
    }

    #[test]
    fn a_removal_while_an_object_is_taken_in_leaves_no_row() {
        let (scope, entry) = entry();
        let object = entry.row.object_digest;
        let remove = move |index: &PrefixIndex| {
            index.remove_for_good(scope, object, RemovedRow { expires_ms: i64::MAX, by_request: true });
        };
        // The removal arrives when the object's row is about to be written, or afterwards if it has to wait.
        let shared: Arc<OnceLock<PrefixIndex>> = Arc::default();
        let hook = Arc::clone(&shared);
        let database = HookedIndex::new(move |operation| {
            if let Some(index) = hook.get().filter(|index| {
                operation == Operation::Put && !index.is_gone(scope, object) && !index.turning.is_locked()
            }) {
                remove(index);
            }
            Ok(())
        });
        let index =
            shared.get_or_init(|| PrefixIndex::new(Index::over(Arc::new(database)), Duration::ZERO, false));
        index.insert_unless_gone(scope, &entry);
        if !index.is_gone(scope, object) {
            assert!(has_row(index, scope));
            remove(index);
        }
        assert!(index.is_gone(scope, object) && !has_row(index, scope));
    }
}
