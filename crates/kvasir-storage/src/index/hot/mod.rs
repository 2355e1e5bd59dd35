//! The index as the rest of the crate uses it: sound rows, walks, and a fresh start when the database is not.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kvasir_types::SeqHash;
use parking_lot::{Mutex, RwLock};

use super::{
    IndexEntry, IndexError, IndexRow, MemoryIndex, Scope, SledIndex, Walk,
    place::{self, Lines},
    runs::Runs,
    walk::{walk, walk_chunks},
};

/// A row as bytes.
pub(super) type Pair = (Vec<u8>, Vec<u8>);

/// Is shown key and value of a row, and says whether to go on.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool, IndexError> + 'a;

/// A sorted map of bytes that may lose rows, but never keeps one under a wrong key unnoticed (rows carry checksums).
pub trait HotIndex: fmt::Debug + Send + Sync + 'static {
    /// Writes or overwrites a row.
    ///
    /// # Errors
    /// The database's; the caller throws the database away. The same goes for all methods.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError>;
    /// Removes a row, if there.
    #[expect(clippy::missing_errors_doc, reason = "as for put")]
    fn remove(&self, key: &[u8]) -> Result<(), IndexError>;
    /// The value of a row.
    #[expect(clippy::missing_errors_doc, reason = "as for put")]
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError>;
    /// The greatest row strictly below `key`.
    #[expect(clippy::missing_errors_doc, reason = "as for put")]
    fn below(&self, key: &[u8]) -> Result<Option<Pair>, IndexError>;
    /// The smallest row at or above `key`.
    #[expect(clippy::missing_errors_doc, reason = "as for put")]
    fn at_or_above(&self, key: &[u8]) -> Result<Option<Pair>, IndexError>;
    /// Visits the rows at or above `from` in order, while `visit` says so.
    ///
    /// # Errors
    /// The database's, and the visitor's own.
    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), IndexError>;
    /// Objects there are, approximately after a crash.
    fn len(&self) -> u64;
    /// Whether there is no row.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Removes all rows.
    #[expect(clippy::missing_errors_doc, reason = "as for put")]
    fn clear(&self) -> Result<(), IndexError>;
    /// Writes what is only in memory.
    #[expect(clippy::missing_errors_doc, reason = "as for put")]
    fn flush(&self) -> Result<(), IndexError>;
    /// Lines that are kept in memory, where that is worth it; every change to a row must end the runs that hold it.
    #[expect(private_interfaces, reason = "no index outside of this module has any")]
    fn runs(&self) -> Option<&Runs> {
        None
    }
    /// Called on a database that failed: the next process to open it starts it anew. Other threads may still hold
    /// it, so it is not deleted here.
    fn abandon(&self) {}
}

/// Where a fresh database comes from.
#[derive(Debug, Clone)]
struct SledHome {
    directory: PathBuf,
    identity: [u8; 32],
    cache_bytes: u64,
}

/// The index. Its methods do not fail: a database that does is replaced by a fresh one, and what it knew is unknown,
/// so the store is asked again.
#[derive(Debug)]
pub struct Index {
    current: RwLock<Arc<dyn HotIndex>>,
    home: Option<SledHome>,
    replaced: AtomicU64,
    lines: Lines,
    /// Held by insertions and removals, which look before they write.
    writing: Mutex<()>,
}

impl Index {
    /// In memory.
    pub fn memory() -> Self {
        Self::over(Arc::new(MemoryIndex::default()))
    }

    /// Over any database; it is replaced by memory when it fails.
    pub fn over(index: Arc<dyn HotIndex>) -> Self {
        Self::new(index, None, 0)
    }

    fn new(index: Arc<dyn HotIndex>, home: Option<SledHome>, replaced: u64) -> Self {
        Self {
            current: RwLock::new(index),
            home,
            replaced: replaced.into(),
            lines: Lines::new(),
            writing: Mutex::default(),
        }
    }

