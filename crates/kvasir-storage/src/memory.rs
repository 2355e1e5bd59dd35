//! Bounded memory: a buffer is charged to a budget for as long as it lives, regardless of its holder. Bytes
//! not yet sent to readers count like cached ones, so resident memory does not exceed the configured amount.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use memmap2::{MmapMut, MmapOptions};
use parking_lot::Mutex;

/// Regions from this size on are separate mappings: their memory returns to the system at once, where an
/// allocator would keep it between others.
const MAPPED_BYTES_MIN: usize = 64 << 10;

/// Maximum bytes held at once.
#[derive(Debug)]
pub struct MemoryBudget {
    total: u64,
    used: AtomicU64,
    peak: AtomicU64,
}

impl MemoryBudget {
    /// `total` bytes, all of them free.
    pub fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, used: AtomicU64::new(0), peak: AtomicU64::new(0) })
    }

    /// Takes `bytes`, if they are free.
    pub fn lease(self: &Arc<Self>, bytes: u64) -> Option<Lease> {
        self.lease_leaving(bytes, 0)
    }

    /// Takes `bytes`, if `left` are still free afterwards.
    pub fn lease_leaving(self: &Arc<Self>, bytes: u64, left: u64) -> Option<Lease> {
        let after = |used: u64| {
            let after = used.checked_add(bytes)?;
            (after.checked_add(left)? <= self.total).then_some(after)
        };
        let before = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, after).ok()?;
        self.peak.fetch_max(before + bytes, Ordering::AcqRel);
        Some(Lease { budget: Arc::clone(self), bytes })
    }

    /// Total bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Peak of the bytes in use.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Acquire)
    }
}

/// Bytes of a budget; freed when dropped.
#[derive(Debug)]
pub struct Lease {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// A buffer of fixed length, initially zero, with its lease.
pub(crate) struct Region {
    backing: Backing,
    _lease: Option<Lease>,
}

enum Backing {
    Small(Vec<u8>),
    Mapped(MmapMut),
}

impl Region {
    pub(crate) fn new(bytes: usize, lease: Option<Lease>) -> Self {
        // All of it will be written: populating its pages at once costs a fraction of faulting each.
        let map = || MmapOptions::new().len(bytes).populate().map_anon().ok();
        let mapped = if bytes >= MAPPED_BYTES_MIN { map() } else { None };
        let backing = mapped.map_or_else(|| Backing::Small(vec![0; bytes]), Backing::Mapped);
        Self { backing, _lease: lease }
    }

    /// The first `bytes` of it. The lease lasts as long as any reference to them.
    pub(crate) fn freeze(self, bytes: usize) -> Bytes {
        Bytes::from_owner(self).slice(..bytes)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.len())
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.backing {
            Backing::Small(bytes) => bytes,
            Backing::Mapped(bytes) => bytes,
        }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.backing {
            Backing::Small(bytes) => bytes,
            Backing::Mapped(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Reusable regions of one size, because the system charges for each new page. Idle ones stay charged to the
/// budget.
#[derive(Debug)]
pub(crate) struct RegionPool {
    budget: Arc<MemoryBudget>,
    bytes: usize,
    free: Mutex<Vec<Region>>,
}

impl RegionPool {
    pub(crate) fn new(budget: Arc<MemoryBudget>, bytes: usize) -> Arc<Self> {
        Arc::new(Self { budget, bytes, free: Mutex::default() })
    }

    /// A region of the pool's size with arbitrary contents, if `left` bytes of the budget stay free.
    pub(crate) fn take(self: &Arc<Self>, left: u64) -> Option<PooledRegion> {
        let waiting = {
            let mut free = self.free.lock();
            let held = self.budget.used().saturating_sub((free.len() * self.bytes) as u64);
            let fits = held + self.bytes as u64 + left <= self.budget.total();
            if fits { free.pop() } else { return None }
        };
        let region = match waiting {
            Some(region) => region,
            None => Region::new(self.bytes, Some(self.lease(self.bytes as u64, left)?)),
        };
        Some(PooledRegion { region: Some(region), pool: Arc::clone(self) })
    }

    /// A lease of the pool's budget; frees idle regions for it.
    pub(crate) fn lease(&self, bytes: u64, left: u64) -> Option<Lease> {
        loop {
            if let Some(lease) = self.budget.lease_leaving(bytes, left) {
                return Some(lease);
            }
            drop(self.free.lock().pop()?);
        }
    }
}

/// A region that returns to its pool.
#[derive(Debug)]
pub(crate) struct PooledRegion {
    region: Option<Region>,
    pool: Arc<RegionPool>,
}

impl Deref for PooledRegion {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.region.as_deref().unwrap_or_default()
    }
}

impl DerefMut for PooledRegion {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.region.as_deref_mut().unwrap_or_default()
    }
}

impl AsRef<[u8]> for PooledRegion {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for PooledRegion {
    fn drop(&mut self) {
        self.pool.free.lock().extend(self.region.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_lasts_as_long_as_any_byte_of_its_buffer() {
        let budget = MemoryBudget::new(200_000);
        for bytes in [1_000, 100_000] {
            let mut region = Region::new(bytes, budget.lease(bytes as u64));
            region[bytes - 1] = 7;
            let frozen = region.freeze(bytes);
            let last = frozen.slice(bytes - 1..);
            drop(frozen);
            assert_eq!((last[0], budget.used()), (7, bytes as u64));
            assert!(budget.lease(200_001 - bytes as u64).is_none());
            assert!(budget.lease_leaving(100_000, 100_001 - bytes as u64).is_none());
            drop(last);
            assert_eq!(budget.used(), 0);
        }
        assert_eq!(budget.peak(), 100_000);
        assert!(budget.lease(u64::MAX).is_none(), "and no overflow");
    }

    #[test]
    fn waiting_regions_are_used_again_or_given_up_and_stay_within_the_budget() {
        let budget = MemoryBudget::new(300_000);
        let pool = RegionPool::new(Arc::clone(&budget), 100_000);
        let taken: Vec<_> = (0..4).map(|_| pool.take(0)).collect();
        assert_eq!(taken.iter().flatten().count(), 3);
        drop(taken);
        assert_eq!(budget.used(), 300_000, "they wait");
        assert!(pool.take(0).is_some_and(|region| region.len() == 100_000));
        let lease = pool.lease(150_000, 0).expect("two are given up");
        assert_eq!(budget.used(), 250_000);
        assert!(pool.take(50_001).is_none() && pool.take(50_000).is_some(), "some is left for others");
        drop(lease);
        assert!(pool.lease(300_001, 0).is_none());
        assert_eq!(budget.used(), 0, "all were given up for it");
    }
}
