//! Rows of removals. A removal is kept until its object's name may be used again, across restarts of the
//! replica and longer than any process remembers: neither a row of the object nor a late journal entry makes
//! the object visible again.
//!
//! ```text
//! d · bucket 2 → entry … · CRC32C of key and value
//! entry = scope 8 · digest 8 · expires (s of the store's clock, 4) · by request 1
//! ```
//! A row holds the removals whose digests have a common prefix; separate rows would take five times the bytes
//! in the database's pages. Lookups check every row they find here, so a filter in memory answers first: one
//! bit for each value of a digest's leading bits. A set bit without an entry costs one read of the index. No bit
//! is ever cleared, so objects that only this process knows to be gone may be in the filter as well.

use std::{
    collections::{BTreeSet, HashSet},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use kvasir_types::ObjectDigest;
use parking_lot::Mutex;

use super::{
    IndexError,
    database::HotIndex,
    row::checksum,
    scope::Scope,
    truncated::{NAME_BYTES, name},
};

const REMOVED: u8 = b'd';
/// `u → ms of the store's clock 8`: until then removals may be missing from the rows, because a batch of them
/// was unreadable.
const MISSED: u8 = b'u';
/// Leading bits of a digest that name a bucket: with a million removals, a bucket has about 60.
const BUCKET_BITS: u32 = 14;
const ENTRY_BYTES: usize = 8 + NAME_BYTES + 4 + 1;
/// Bits of the filter: 1 MiB, so that with a million removals one in nine lookups of a row is in vain.
const FILTER_BITS: usize = 1 << 23;

/// A removed object, by scope and the leading bytes of its digest.
pub(super) type RemovedObject = ([u8; 8], [u8; NAME_BYTES]);

/// The removals in an index, and a filter of the digests that may have one.
#[derive(Debug)]
pub(super) struct RemovedFilter {
    bits: Box<[AtomicU64]>,
    /// Whether it has all removals of the index; until then any digest may have one.
    is_complete: AtomicBool,
    /// Held while a bucket is changed: it is read and written.
    changing: Mutex<()>,
}

/// A removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedRow {
    /// When its name may be used again, in ms of the store's clock; stored in whole seconds, rounded up.
    pub expires_ms: i64,
    /// Whether a request caused it: then running reads end as well.
    pub by_request: bool,
}

impl RemovedFilter {
    /// A filter that has not [`read`](Self::read) its index: any digest may have a removal.
    pub(super) fn new() -> Self {
        let bits = (0..FILTER_BITS / 64).map(|_| AtomicU64::new(0)).collect();
        Self { bits, is_complete: AtomicBool::new(false), changing: Mutex::default() }
    }

    /// Takes in the removals in `index`. Reading it twice changes nothing.
    pub(super) fn read(&self, index: &dyn HotIndex) -> Result<(), IndexError> {
        for_each_bucket(index, |_, bucket| bucket.entries().for_each(|entry| self.set(&entry.digest)))
    }

    /// The index that is in use was read.
    pub(super) fn mark_complete(&self) {
        self.is_complete.store(true, Ordering::Release);
    }

    /// Whether it has all removals of the index.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// Another index took the place of the one that was read: it has to be read as well.
    pub(super) fn mark_incomplete(&self) {
        self.is_complete.store(false, Ordering::Release);
    }

    /// Adds an object that is gone and has no row.
    pub(super) fn add(&self, digest: &ObjectDigest) {
        self.set(name(digest.as_bytes()));
    }

    fn set(&self, digest: &[u8; NAME_BYTES]) {
        self.bit(digest, |word, bit| word.fetch_or(bit, Ordering::Release));
    }

    fn bit<R>(&self, digest: &[u8; NAME_BYTES], with: impl FnOnce(&AtomicU64, u64) -> R) -> R {
        let [a, b, c, d, ..] = *digest;
        let bit = u32::from_le_bytes([a, b, c, d]) as usize % FILTER_BITS;
        with(&self.bits[bit / 64], 1 << (bit % 64))
    }

    /// Whether an object may have a removal, or be gone without one.
    pub(super) fn may_have(&self, digest: &ObjectDigest) -> bool {
        // In this order: what is complete has every bit.
        !self.is_complete()
            || self.bit(name(digest.as_bytes()), |word, bit| word.load(Ordering::Acquire) & bit != 0)
    }

