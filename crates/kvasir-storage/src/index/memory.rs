//! The index in a sorted map: for tests, and for a replica that is given no disk.

use std::{collections::BTreeMap, ops::Bound};

use parking_lot::RwLock;

use super::{
    IndexError,
    database::{HotIndex, Pair, Visit},
    key,
};

/// A [`HotIndex`] that forgets everything with the process.
#[derive(Debug, Default)]
pub struct MemoryIndex {
    rows: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
    heard_until: RwLock<Option<i64>>,
}

impl HotIndex for MemoryIndex {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        self.rows.write().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn remove(&self, key: &[u8]) -> Result<(), IndexError> {
        self.rows.write().remove(key);
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        Ok(self.rows.read().get(key).cloned())
    }

    fn below(&self, key: &[u8]) -> Result<Option<Pair>, IndexError> {
        let bounds = (Bound::Unbounded, Bound::Excluded(key));
        Ok(self.rows.read().range::<[u8], _>(bounds).next_back().map(|(k, v)| (k.clone(), v.clone())))
    }

    fn at_or_above(&self, key: &[u8]) -> Result<Option<Pair>, IndexError> {
        let bounds = (Bound::Included(key), Bound::Unbounded);
        Ok(self.rows.read().range::<[u8], _>(bounds).next().map(|(k, v)| (k.clone(), v.clone())))
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), IndexError> {
        let bounds = (Bound::Included(from), Bound::Unbounded);
        for (key, value) in self.rows.read().range::<[u8], _>(bounds) {
            if !visit(key, value)? {
                break;
            }
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.rows.read().keys().filter(|key| key::is_info(key)).count() as u64
    }

    fn clear(&self) -> Result<(), IndexError> {
        self.rows.write().clear();
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
