//! Rows of removals. A removal is kept until its object's name may be used again, over restarts of the replica and longer
//! than the memories of one process: a row of the object that is met, or an entry that comes late, does not offer it again.
//!
//! ```text
//! d · scope 8 · digest 8 → expires (ms of the store's clock) 8 · by request 1 · CRC32C of key and value
//! ```
//! Every row that a lookup meets is asked for here, so a filter in memory answers first: a bit for each value of a digest's
//! leading bits. A set bit without a row costs one read of the index.

use std::sync::atomic::{AtomicU64, Ordering};

use kvasir_types::ObjectDigest;

use super::{
    IndexError,
    database::HotIndex,
    scope::Scope,
    truncated::{NAME_BYTES, name},
};

const REMOVED: u8 = b'd';
/// `u → ms of the store's clock 8`: until then removals may be missing from the rows, because a batch of them was damaged.
const MISSED: u8 = b'u';
const KEY_BYTES: usize = 1 + 8 + NAME_BYTES;
/// Bits of the filter: 1 MiB, so that of a million removals one in nine lookups of a row asks in vain.
const FILTER_BITS: usize = 1 << 23;

/// Which digests may have a row.
#[derive(Debug)]
pub(super) struct RemovedFilter(Box<[AtomicU64]>);

/// A removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedRow {
    /// When its name may be used again, in ms of the store's clock.
    pub expires_ms: i64,
    /// Whether a request asked for it: then it is never lifted.
    pub by_request: bool,
}

impl RemovedFilter {
    /// Of the rows in `index`.
    pub(super) fn of(index: &dyn HotIndex) -> Result<Self, IndexError> {
        let this = Self((0..FILTER_BITS / 64).map(|_| AtomicU64::new(0)).collect());
        index.scan(&[REMOVED], &mut |key, _| {
            let digest = key.get(KEY_BYTES - NAME_BYTES..KEY_BYTES).filter(|_| key[0] == REMOVED);
            let Some(digest) = digest else { return Ok(false) };
            this.bit(digest, |word, bit| word.fetch_or(bit, Ordering::Relaxed));
            Ok(true)
        })?;
        Ok(this)
    }

    fn bit<R>(&self, digest: &[u8], with: impl FnOnce(&AtomicU64, u64) -> R) -> R {
        let leading = digest.first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let bit = leading as usize % FILTER_BITS;
        with(&self.0[bit / 64], 1 << (bit % 64))
    }

