//! The index as the rest of the crate uses it: verified rows, walks, and a fresh start if the database fails.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kvasir_store::layout::JournalLog;
use kvasir_types::{Name, ObjectDigest, SeqHash};
use parking_lot::{Mutex, RwLock};

use super::{
    IndexError,
    database::HotIndex,
    expiry,
    lineage::{Usable, all_objects},
    log_position::{self, LogPosition},
    memory::MemoryIndex,
    placement,
    position::{PositionCache, RowPosition},
    removed::{self, RemovedFilter, RemovedRow},
    row::{IndexEntry, IndexRow, parent_of_opaque},
    scope::Scope,
    scrub_position,
    sled_index::SledIndex,
    walk::{Search, Walk, walk, walk_chunks},
};
use crate::{limits, private_files::private_directory};

/// Source of a new database.
#[derive(Debug, Clone)]
struct SledHome {
    directory: PathBuf,
    identity: [u8; 32],
    cache_bytes: u64,
    slots: usize,
}

/// The index. Its methods do not fail: a failing database is replaced by an empty one, and its contents
/// become unknown, so that the store is asked again.
#[derive(Debug)]
pub struct Index {
    current: RwLock<Arc<dyn HotIndex>>,
    home: Option<SledHome>,
    /// Maximum size of an index in memory.
    memory_bytes: u64,
    replaced: AtomicU64,
    emptied: AtomicU64,
    positions: PositionCache,
    /// Filter of objects that may have the row of a removal; read from the rows at its first use.
    removed: RemovedFilter,
    /// Held by insertions and removals, which read before they write.
    writing: Mutex<()>,
}

impl Index {
    /// In memory.
    pub fn memory() -> Self {
        Self::memory_within(u64::MAX)
    }

    /// In memory, limited to that many bytes: beyond them it starts empty again.
    pub fn memory_within(bytes_max: u64) -> Self {
        Self::new(Arc::new(MemoryIndex::new(bytes_max)), None, bytes_max, 0)
    }

    /// Over any database; replaced by memory if it fails.
    pub fn over(index: Arc<dyn HotIndex>) -> Self {
        Self::new(index, None, u64::MAX, 0)
    }

    fn new(index: Arc<dyn HotIndex>, home: Option<SledHome>, memory_bytes: u64, replaced: u64) -> Self {
        Self {
            current: RwLock::new(index),
            home,
            memory_bytes,
            replaced: replaced.into(),
            emptied: AtomicU64::new(0),
            positions: PositionCache::new(),
            removed: RemovedFilter::new(),
            writing: Mutex::default(),
        }
    }

    /// On disk under `directory`, for the store of that `identity`.
    ///
    /// # Errors
    /// [`IndexError::Io`] if the directory cannot be used, [`IndexError::Locked`] if all slots are taken.
    pub fn sled(directory: PathBuf, identity: [u8; 32], cache_bytes: u64) -> Result<Self, IndexError> {
        Self::in_home(SledHome { directory, identity, cache_bytes, slots: limits::INDEX_SLOTS_MAX })
    }

    /// As [`sled`](Self::sled), for a process that must have the directory for itself.
    ///
    /// # Errors
    /// [`IndexError::Io`] if the directory cannot be used, [`IndexError::Locked`] if another process uses it.
    pub fn sled_alone(directory: PathBuf, identity: [u8; 32], cache_bytes: u64) -> Result<Self, IndexError> {
        Self::in_home(SledHome { directory, identity, cache_bytes, slots: 1 })
    }

    fn in_home(home: SledHome) -> Result<Self, IndexError> {
        let mut replaced = 0;
        let index = home.open(|why| {
            replaced += 1;
            tracing::warn!(why, "a corrupt hot index was deleted; it fills again from the store");
        })?;
        let index: Arc<dyn HotIndex> = Arc::new(index);
        let cache_bytes = home.cache_bytes;
        Ok(Self::new(index, Some(home), cache_bytes, replaced))
    }

