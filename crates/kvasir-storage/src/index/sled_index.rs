//! The index in a sled database.
//!
//! sled 0.34 is safe against a killed process, but not against power loss, and opens a truncated file with
//! rows silently missing. So rows have their own checksums, a missing row only means that the store is asked,
//! and a database that does not open is discarded.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    IndexError,
    database::{HotIndex, Pair, Visit},
    key,
    packed_lineage::{LineageCache, divided},
    profile_ids::ProfileIds,
};
use crate::private_files::{close_contents, private_directory, private_file};

/// Format of rows and keys; a database of another format is replaced by an empty one.
const FORMAT: u8 = 4;
const META_IDENTITY: &[u8] = b"identity";
const META_ROWS: &[u8] = b"rows";
const META_HEARD: &[u8] = b"heard";
/// File in a database that a running process abandoned; the next process to open it starts a new one.
const ABANDONED: &str = "KVASIR_ABANDONED";

/// A [`HotIndex`] on disk.
#[derive(Debug)]
pub struct SledIndex {
    db: sled::Db,
    rows: sled::Tree,
    profiles: ProfileIds,
    row_count: AtomicU64,
    lineages: LineageCache,
    path: PathBuf,
}

impl SledIndex {
    /// Opens the database at `path`, for the store of that `identity`; one that belongs to another store or
    /// has another format of rows is emptied.
    ///
    /// # Errors
    /// [`IndexError::Locked`] if another process holds it, [`IndexError::Corrupt`] if it should be deleted.
    pub fn open(path: &Path, identity: &[u8; 32], cache_bytes: u64) -> Result<Self, IndexError> {
        let (pages_bytes, lineages_bytes) = divided(cache_bytes);
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(pages_bytes)
            .flush_every_ms(Some(1_000))
            .mode(sled::Mode::LowSpace);
        let db = config.open().map_err(error)?;
        let rows = db.open_tree("rows").map_err(error)?;
        let profiles = db.open_tree("profiles").map_err(error)?;
        // The database opens its files to others as far as the process's mask lets it. It makes them here, but for large rows.
        if let Err(error) = close_contents(path) {
            tracing::warn!(%error, ?path, "files of the hot index keep their modes; the folder protects them");
        }
        let stamp = [&[FORMAT][..], identity].concat();
        if db.get(META_IDENTITY).map_err(error)?.as_deref() != Some(&stamp[..]) {
            rows.clear().map_err(error)?;
            profiles.clear().map_err(error)?;
            db.remove(META_ROWS).map_err(error)?;
            db.remove(META_HEARD).map_err(error)?;
            db.insert(META_IDENTITY, stamp).map_err(error)?;
        }
        let row_count = db.get(META_ROWS).map_err(error)?;
        let row_count = row_count.and_then(|v| Some(u64::from_le_bytes(*v.first_chunk()?))).unwrap_or(0);
        let lineages = LineageCache::new(lineages_bytes);
        let profiles = ProfileIds::open(profiles)?;
        Ok(Self { db, rows, profiles, row_count: row_count.into(), lineages, path: path.to_owned() })
    }

    /// Opens the first of `slots` under `directory` that no other process holds, deleting corrupt databases on the
    /// way. Reports through `corrupt` what was deleted.
    ///
    /// # Errors
    /// [`IndexError::Locked`] if all slots are taken, [`IndexError::Io`] if the disk fails.
    pub fn open_slot(
        directory: &Path,
        identity: &[u8; 32],
        cache_bytes: u64,
        slots: usize,
        mut corrupt: impl FnMut(&Path, &IndexError),
    ) -> Result<Self, IndexError> {
        for slot in 0..slots {
            let path = directory.join(format!("hot-{slot}.sled"));
            private_directory(&path).map_err(|e| IndexError::Io(e.to_string()))?;
            let problem = match Self::open(&path, identity, cache_bytes) {
                Err(IndexError::Locked) => continue,
                Err(problem @ IndexError::Corrupt { .. }) => problem,
                Ok(index) if path.join(ABANDONED).exists() => {
                    drop(index);
                    IndexError::Corrupt { what: "it was abandoned while in use".to_owned() }
                }
                done => return done,
            };
            corrupt(&path, &problem);
            let anew = std::fs::remove_dir_all(&path).and_then(|()| private_directory(&path));
            anew.map_err(|e| IndexError::Io(e.to_string()))?;
            return Self::open(&path, identity, cache_bytes);
        }
        Err(IndexError::Locked)
    }

