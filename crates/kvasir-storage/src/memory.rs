//! Bounded memory: a buffer is charged to a budget for as long as it lives, regardless of its holder. Bytes
//! not yet sent to readers count like cached ones, so resident memory does not exceed the configured amount.
//!
//! The system charges for each new page several times the cost of copying into it. So a budget keeps some of
//! the freed memory, within its limit, for the next buffer of that length, and releases it when other memory
//! is requested.

use std::{
    collections::VecDeque,
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
const MAPPED_BYTES_MIN: u64 = 64 << 10;
/// Smallest step between lengths of mappings.
const PAGE_BYTES: u64 = 4 << 10;

/// Maximum bytes held at once.
#[derive(Debug)]
pub struct MemoryBudget {
    total: u64,
    used: AtomicU64,
    peak: AtomicU64,
    spare_max: u64,
    /// Bytes of the mappings in `spare`. With those used they are at most `total`.
    spare_bytes: AtomicU64,
    /// Mappings without an owner, the oldest first.
    spare: Mutex<VecDeque<MmapMut>>,
}

impl MemoryBudget {
    /// `total` bytes, all of them free.
    pub fn new(total: u64) -> Arc<Self> {
        Self::with_spare(total, 0)
    }

    /// As [`new`](Self::new). Up to `spare_max` bytes that are let go stay with the process.
    pub(crate) fn with_spare(total: u64, spare_max: u64) -> Arc<Self> {
        let (used, peak, spare_bytes) = Default::default();
        Arc::new(Self { total, used, peak, spare_max, spare_bytes, spare: Mutex::default() })
    }

    /// Takes `bytes`, if they are free.
    pub fn lease(self: &Arc<Self>, bytes: u64) -> Option<Lease> {
        self.lease_leaving(bytes, 0)
    }

    /// Takes `bytes`, if `left` are still free afterwards. Long ones are charged as mapped.
    pub fn lease_leaving(self: &Arc<Self>, bytes: u64, left: u64) -> Option<Lease> {
        let bytes = mapped_bytes(bytes)?;
        let after = |used: u64| {
            let after = used.checked_add(bytes)?;
            (after.checked_add(left)? <= self.total).then_some(after)
        };
        let before = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, after).ok()?;
        self.peak.fetch_max(before + bytes, Ordering::AcqRel);
        if self.spare_bytes.load(Ordering::SeqCst) > 0 {
            self.trim(&mut self.spare.lock());
        }
        Some(Lease { budget: Arc::clone(self), bytes })
    }

    /// Releases spare mappings until they and the used memory are within the limits.
    fn trim(&self, spare: &mut VecDeque<MmapMut>) {
        let is_over = || {
            let bytes = self.spare_bytes.load(Ordering::SeqCst);
            bytes > self.spare_max || self.used() + bytes > self.total
        };
        while is_over()
            && let Some(oldest) = spare.pop_front()
        {
            self.spare_bytes.fetch_sub(oldest.len() as u64, Ordering::SeqCst);
        }
    }

    /// A spare mapping of that length.
    fn take_spare(&self, bytes: usize) -> Option<MmapMut> {
        let mut spare = self.spare.lock();
        let at = spare.iter().rposition(|mapping| mapping.len() == bytes)?;
        self.spare_bytes.fetch_sub(bytes as u64, Ordering::SeqCst);
        spare.remove(at)
    }

    /// Keeps a mapping whose lease has ended.
    fn keep(&self, mapping: MmapMut) {
        let mut spare = self.spare.lock();
        self.spare_bytes.fetch_add(mapping.len() as u64, Ordering::SeqCst);
        spare.push_back(mapping);
        self.trim(&mut spare);
    }

    /// Total bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    /// Peak of the bytes in use.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Acquire)
    }
}

/// Bytes of memory that a buffer of `bytes` takes. Lengths of mappings are rounded, so that many are equal; by
/// a sixteenth at most: eviction policies count the bytes themselves, and what they admit has to fit.
fn mapped_bytes(bytes: u64) -> Option<u64> {
    if bytes < MAPPED_BYTES_MIN {
        return Some(bytes);
    }
    let step = (bytes.checked_next_power_of_two()? / 32).clamp(PAGE_BYTES, MAPPED_BYTES_MIN);
    bytes.checked_next_multiple_of(step)
}

/// Bytes of a budget; freed when dropped.
#[derive(Debug)]
pub struct Lease {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// A buffer of fixed length with arbitrary initial contents, and its lease.
pub(crate) struct Region {
    backing: Backing,
    bytes: usize,
    lease: Option<Lease>,
}

enum Backing {
    Small(Vec<u8>),
    Mapped(MmapMut),
}

impl Region {
    /// `lease` pays for it, and has memory for it where its budget has some to spare.
    pub(crate) fn new(bytes: usize, lease: Option<Lease>) -> Self {
        let backing = Self::mapping(bytes, lease.as_ref());
        let backing = backing.map_or_else(|| Backing::Small(vec![0; bytes]), Backing::Mapped);
        Self { backing, bytes, lease }
    }