    /// Records a removal. One by request replaces another one, never the other way round.
    pub(super) fn put(
        &self,
        index: &dyn HotIndex,
        scope: Scope,
        digest: &ObjectDigest,
        row: RemovedRow,
    ) -> Result<(), IndexError> {
        let _one_at_a_time = self.changing.lock();
        let (key, digest) = (key(digest), *name(digest.as_bytes()));
        let mut bucket = Bucket::read(index, &key)?;
        let before = bucket.take(scope, &digest);
        let by_request = row.by_request || before.is_some_and(|row| row.by_request);
        bucket.0.extend(
            Entry { scope: *scope.as_bytes(), digest, row: RemovedRow { by_request, ..row } }.to_bytes(),
        );
        bucket.write(index, &key)?;
        self.set(&digest);
        Ok(())
    }

    /// The removal of an object.
    pub(super) fn get(
        &self,
        index: &dyn HotIndex,
        scope: Scope,
        digest: &ObjectDigest,
    ) -> Result<Option<RemovedRow>, IndexError> {
        if !self.may_have(digest) {
            return Ok(None);
        }
        let bucket = Bucket::read(index, &key(digest))?;
        let found = bucket.entries().find(|entry| entry.is_of(scope, name(digest.as_bytes())));
        Ok(found.map(|entry| entry.row))
    }

    /// Deletes the removal of an object. Its bit stays set.
    pub(super) fn remove(
        &self,
        index: &dyn HotIndex,
        scope: Scope,
        digest: &ObjectDigest,
    ) -> Result<(), IndexError> {
        if !self.may_have(digest) {
            return Ok(());
        }
        let _one_at_a_time = self.changing.lock();
        let key = key(digest);
        let mut bucket = Bucket::read(index, &key)?;
        match bucket.take(scope, name(digest.as_bytes())) {
            Some(_) => bucket.write(index, &key),
            None => Ok(()),
        }
    }

    /// The objects whose removals expired at `now_ms`.
    pub(super) fn expired(
        &self,
        index: &dyn HotIndex,
        now_ms: i64,
    ) -> Result<HashSet<RemovedObject>, IndexError> {
        let mut expired = HashSet::new();
        for_each_bucket(index, |_, bucket| {
            let over = bucket.entries().filter(|entry| entry.row.expires_ms <= now_ms);
            expired.extend(over.map(|entry| (entry.scope, entry.digest)));
        })?;
        Ok(expired)
    }

    /// Deletes those of the `expired` removals that were not renewed. Returns their number.
    pub(super) fn expire(
        &self,
        index: &dyn HotIndex,
        expired: &HashSet<RemovedObject>,
        now_ms: i64,
    ) -> Result<u64, IndexError> {
        let is_over = |entry: &Entry| entry.row.expires_ms <= now_ms;
        let keys: BTreeSet<[u8; 3]> = expired.iter().map(|(_, digest)| key_of(digest)).collect();
        let mut expired = 0;
        for key in keys {
            // Not for all of them at once: a pass over many must not keep a removal by request waiting.
            let _one_at_a_time = self.changing.lock();
            let bucket = Bucket::read(index, &key)?;
            let left: Vec<Entry> = bucket.entries().filter(|entry| !is_over(entry)).collect();
            expired += (bucket.0.len() / ENTRY_BYTES - left.len()) as u64;
            Bucket(left.into_iter().flat_map(Entry::to_bytes).collect()).write(index, &key)?;
        }
        Ok(expired)
    }
}

/// A removal in its bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Entry {
    scope: [u8; 8],
    digest: [u8; NAME_BYTES],
    row: RemovedRow,
}

impl Entry {
    fn is_of(&self, scope: Scope, digest: &[u8; NAME_BYTES]) -> bool {
        self.scope == *scope.as_bytes() && self.digest == *digest
    }

    fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let seconds =
            u32::try_from(self.row.expires_ms.max(0).cast_unsigned().div_ceil(1_000)).unwrap_or(NEVER);
        let mut bytes = [0; ENTRY_BYTES];
        let (scope, rest) = bytes.split_at_mut(8);
        let (digest, rest) = rest.split_at_mut(NAME_BYTES);
        let (expires, by_request) = rest.split_at_mut(4);
        scope.copy_from_slice(&self.scope);
        digest.copy_from_slice(&self.digest);
        expires.copy_from_slice(&seconds.to_le_bytes());
        by_request.fill(u8::from(self.row.by_request));
        bytes
    }

    fn of_bytes(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let (scope, rest) = bytes.split_first_chunk()?;
        let (digest, rest) = rest.split_first_chunk()?;
        let (seconds, by_request) = rest.split_first_chunk::<4>()?;
        let seconds = u32::from_le_bytes(*seconds);
        let expires_ms = if seconds == NEVER { i64::MAX } else { i64::from(seconds) * 1_000 };
        let row = RemovedRow { expires_ms, by_request: by_request == [1] };
        Some(Self { scope: *scope, digest: *digest, row })
    }
}