    /// On disk under `directory`, for the store of that `identity`.
    ///
    /// # Errors
    /// [`IndexError::Io`] when the directory cannot be used, [`IndexError::Locked`] when all slots are taken.
    pub fn sled(directory: PathBuf, identity: [u8; 32], cache_bytes: u64) -> Result<Self, IndexError> {
        let home = SledHome { directory, identity, cache_bytes };
        let mut replaced = 0;
        let index = home.open(|why| {
            replaced += 1;
            tracing::warn!(why, "a corrupt hot index was deleted; it fills again from the store");
        })?;
        let index: Arc<dyn HotIndex> = Arc::new(index);
        Ok(Self::new(index, Some(home), replaced))
    }

    /// Databases thrown away since start.
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Objects there are.
    pub fn len(&self) -> u64 {
        self.current().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes an object in.
    pub fn insert(&self, scope: Scope, entry: &IndexEntry) {
        let _one_at_a_time = self.writing.lock();
        self.with(|index| place::insert(index, &self.lines, scope, entry));
    }

    /// Removes an object.
    pub fn remove(&self, scope: Scope, entry: &IndexEntry) {
        let _one_at_a_time = self.writing.lock();
        self.with(|index| place::remove(index, &self.lines, scope, entry));
    }

    /// The longest match of `blocks` from `root` on; rows that are not `usable` are removed on the way.
    pub fn walk(
        &self,
        scope: Scope,
        root: &[u8; 32],
        blocks: &[SeqHash],
        usable: &dyn Fn(&IndexRow) -> bool,
    ) -> Walk {
        self.with(|index| walk(index, &self.lines, scope, root, blocks, usable)).unwrap_or_default()
    }

    /// The leading ones of `chunks`, each the child of the one before and the first of `root`; rows that are not `usable`
    /// may be removed on the way.
    pub fn walk_chunks(
        &self,
        scope: Scope,
        root: &[u8; 32],
        chunks: &[SeqHash],
        usable: &dyn Fn(&IndexRow) -> bool,
    ) -> Vec<IndexRow> {
        self.with(|index| walk_chunks(index, &self.lines, scope, root, chunks, usable)).unwrap_or_default()
    }

    /// A chunk that begins as this one does and goes on.
    pub fn longer_sibling(&self, scope: Scope, entry: &IndexEntry) -> Option<IndexRow> {
        self.with(|index| place::longer_sibling(index, &self.lines, scope, entry)).flatten()
    }

    /// Whether a chunk follows `seq_hash`.
    pub fn has_children(&self, scope: Scope, seq_hash: &SeqHash) -> bool {
        self.with(|index| place::has_children(index, &self.lines, scope, seq_hash)).unwrap_or(true)
    }

    /// Removes all rows.
    pub fn clear(&self) {
        self.with(HotIndex::clear);
    }

    /// Writes what is only in memory; called now and then and at shutdown.
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

    fn replace(&self, failed: &Arc<dyn HotIndex>, error: &IndexError) {
        let mut current = self.current.write();
        if !Arc::ptr_eq(&current, failed) {
            return;
        }
        self.replaced.fetch_add(1, Ordering::Relaxed);
        failed.abandon();
        let fresh = self.home.as_ref().map(|home| home.open(|_| {}));
        *current = match fresh {
            Some(Ok(index)) => Arc::new(index),
            Some(Err(second)) => {
                tracing::error!(%error, %second, "no hot index on disk; going on in memory");
                Arc::new(MemoryIndex::default())
            }
            None => Arc::new(MemoryIndex::default()),
        };
        tracing::warn!(%error, "the hot index failed and was replaced; it fills again from the store");
    }
}

impl SledHome {
    fn open(&self, mut deleted: impl FnMut(&str)) -> Result<SledIndex, IndexError> {
        std::fs::create_dir_all(&self.directory).map_err(|e| IndexError::Io(e.to_string()))?;
        SledIndex::open_slot(&self.directory, &self.identity, self.cache_bytes, |_, why| {
            deleted(&why.to_string())
        })
    }
}

#[cfg(test)]
mod tests;
