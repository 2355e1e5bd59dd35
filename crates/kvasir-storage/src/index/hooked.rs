//! A test index that calls the test before each operation.

use std::fmt;

use super::{
    IndexError, MemoryIndex,
    database::{HotIndex, Pair, Visit},
    key,
    packed_lineage::LineageCache,
};

/// The operation on the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Put,
    Remove,
    Get,
    Seek,
    Whole,
}

pub(super) struct HookedIndex<F> {
    rows: MemoryIndex,
    lineages: Option<LineageCache>,
    before: F,
}

impl<F> HookedIndex<F>
where
    F: Fn(Operation) -> Result<(), IndexError> + Send + Sync + 'static,
{
    pub(super) fn new(before: F) -> Self {
        Self { rows: MemoryIndex::default(), lineages: None, before }
    }

    /// The same, with lineages cached in memory or not.
    pub(super) fn caching(self, lineages: Option<LineageCache>) -> Self {
        Self { lineages, ..self }
    }

    fn changed(&self, key: &[u8]) {
        if let (Some(lineages), Some((lineage, depth, name))) = (&self.lineages, key::place_of_info(key)) {
            lineages.changed(lineage, depth, name);
        }
    }
}

impl<F> fmt::Debug for HookedIndex<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.fmt(f)
    }
}

impl<F> HotIndex for HookedIndex<F>
where
    F: Fn(Operation) -> Result<(), IndexError> + Send + Sync + 'static,
{
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        (self.before)(Operation::Put)?;
        self.rows.put(key, value)?;
        self.changed(key);
        Ok(())
    }

    fn remove(&self, key: &[u8]) -> Result<(), IndexError> {
        (self.before)(Operation::Remove)?;
        self.rows.remove(key)?;
        self.changed(key);
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexError> {
        (self.before)(Operation::Get)?;
        self.rows.get(key)
    }

    fn below(&self, key: &[u8]) -> Result<Option<Pair>, IndexError> {
        (self.before)(Operation::Seek)?;
        self.rows.below(key)
    }

    fn at_or_above(&self, key: &[u8]) -> Result<Option<Pair>, IndexError> {
        (self.before)(Operation::Seek)?;
        self.rows.at_or_above(key)
    }

    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), IndexError> {
        (self.before)(Operation::Seek)?;
        self.rows.scan(from, visit)
    }

    fn len(&self) -> u64 {
        self.rows.len()
    }

    fn clear(&self) -> Result<(), IndexError> {
        (self.before)(Operation::Whole)?;
        self.rows.clear()?;
        self.lineages.iter().for_each(LineageCache::clear);
        Ok(())
    }

    fn flush(&self) -> Result<(), IndexError> {
        (self.before)(Operation::Whole)?;
        self.rows.flush()
    }

    fn lineages(&self) -> Option<&LineageCache> {
        self.lineages.as_ref()
    }
}