/// Expiry of removals whose time is unknown.
const NEVER: u32 = u32::MAX;

/// The entries of a row, concatenated.
#[derive(Debug)]
struct Bucket(Vec<u8>);

impl Bucket {
    fn read(index: &dyn HotIndex, key: &[u8]) -> Result<Self, IndexError> {
        index.get(key)?.map_or(Ok(Self(Vec::new())), |value| Self::decode(key, &value))
    }

    fn decode(key: &[u8], value: &[u8]) -> Result<Self, IndexError> {
        let corrupt = || IndexError::Corrupt { what: "a row of removals".to_owned() };
        let (entries, crc) = value.split_last_chunk::<4>().ok_or_else(corrupt)?;
        let is_sound = checksum(key, entries) == u32::from_le_bytes(*crc)
            && entries.len().is_multiple_of(ENTRY_BYTES)
            && key.len() == 3;
        if is_sound { Ok(Self(entries.to_vec())) } else { Err(corrupt()) }
    }

    fn write(mut self, index: &dyn HotIndex, key: &[u8]) -> Result<(), IndexError> {
        if self.0.is_empty() {
            return index.remove(key);
        }
        let crc = checksum(key, &self.0);
        self.0.extend(crc.to_le_bytes());
        index.put(key, &self.0)
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        self.0.as_chunks().0.iter().filter_map(Entry::of_bytes)
    }

    /// Removes an object's entry.
    fn take(&mut self, scope: Scope, digest: &[u8; NAME_BYTES]) -> Option<RemovedRow> {
        let at = self.entries().position(|entry| entry.is_of(scope, digest))?;
        let bytes: Vec<u8> = self.0.drain(at * ENTRY_BYTES..(at + 1) * ENTRY_BYTES).collect();
        Entry::of_bytes(bytes.first_chunk()?).map(|entry| entry.row)
    }
}

fn for_each_bucket(index: &dyn HotIndex, mut visit: impl FnMut(&[u8], &Bucket)) -> Result<(), IndexError> {
    index.scan(&[REMOVED], &mut |key, value| {
        if key.first() != Some(&REMOVED) {
            return Ok(false);
        }
        visit(key, &Bucket::decode(key, value)?);
        Ok(true)
    })
}

pub(super) fn put_missed_until(index: &dyn HotIndex, store_ms: i64) -> Result<(), IndexError> {
    index.put(&[MISSED], &store_ms.to_le_bytes())
}

pub(super) fn missed_until(index: &dyn HotIndex) -> Result<Option<i64>, IndexError> {
    let Some(value) = index.get(&[MISSED])? else { return Ok(None) };
    let corrupt = |_| IndexError::Corrupt { what: "the row of missed removals".to_owned() };
    Ok(Some(i64::from_le_bytes(value.as_slice().try_into().map_err(corrupt)?)))
}

/// `d · bucket 2`.
fn key(digest: &ObjectDigest) -> [u8; 3] {
    key_of(name(digest.as_bytes()))
}

