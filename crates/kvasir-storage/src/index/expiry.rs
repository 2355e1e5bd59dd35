//! Deletes the rows of removed objects before their removals are forgotten. Most are gone long before; a row is left where a replica
//! heard of the removal of an object that it had not met for long, and no walk has met it since.

use std::collections::HashSet;

use parking_lot::Mutex;

use super::{IndexError, database::HotIndex, key, removed::RemovedFilter};

/// Rows read before writers get their turn.
const SLICE: usize = 4_096;

/// Deletes the removals that expired at `now_ms`, after the rows of their objects. Returns the number of removals. `writing` is held
/// while rows are deleted.
pub(super) fn expire(
    index: &dyn HotIndex,
    removed: &RemovedFilter,
    writing: &Mutex<()>,
    now_ms: i64,
) -> Result<u64, IndexError> {
    let expired = removed.expired(index, now_ms)?;
    if expired.is_empty() {
        return Ok(0);
    }
    let mut chunks: HashSet<Vec<u8>> = HashSet::new();
    let is_of_expired = |key: &[u8]| key::object_of_info(key).is_some_and(|object| expired.contains(&object));
    delete(index, writing, key::ALL_INFOS, &is_of_expired, &mut |key| {
        chunks.extend(key::chunk_of_info(key).map(<[u8]>::to_vec));
        index.remove(key)
    })?;
    // Siblings have rows for their blocks: they go with the last object of their chunk.
    let is_of_chunk = |key: &[u8]| key::infos_of_matching(key).is_some_and(|chunk| chunks.contains(&chunk));
    delete(index, writing, key::ALL_MATCHES, &is_of_chunk, &mut |key| {
        let Some(chunk) = key::infos_of_matching(key) else { return Ok(()) };
        let is_left = index.at_or_above(&chunk)?.is_some_and(|(key, _)| key.starts_with(&chunk));
        if is_left { Ok(()) } else { index.remove(key) }
    })?;
    removed.expire(index, &expired, now_ms)
}

/// Calls `delete` for the rows of one kind whose keys are `wanted`.
fn delete(
    index: &dyn HotIndex,
    writing: &Mutex<()>,
    kind: &[u8],
    wanted: &dyn Fn(&[u8]) -> bool,
    delete: &mut dyn FnMut(&[u8]) -> Result<(), IndexError>,
) -> Result<(), IndexError> {
    let mut from = kind.to_vec();
    loop {
        let (mut found, mut read, mut last) = (Vec::new(), 0, Vec::new());
        index.scan(&from, &mut |key, _| {
            if !key.starts_with(kind) {
                return Ok(false);
            }
            if wanted(key) {
                found.push(key.to_vec());
            }
            read += 1;
            last = key.to_vec();
            Ok(read < SLICE)
        })?;
        {
            let _one_at_a_time = writing.lock();
            found.iter().try_for_each(|key| delete(key))?;
        }
        if read < SLICE {
            return Ok(());
        }
        // The next key there can be.
        last.push(0);
        from = last;
    }
}