    /// A row as it was put.
    fn pair(&self, (key, value): (sled::IVec, sled::IVec)) -> Result<Pair, IndexError> {
        let value = self.profiles.lengthen(&key, &value)?.unwrap_or_else(|| value.to_vec());
        Ok((key.to_vec(), value))
    }

    /// After a change of a row: earlier reads of its lineage must not be cached.
    fn changed(&self, key: &[u8]) {
        if let Some((lineage, depth, name)) = key::place_of_info(key) {
            self.lineages.changed(lineage, depth, name);
        }
    }

    /// Path of the database.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

pub(super) fn error(error: sled::Error) -> IndexError {
    match error {
        sled::Error::Io(io) if io.to_string().contains("lock") => IndexError::Locked,
        // Includes the file system's own error kind for a damaged file.
        sled::Error::Io(io)
            if matches!(io.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::InvalidData) =>
        {
            IndexError::Corrupt { what: io.to_string() }
        }
        sled::Error::Io(io) => IndexError::Io(io.to_string()),
        other => IndexError::Corrupt { what: other.to_string() },
    }
}

impl HotIndex for SledIndex {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        let short = self.profiles.shorten(key, value)?;
        let stored = short.as_deref().unwrap_or(value);
        if self.rows.insert(key, stored).map_err(error)?.is_none() && key::is_info(key) {
            self.row_count.fetch_add(1, Ordering::Relaxed);
        }
        self.changed(key);
        Ok(())
    }

    fn remove(&self, key: &[u8]) -> Result<(), IndexError> {
        if self.rows.remove(key).map_err(error)?.is_some() && key::is_info(key) {
            let less = |n: u64| Some(n.saturating_sub(1));
            let _ = self.row_count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        self.changed(key);
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        let found = self.rows.get(key).map_err(error)?;
        found.map(|value| Ok(self.pair((key.into(), value))?.1)).transpose()
    }

    fn below(&self, key: &[u8]) -> Result<Option<Pair>, IndexError> {
        self.rows.get_lt(key).map_err(error)?.map(|row| self.pair(row)).transpose()
    }

    fn at_or_above(&self, key: &[u8]) -> Result<Option<Pair>, IndexError> {
        self.rows.range(key..).next().transpose().map_err(error)?.map(|row| self.pair(row)).transpose()
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), IndexError> {
        for row in self.rows.range(from..) {
            let (key, value) = row.map_err(error)?;
            let long = self.profiles.lengthen(&key, &value)?;
            if !visit(&key, long.as_deref().unwrap_or(&value))? {
                break;
            }
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.row_count.load(Ordering::Relaxed)
    }

    fn clear(&self) -> Result<(), IndexError> {
        // Removals last, although their keys come first: an object that is left would be offered without them.
        for key in self.rows.range(key::ALL_INFOS..).keys() {
            self.rows.remove(key.map_err(error)?).map_err(error)?;
        }
        self.lineages.clear();
        self.rows.clear().map_err(error)?;
        self.db.remove(META_HEARD).map_err(error)?;
        self.row_count.store(0, Ordering::Relaxed);
        // Of what was added meanwhile.
        self.lineages.clear();
        Ok(())
    }

    fn flush(&self) -> Result<(), IndexError> {
        self.db.insert(META_ROWS, &self.len().to_le_bytes()[..]).map_err(error)?;
        self.db.flush().map(|_| ()).map_err(error)
    }

    #[expect(private_interfaces, reason = "as in the trait")]
    fn lineages(&self) -> Option<&LineageCache> {
        Some(&self.lineages)
    }

    fn heard_until(&self) -> Result<Option<i64>, IndexError> {
        let found = self.db.get(META_HEARD).map_err(error)?;
        Ok(found.and_then(|ms| Some(i64::from_le_bytes(*ms.first_chunk()?))))
    }

    fn set_heard_until(&self, store_ms: i64) -> Result<(), IndexError> {
        self.db.insert(META_HEARD, &store_ms.to_le_bytes()[..]).map(drop).map_err(error)
    }

    fn abandon(&self) {
        // If even this fails, the next start finds the damage itself, or row by row.
        let _ = private_file(&self.path.join(ABANDONED));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_cleared_before_the_removals() {
        let directory = tempfile::tempdir().expect("a directory");
        let index = SledIndex::open(directory.path(), &[5; 32], 1 << 20).expect("opens");
        for key in [b"d", b"i", b"m"] {
            index.put(key, b"").expect("written");
        }
        let events = index.rows.watch_prefix(b"");
        index.clear().expect("cleared");
        let cleared: Vec<u8> = events.take(3).map(|event| event.key()[0]).collect();
        assert_eq!(cleared, b"imd");
    }
}