fn key_of(digest: &[u8; NAME_BYTES]) -> [u8; 3] {
    let [a, b, ..] = *digest;
    let [a, b] = (u16::from_be_bytes([a, b]) >> (u16::BITS - BUCKET_BITS)).to_be_bytes();
    [REMOVED, a, b]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::index::MemoryIndex;

    fn scope(name: &str) -> Scope {
        Scope::new(&name.parse().expect("a name"), &[1; 32].into())
    }

    fn filter_of(index: &MemoryIndex) -> RemovedFilter {
        let filter = RemovedFilter::new();
        filter.read(index).expect("memory");
        filter.mark_complete();
        filter
    }

    fn digest(n: u8) -> ObjectDigest {
        // Four to a bucket.
        let mut bytes = [n; 32];
        bytes[..2].copy_from_slice(&u16::from(n).to_be_bytes());
        bytes.into()
    }

    #[test]
    fn removals_are_found_until_they_expire_and_over_a_restart() {
        let (index, scope, other) = (MemoryIndex::default(), scope("a"), scope("b"));
        let filter = filter_of(&index);
        let row = |n: u8| RemovedRow { expires_ms: 1_000 * i64::from(n), by_request: n.is_multiple_of(2) };
        for n in 0..10 {
            filter.put(&index, scope, &digest(n), row(n)).expect("memory");
        }
        let again = filter_of(&index);
        for n in 0..10 {
            assert_eq!(again.get(&index, scope, &digest(n)).expect("memory"), Some(row(n)));
            assert_eq!(filter.get(&index, scope, &digest(n)).expect("memory"), Some(row(n)));
        }
        assert_eq!(again.get(&index, other, &digest(1)).expect("memory"), None);
        assert_eq!(again.get(&index, scope, &digest(77)).expect("memory"), None);
        // The collector's reason does not replace a request's.
        let late = RemovedRow { expires_ms: 99_001, by_request: false };
        again.put(&index, scope, &digest(8), late).expect("memory");
        let found = again.get(&index, scope, &digest(8)).expect("memory").expect("an entry");
        assert_eq!(found, RemovedRow { expires_ms: 100_000, by_request: true });
        assert_eq!(
            again.expire(&index, &again.expired(&index, 5_000).expect("memory"), 5_000).expect("memory"),
            6
        );
        assert_eq!(again.get(&index, scope, &digest(5)).expect("memory"), None);
        assert!(again.get(&index, scope, &digest(6)).expect("memory").is_some());
        again.remove(&index, scope, &digest(6)).expect("memory");
        assert_eq!(again.get(&index, scope, &digest(6)).expect("memory"), None);
        let never = RemovedRow { expires_ms: i64::MAX, by_request: true };
        again.put(&index, scope, &digest(6), never).expect("memory");
        assert_eq!(
            again
                .expire(&index, &again.expired(&index, i64::MAX - 1).expect("memory"), i64::MAX - 1)
                .expect("memory"),
            3
        );
        assert_eq!(again.get(&index, scope, &digest(6)).expect("memory"), Some(never));
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let (index, scope) = (MemoryIndex::default(), scope("a"));
        let filter = filter_of(&index);
        let row = RemovedRow { expires_ms: 7_000, by_request: true };
        filter.put(&index, scope, &digest(4), row).expect("memory");
        let key = key(&digest(4));
        let value = index.get(&key).expect("memory").expect("a row");
        for bit in 0..8 * value.len() {
            let mut bad = value.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Bucket::decode(&key, &bad).is_err(), "bit {bit}");
        }
    }

    proptest! {
        /// Compares with a plain map: arbitrary puts, removals and expiries, across restarts.
        #[test]
        fn buckets_are_a_map(steps in prop::collection::vec((0u8..12, any::<bool>(), 0i64..8, 0u8..8), 0..60)) {
            let index = MemoryIndex::default();
            let mut filter = filter_of(&index);
            let mut map = std::collections::BTreeMap::new();
            for (n, by_request, seconds, what) in steps {
                let of = (n % 2, n);
                let scope = scope(if of.0 == 0 { "a" } else { "b" });
                match what {
                    0 => {
                        let before = map.len();
                        map.retain(|_, row: &mut RemovedRow| row.expires_ms > 1_000 * seconds);
                        let now_ms = 1_000 * seconds;
                        let over = filter.expired(&index, now_ms).expect("memory");
                        let expired = filter.expire(&index, &over, now_ms).expect("memory");
                        prop_assert_eq!(expired as usize, before - map.len());
                    }
                    1 => {
                        map.remove(&of);
                        filter.remove(&index, scope, &digest(n)).expect("memory");
                    }
                    2 => filter = filter_of(&index),
                    _ => {
                        let row = RemovedRow { expires_ms: 1_000 * seconds, by_request };
                        let kept = map.get(&of).is_some_and(|row| row.by_request);
                        map.insert(of, RemovedRow { by_request: by_request || kept, ..row });
                        filter.put(&index, scope, &digest(n), row).expect("memory");
                    }
                }
                for n in 0..12 {
                    let scope = self::scope(if n % 2 == 0 { "a" } else { "b" });
                    let found = filter.get(&index, scope, &digest(n)).expect("memory");
                    prop_assert_eq!(found, map.get(&(n % 2, n)).copied());
                }
            }
        }
    }
}
