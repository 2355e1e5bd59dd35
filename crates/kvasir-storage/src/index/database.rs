//! The database behind the index.

use std::fmt;

use super::{IndexError, packed_lineage::LineageCache};

/// A row as bytes.
pub(super) type Pair = (Vec<u8>, Vec<u8>);

/// Receives the key and value of a row; returns whether to continue.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool, IndexError> + 'a;

/// A sorted map of bytes that may lose rows, but never keeps one under a wrong key undetected (rows have
/// checksums).
pub trait HotIndex: fmt::Debug + Send + Sync + 'static {
    /// Writes or overwrites a row.
    ///
    /// # Errors
    /// The database's; the caller discards the database. This applies to all methods.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError>;
    /// Removes a row, if it exists.
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
    /// Visits the rows at or above `from` in order, while `visit` returns true.
    ///
    /// # Errors
    /// The database's, and the visitor's own.
    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), IndexError>;
    /// Number of objects, approximate after a crash.
    fn len(&self) -> u64;
    /// Whether there are no rows.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Removes all rows.
    #[expect(clippy::missing_errors_doc, reason = "as for put")]
    fn clear(&self) -> Result<(), IndexError>;
    /// Writes out rows that are only in memory.
    #[expect(clippy::missing_errors_doc, reason = "as for put")]
    fn flush(&self) -> Result<(), IndexError>;
    /// The lineages cached in memory, if supported; every change to a row must drop the runs that contain it.
    #[expect(private_interfaces, reason = "no index outside of this module has any")]
    fn lineages(&self) -> Option<&LineageCache> {
        None
    }
    /// The store's time, in ms, up to which all removals are in the rows; `None` if it was never set.
    #[expect(clippy::missing_errors_doc, reason = "as for put")]
    fn heard_until(&self) -> Result<Option<i64>, IndexError> {
        Ok(None)
    }
    /// Records that time, after the rows that it refers to.
    #[expect(clippy::missing_errors_doc, reason = "as for put")]
    fn set_heard_until(&self, _store_ms: i64) -> Result<(), IndexError> {
        Ok(())
    }
    /// Called on a database that failed: the next process to open it starts a new one. Other threads may
    /// still hold it, so it is not deleted here.
    fn abandon(&self) {}
}
