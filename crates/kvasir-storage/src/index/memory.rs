//! The index in a sorted map: for tests, and for a replica without a disk.

use std::{collections::BTreeMap, ops::Bound};

use parking_lot::RwLock;

use super::{
    IndexError,
    database::{HotIndex, Pair, Visit},
    key,
};

/// Overhead of a row beyond its bytes: two allocations and its slot in the map.
const ROW_OVERHEAD_BYTES: u64 = 96;

/// A [`HotIndex`] that is lost with the process.
#[derive(Debug)]
pub struct MemoryIndex {
    rows: RwLock<Rows>,
    bytes_max: u64,
    heard_until: RwLock<Option<i64>>,
}

#[derive(Debug, Default)]
struct Rows {
    by_key: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: u64,
}

impl Rows {
    fn remove(&mut self, key: &[u8]) {
        if let Some(value) = self.by_key.remove(key) {
            self.bytes -= row_bytes(key, &value);
        }
    }
}

fn row_bytes(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + ROW_OVERHEAD_BYTES
}

impl Default for MemoryIndex {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl MemoryIndex {
    /// An index of at most `bytes_max`; a row beyond that fails, and the index's owner replaces it by an
    /// empty one.
    pub fn new(bytes_max: u64) -> Self {
        Self { rows: RwLock::default(), bytes_max, heard_until: RwLock::default() }
    }
}

impl HotIndex for MemoryIndex {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        let mut rows = self.rows.write();
        rows.remove(key);
        let bytes = rows.bytes + row_bytes(key, value);
        if bytes > self.bytes_max {
            return Err(IndexError::Io(format!("it has more than {} bytes in memory", self.bytes_max)));
        }
        rows.bytes = bytes;
        rows.by_key.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn remove(&self, key: &[u8]) -> Result<(), IndexError> {
        self.rows.write().remove(key);
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        // Walks ask for removals while they scan: a writer that waits for the scan must not hold this up.
        Ok(self.rows.read_recursive().by_key.get(key).cloned())
    }

    fn below(&self, key: &[u8]) -> Result<Option<Pair>, IndexError> {
        let bounds = (Bound::Unbounded, Bound::Excluded(key));
        Ok(self.rows.read().by_key.range::<[u8], _>(bounds).next_back().map(|(k, v)| (k.clone(), v.clone())))
    }

    fn at_or_above(&self, key: &[u8]) -> Result<Option<Pair>, IndexError> {
        let bounds = (Bound::Included(key), Bound::Unbounded);
        Ok(self.rows.read().by_key.range::<[u8], _>(bounds).next().map(|(k, v)| (k.clone(), v.clone())))
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), IndexError> {
        let bounds = (Bound::Included(from), Bound::Unbounded);
        for (key, value) in self.rows.read().by_key.range::<[u8], _>(bounds) {
            if !visit(key, value)? {
                break;
            }
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.rows.read().by_key.keys().filter(|key| key::is_info(key)).count() as u64
    }

    fn clear(&self) -> Result<(), IndexError> {
        *self.rows.write() = Rows::default();
        *self.heard_until.write() = None;
        Ok(())
    }

    fn flush(&self) -> Result<(), IndexError> {
        Ok(())
    }

    fn heard_until(&self) -> Result<Option<i64>, IndexError> {
        Ok(*self.heard_until.read())
    }

    fn set_heard_until(&self, store_ms: i64) -> Result<(), IndexError> {
        *self.heard_until.write() = Some(store_ms);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a plain lock, this would not end.
    #[test]
    fn a_visitor_reads_while_a_writer_waits_for_it() {
        let index = &MemoryIndex::default();
        index.put(b"a", b"1").expect("there is room");
        std::thread::scope(|threads| {
            let mut found = None;
            let scanned = index.scan(b"", &mut |_, _| {
                threads.spawn(move || index.put(b"b", b"2").expect("there is room"));
                while index.rows.try_read().is_some() {
                    std::thread::yield_now();
                }
                found = index.get(b"a")?;
                Ok(false)
            });
            scanned.expect("memory");
            assert_eq!(found.as_deref(), Some(&b"1"[..]));
        });
        assert_eq!(index.get(b"b").expect("memory").as_deref(), Some(&b"2"[..]));
    }
}