    fn may_have(&self, digest: &ObjectDigest) -> bool {
        self.bit(digest.as_bytes(), |word, bit| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Writes a row. A removal by request takes the place of another one, never the other way round.
    pub(super) fn put(
        &self,
        index: &dyn HotIndex,
        scope: Scope,
        digest: &ObjectDigest,
        row: RemovedRow,
    ) -> Result<(), IndexError> {
        let by_request = row.by_request || self.get(index, scope, digest)?.is_some_and(|row| row.by_request);
        let key = key(scope, digest);
        let mut value = row.expires_ms.to_le_bytes().to_vec();
        value.push(u8::from(by_request));
        let crc = crc32c::crc32c_append(crc32c::crc32c(&key), &value);
        value.extend(crc.to_le_bytes());
        index.put(&key, &value)?;
        self.bit(digest.as_bytes(), |word, bit| word.fetch_or(bit, Ordering::Release));
        Ok(())
    }

    /// The row of an object.
    pub(super) fn get(
        &self,
        index: &dyn HotIndex,
        scope: Scope,
        digest: &ObjectDigest,
    ) -> Result<Option<RemovedRow>, IndexError> {
        if !self.may_have(digest) {
            return Ok(None);
        }
        let key = key(scope, digest);
        let Some(value) = index.get(&key)? else { return Ok(None) };
        decode(&key, &value).map(Some)
    }

    /// Removes the row of an object. Its bit stays until the index is opened again.
    pub(super) fn remove(
        &self,
        index: &dyn HotIndex,
        scope: Scope,
        digest: &ObjectDigest,
    ) -> Result<(), IndexError> {
        if self.may_have(digest) { index.remove(&key(scope, digest)) } else { Ok(()) }
    }
}

/// Removes the rows that expired at `now_ms`. Gives how many.
pub(super) fn expire(index: &dyn HotIndex, now_ms: i64) -> Result<u64, IndexError> {
    let mut expired = Vec::new();
    index.scan(&[REMOVED], &mut |key, value| {
        if key.first() != Some(&REMOVED) {
            return Ok(false);
        }
        if decode(key, value)?.expires_ms <= now_ms {
            expired.push(key.to_vec());
        }
        Ok(true)
    })?;
    for key in &expired {
        index.remove(key)?;
    }
    Ok(expired.len() as u64)
}

pub(super) fn put_missed_until(index: &dyn HotIndex, store_ms: i64) -> Result<(), IndexError> {
    index.put(&[MISSED], &store_ms.to_le_bytes())
}

pub(super) fn missed_until(index: &dyn HotIndex) -> Result<Option<i64>, IndexError> {
    let Some(value) = index.get(&[MISSED])? else { return Ok(None) };
    let corrupt = |_| IndexError::Corrupt { what: "the row of missed removals".to_owned() };
    Ok(Some(i64::from_le_bytes(value.as_slice().try_into().map_err(corrupt)?)))
}

fn key(scope: Scope, digest: &ObjectDigest) -> Vec<u8> {
    let mut key = Vec::with_capacity(KEY_BYTES);
    key.push(REMOVED);
    key.extend(scope.as_bytes());
    key.extend(name(digest.as_bytes()));
    key
}

fn decode(key: &[u8], value: &[u8]) -> Result<RemovedRow, IndexError> {
    let corrupt = || IndexError::Corrupt { what: "the row of a removal".to_owned() };
    let (row, crc) = value.split_last_chunk::<4>().ok_or_else(corrupt)?;
    if crc32c::crc32c_append(crc32c::crc32c(key), row) != u32::from_le_bytes(*crc) {
        return Err(corrupt());
    }
    let (expires, by_request) = row.split_first_chunk::<8>().ok_or_else(corrupt)?;
    Ok(RemovedRow { expires_ms: i64::from_le_bytes(*expires), by_request: by_request == [1] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::MemoryIndex;

    #[test]
    fn rows_are_found_until_they_expire_and_over_a_restart() {
        let (index, scope) =
            (MemoryIndex::default(), Scope::new(&"a".parse().expect("a name"), &[1; 32].into()));
        let filter = RemovedFilter::of(&index).expect("memory");
        let digest = |n: u8| ObjectDigest::from([n; 32]);
        for n in 0..10 {
            let row = RemovedRow { expires_ms: i64::from(n), by_request: n % 2 == 0 };
            filter.put(&index, scope, &digest(n), row).expect("memory");
        }
        let again = RemovedFilter::of(&index).expect("memory");
        for n in 0..10 {
            let row = Some(RemovedRow { expires_ms: i64::from(n), by_request: n % 2 == 0 });
            assert_eq!(again.get(&index, scope, &digest(n)).expect("memory"), row);
            assert_eq!(filter.get(&index, scope, &digest(n)).expect("memory"), row);
        }
        let other = Scope::new(&"b".parse().expect("a name"), &[1; 32].into());
        assert_eq!(again.get(&index, other, &digest(1)).expect("memory"), None);
        assert_eq!(again.get(&index, scope, &digest(77)).expect("memory"), None);
        // The collector's reason does not take the place of a request's.
        again
            .put(&index, scope, &digest(8), RemovedRow { expires_ms: 99, by_request: false })
            .expect("memory");
        let row = again.get(&index, scope, &digest(8)).expect("memory").expect("a row");
        assert_eq!(row, RemovedRow { expires_ms: 99, by_request: true });
        assert_eq!(expire(&index, 5).expect("memory"), 6);
        assert_eq!(again.get(&index, scope, &digest(5)).expect("memory"), None);
        assert!(again.get(&index, scope, &digest(6)).expect("memory").is_some());
        again.remove(&index, scope, &digest(6)).expect("memory");
        assert_eq!(again.get(&index, scope, &digest(6)).expect("memory"), None);
    }
}