    /// Databases discarded since start.
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Number of objects.
    pub fn len(&self) -> u64 {
        self.current().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an object.
    pub fn insert(&self, scope: Scope, entry: &IndexEntry) {
        let _one_at_a_time = self.writing.lock();
        self.with(|index| placement::insert(index, &self.positions, scope, entry));
    }

    /// Removes an object.
    pub fn remove(&self, scope: Scope, entry: &IndexEntry) {
        let _one_at_a_time = self.writing.lock();
        self.with(|index| placement::remove(index, &self.positions, scope, entry));
    }

    /// The longest match of `blocks` from `root`, of objects that are `usable`.
    pub fn walk(
        &self,
        scope: Scope,
        root: &[u8; 32],
        blocks: &[SeqHash],
        search: Search,
        usable: &dyn Fn(&IndexRow) -> bool,
    ) -> Walk {
        let usable = Usable::of(usable);
        let walk = self.walked(|index| walk(index, &self.positions, scope, root, blocks, search, &usable));
        self.sweep(&usable);
        walk.unwrap_or_default()
    }

    /// The leading `chunks` that are `usable`, each the child of the previous one and the first of `root`.
    pub fn walk_chunks(
        &self,
        scope: Scope,
        root: &[u8; 32],
        chunks: &[SeqHash],
        usable: &dyn Fn(&IndexRow) -> bool,
    ) -> Vec<IndexRow> {
        let usable = Usable::of(usable);
        let rows = self.walked(|index| walk_chunks(index, &self.positions, scope, root, chunks, &usable));
        self.sweep(&usable);
        rows.unwrap_or_default()
    }

    /// The `usable` objects of an opaque object's name: one, or several if two writers stored different
    /// bytes.
    pub fn opaque_objects(
        &self,
        scope: Scope,
        seq_hash: &SeqHash,
        usable: &dyn Fn(&IndexRow) -> bool,
    ) -> Vec<IndexRow> {
        let usable = Usable::of(usable);
        let position = RowPosition::under(&parent_of_opaque(seq_hash));
        let rows = self.walked(|index| all_objects(index, scope, position, seq_hash, &usable));
        self.sweep(&usable);
        rows.unwrap_or_default()
    }

    /// Removes rows of unusable objects that a walk found.
    fn sweep(&self, usable: &Usable<'_>) {
        let stale = usable.take_stale();
        if stale.is_empty() {
            return;
        }
        // Nothing waits for that: remaining rows are found again.
        if let Some(_one_at_a_time) = self.writing.try_lock() {
            self.with(|index| placement::sweep(index, &stale, usable));
        }
    }

    /// A longer chunk that begins with this one's tokens.
    pub fn longer_sibling(&self, scope: Scope, entry: &IndexEntry) -> Option<IndexRow> {
        self.with(|index| placement::longer_sibling(index, &self.positions, scope, entry)).flatten()
    }

    /// Whether `seq_hash` has a child.
    pub fn has_children(&self, scope: Scope, seq_hash: &SeqHash) -> bool {
        self.with(|index| placement::has_children(index, &self.positions, scope, seq_hash)).unwrap_or(true)
    }

    /// Removes all rows.
    pub fn clear(&self) {
        self.with(HotIndex::clear);
        self.emptied.fetch_add(1, Ordering::Release);
    }

    /// How often all rows were removed so far.
    pub fn emptied(&self) -> u64 {
        self.emptied.load(Ordering::Acquire) + self.replaced()
    }

    /// Records a removal.
    pub fn put_removed(&self, scope: Scope, digest: &ObjectDigest, row: RemovedRow) {
        self.with_removed(|index, removed| removed.put(index, scope, digest, row));
    }

    /// The removal of an object.
    pub(crate) fn removed(&self, scope: Scope, digest: &ObjectDigest) -> Option<RemovedRow> {
        if !self.may_be_gone(digest) {
            return None;
        }
        // The filter is not read here: a walk asks while it reads rows.
        self.with(|index| self.removed.get(index, scope, digest)).flatten()
    }

    /// Whether an object may have a removal, or was noted by [`note_gone`](Self::note_gone). Takes no lock: a lookup asks
    /// for each row that it meets, and mostly the filter alone knows.
    pub(super) fn may_be_gone(&self, digest: &ObjectDigest) -> bool {
        self.removed.may_have(digest)
    }

    /// Records that an object may be gone, although it has no removal.
    pub(super) fn note_gone(&self, digest: &ObjectDigest) {
        self.removed.add(digest);
    }

    /// Deletes the removal of an object.
    pub(crate) fn clear_removed(&self, scope: Scope, digest: &ObjectDigest) {
        self.with_removed(|index, removed| removed.remove(index, scope, digest));
    }

    /// Deletes the removals that expired at `now_ms` of the store's clock, and what rows of their objects are left. Returns the
    /// number of removals.
    pub(crate) fn expire_removed(&self, now_ms: i64) -> u64 {
        let expire = |index: &dyn HotIndex, removed: &RemovedFilter| {
            expiry::expire(index, removed, &self.writing, now_ms)
        };
        self.with_removed(expire).unwrap_or(0)
    }

    /// How far other replicas' journals have been applied to the rows.
    pub(crate) fn log_positions(&self) -> Vec<LogPosition> {
        self.with(log_position::all).unwrap_or_default()
    }

    /// Records a position, after the rows that it refers to.
    pub(crate) fn set_log_position(&self, position: &LogPosition) {
        self.with(|index| log_position::put(index, position));
    }

    /// Deletes a position.
    pub(crate) fn remove_log_position(&self, log: JournalLog, replica: &Name) {
        self.with(|index| log_position::remove(index, log, replica));
    }

    /// How far this replica's repeated scrub is, as it was last recorded.
    pub(crate) fn scrub_position(&self) -> Option<Vec<u8>> {
        self.with(scrub_position::get).flatten()
    }

    /// Records that.
    pub(crate) fn set_scrub_position(&self, record: &[u8]) {
        self.with(|index| scrub_position::put(index, record));
    }

    /// The store's time, in ms, up to which all removals are in the rows; `None` if unknown.
    pub fn heard_until(&self) -> Option<i64> {
        self.with(HotIndex::heard_until).flatten()
    }

    /// Records that time.
    pub fn set_heard_until(&self, store_ms: i64) {
        self.with(|index| index.set_heard_until(store_ms));
    }

    /// Until when, in ms of the store's clock, removals may be missing from the rows; `None` if none are.
    pub(crate) fn missed_until(&self) -> Option<i64> {
        self.with(removed::missed_until).flatten()
    }

    /// Records that time.
    pub(crate) fn set_missed_until(&self, store_ms: i64) {
        self.with(|index| removed::put_missed_until(index, store_ms));
    }

    /// Writes out rows that are only in memory; called periodically and at shutdown.
    pub fn flush(&self) {
        self.with(HotIndex::flush);
    }

    fn current(&self) -> Arc<dyn HotIndex> {
        Arc::clone(&self.current.read())
    }

    fn with<R>(&self, operation: impl FnOnce(&dyn HotIndex) -> Result<R, IndexError>) -> Option<R> {
        let index = self.current();
        match operation(&*index) {
            Ok(result) => Some(result),
            Err(error) => {
                self.replace(&index, &error);
                None
            }
        }
    }

    /// For operations that ask for removals while they read rows. If all rows are removed meanwhile, their result is dropped:
    /// removals went as well, or were asked of another database than the rows.
    fn walked<R>(&self, operation: impl FnOnce(&dyn HotIndex) -> Result<R, IndexError>) -> Option<R> {
        self.complete_removed();
        let emptied = self.emptied();
        self.with(operation).filter(|_| self.emptied() == emptied)
    }

    fn with_removed<R>(
        &self,
        operation: impl FnOnce(&dyn HotIndex, &RemovedFilter) -> Result<R, IndexError>,
    ) -> Option<R> {
        self.complete_removed();
        self.with(|index| operation(index, &self.removed))
    }

    /// Reads the removals into their filter, unless it has them.
    fn complete_removed(&self) {
        if self.removed.is_complete() {
            return;
        }
        let replaced = self.replaced();
        self.with(|index| self.removed.read(index));
        // Not if it failed, or another one took its place meanwhile: that one may have removals of its own.
        let _in_place = self.current.read();
        if self.replaced() == replaced {
            self.removed.mark_complete();
        }
    }

    fn replace(&self, failed: &Arc<dyn HotIndex>, error: &IndexError) {
        let mut current = self.current.write();
        if !Arc::ptr_eq(&current, failed) {
            return;
        }
        self.replaced.fetch_add(1, Ordering::Relaxed);
        self.removed.mark_incomplete();
        failed.abandon();
        let fresh = self.home.as_ref().map(|home| home.open(|_| {}));
        *current = match fresh {
            Some(Ok(index)) => Arc::new(index),
            Some(Err(second)) => {
                tracing::error!(%error, %second, "the hot index cannot be kept on disk; continuing in memory");
                Arc::new(MemoryIndex::new(self.memory_bytes))
            }
            None => Arc::new(MemoryIndex::new(self.memory_bytes)),
        };
        tracing::warn!(%error, "the hot index failed and was replaced; it fills again from the store");
    }
}

impl SledHome {
    fn open(&self, mut deleted: impl FnMut(&str)) -> Result<SledIndex, IndexError> {
        private_directory(&self.directory).map_err(|e| IndexError::Io(e.to_string()))?;
        SledIndex::open_slot(&self.directory, &self.identity, self.cache_bytes, self.slots, |_, why| {
            deleted(&why.to_string())
        })
    }
}

#[cfg(test)]
mod tests;