    fn mapping(bytes: usize, lease: Option<&Lease>) -> Option<MmapMut> {
        let length = mapped_bytes(bytes as u64).filter(|length| *length >= MAPPED_BYTES_MIN)? as usize;
        let spare = lease.and_then(|lease| lease.budget.take_spare(length));
        // All of it will be written: populating its pages at once costs a fraction of faulting each.
        spare.or_else(|| MmapOptions::new().len(length).populate().map_anon().ok())
    }

    /// The first `bytes` of it. The lease lasts as long as any reference to them.
    pub(crate) fn freeze(self, bytes: usize) -> Bytes {
        Bytes::from_owner(self).slice(..bytes)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let backing = std::mem::replace(&mut self.backing, Backing::Small(Vec::new()));
        let budget = Arc::clone(&lease.budget);
        drop(lease);
        if let Backing::Mapped(mapping) = backing
            && budget.spare_max > 0
        {
            budget.keep(mapping);
        }
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
            Backing::Mapped(bytes) => &bytes[..self.bytes],
        }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.backing {
            Backing::Small(bytes) => bytes,
            Backing::Mapped(bytes) => &mut bytes[..self.bytes],
        }
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Regions that one user takes repeatedly.
#[derive(Debug)]
pub(crate) struct RegionPool {
    free: Mutex<Vec<Region>>,
}

impl RegionPool {
    pub(crate) fn new(regions: Vec<Region>) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(regions) })
    }

    /// An idle region.
    pub(crate) fn take(self: &Arc<Self>) -> Option<PooledRegion> {
        let region = self.free.lock().pop()?;
        Some(PooledRegion { region: Some(region), pool: Arc::clone(self) })
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
        for (bytes, taken) in [(1_000, 1_000), (100_000, 102_400)] {
            let mut region = Region::new(bytes, budget.lease(bytes as u64));
            assert_eq!(region.len(), bytes);
            region[bytes - 1] = 7;
            let frozen = region.freeze(bytes);
            let last = frozen.slice(bytes - 1..);
            drop(frozen);
            assert_eq!((last[0], budget.used()), (7, taken));
            assert!(budget.lease(200_001 - taken).is_none());
            assert!(budget.lease_leaving(10_000, 190_001 - taken).is_none());
            drop(last);
            assert_eq!(budget.used(), 0);
        }
        assert_eq!(budget.peak(), 102_400);
        assert!(budget.lease(u64::MAX).is_none(), "and no overflow");
    }

    #[test]
    fn what_is_let_go_is_used_again_or_given_up_and_stays_within_the_limits() {
        const MIB: u64 = 1 << 20;
        let budget = MemoryBudget::with_spare(8 * MIB, 4 * MIB);
        let region = |bytes: u64| Region::new(bytes as usize, Some(budget.lease(bytes).expect("there is")));
        let spare = || budget.spare_bytes.load(Ordering::SeqCst) / MIB;
        let mut regions: Vec<_> = (0..6).map(|_| region(MIB)).collect();
        regions.iter_mut().for_each(|region| region.fill(7));
        drop(regions);
        assert_eq!((budget.used(), spare()), (0, 4), "no more than may be kept");
        // One of nearly that length has its memory, one of another length has not.
        let (again, other) = (region(MIB - 100), region(2 * MIB));
        assert_eq!((again.len() as u64, again[0], other[0]), (MIB - 100, 7, 0));
        assert_eq!((budget.used() / MIB, spare()), (3, 3));
        // What others ask for comes first.
        let lease = budget.lease(4 * MIB).expect("it is free");
        assert_eq!((budget.used() / MIB, spare()), (7, 1));
        assert!(budget.lease_leaving(MIB, 1).is_none() && budget.lease(MIB).is_some());
        drop((again, other, lease));
        assert_eq!((budget.used(), spare()), (0, 3), "1 MiB and 2 MiB");
        // What nobody pays for goes.
        drop(Region::new(MIB as usize, None));
        assert_eq!(spare(), 3);
    }

    #[test]
    fn a_pool_lends_what_it_was_given() {
        let pool = RegionPool::new((0..2).map(|_| Region::new(100, None)).collect());
        let (first, second) = (pool.take(), pool.take());
        assert!(first.is_some_and(|region| region.len() == 100) && second.is_some());
        assert!(pool.take().is_some() && pool.take().is_some(), "they came back");
    }
}
