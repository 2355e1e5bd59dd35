//! The tier: its parts, its memory, and the location of its frames.

use std::{fmt, io, sync::Arc};

use bytes::Bytes;
use kvasir_eviction::{CURVE_SCALES, EvictionIndex, HitRatioCurve, Moment, TenantNumbers};
use kvasir_store::layout::ChunkKey;
use kvasir_types::Medium;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    blocking::blocking,
    limits,
    memory::{Lease, MemoryBudget, Region},
};

use super::{
    HotClock, HotSettings,
    context::HotContext,
    disk::FrameFolder,
    eviction_log::{EvictionLog, FrameEviction},
    frame_record::{FrameRecord, access},
    frames::{FrameKey, HotObject},
    observe::{HotObserver, HotTenantUsage, HotUsage},
    prefetch_buffer::PrefetchBuffer,
    tier_state::{DiskWork, KeptBytes, TierState},
};

/// Most objects whose media are determined under one lock.
const MEDIA_TOGETHER: usize = 256;

/// The hot tier of a replica.
pub struct HotTier {
    pub(super) settings: HotSettings,
    pub(super) clock: Arc<dyn HotClock>,
    pub(super) observer: Arc<dyn HotObserver>,
    pub(super) folder: Arc<FrameFolder>,
    prefetches: Arc<Semaphore>,
    /// The budget of all frames while any reference exists: cached, in flight, or being sent to slow readers.
    memory: Arc<MemoryBudget>,
    /// Maximum bytes waiting to be written to disk.
    pub(super) writing_bytes_max: u64,
    pub(super) state: Mutex<TierState>,
}

impl fmt::Debug for HotTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HotTier").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl HotTier {
    /// Opens the tier and takes over the frames in its folder. Blocks.
    ///
    /// # Errors
    /// If the folder cannot be created or listed.
    pub fn open(
        settings: HotSettings,
        clock: Arc<dyn HotClock>,
        observer: Arc<dyn HotObserver>,
    ) -> io::Result<Arc<Self>> {
        let part = |wanted: bool, divisor: u64| if wanted { settings.ram_bytes / divisor } else { 0 };
        let writing = part(settings.disk_bytes > 0, limits::HOT_WRITING_DIVISOR);
        let prefetch_bytes_max = part(settings.read_ahead_chunks > 0, limits::HOT_PREFETCH_DIVISOR);
        let in_flight = settings.ram_bytes / limits::HOT_IN_FLIGHT_DIVISOR;
        let resident_bytes_max = settings.ram_bytes - writing - prefetch_bytes_max - in_flight;
        let writing_bytes_max = writing.max(limits::HOT_WRITING_BYTES_MIN);
        let eviction_index =
            |capacity| EvictionIndex::new(settings.policy, capacity, settings.tenant_share_max);
        let state = TierState {
            tenants: TenantNumbers::default(),
            ram_evictions: eviction_index(resident_bytes_max),
            curve: HitRatioCurve::new(
                settings.policy,
                resident_bytes_max,
                settings.tenant_share_max,
                FrameKey::of_object,
            ),
            ram: Default::default(),
            disk_evictions: eviction_index(settings.disk_bytes),
            disk: Default::default(),
            writing: Default::default(),
            writing_bytes: 0,
            prefetched: PrefetchBuffer::new(prefetch_bytes_max),
            fetches: Default::default(),
            ram_kept: KeptBytes::default(),
            disk_kept: KeptBytes::default(),
            eviction_log: EvictionLog::default(),
        };
        let memory_bytes = settings.ram_bytes.max(limits::HOT_MEMORY_BYTES_MIN);
        let folder = Arc::new(FrameFolder::new(settings.directory.clone(), settings.keys.clone()));
        let prefetches = Arc::new(Semaphore::new(limits::HOT_PREFETCHES_MAX));
        let tier = Self {
            memory: MemoryBudget::with_spare(memory_bytes, memory_bytes / limits::HOT_SPARE_DIVISOR),
            settings,
            clock,
            observer,
            folder,
            prefetches,
            writing_bytes_max,
            state: Mutex::new(state),
        };
        if tier.settings.disk_bytes > 0 {
            tier.recover()?;
        }
        Ok(Arc::new(tier))
    }

    fn recover(&self) -> io::Result<()> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        for file in self.folder.scan()? {
            let tenant = state.tenants.number(file.tenant.as_str());
            let access = access(&file, HotContext::UNKNOWN, now);
            let record = FrameRecord { file, tenant, access, since: now, is_first: false };
            let mut work = DiskWork::default();
            self.admit_to_disk(&mut state, record, &mut work);
            work.delete.iter().for_each(|file| self.folder.delete(file));
        }
        Ok(())
    }

    /// Memory for a frame, if it may be cached and there is any.
    pub(super) fn lease_for(&self, object: &HotObject, frame: u32) -> Option<Lease> {
        self.lease_leaving(object, frame, 0)
    }

    /// Like [`lease_for`](Self::lease_for), provided that `reserve` bytes stay free.
    pub(super) fn lease_leaving(&self, object: &HotObject, frame: u32, reserve: u64) -> Option<Lease> {
        let range = object.range(frame);
        let bytes = range.end - range.start;
        (bytes <= limits::HOT_FRAME_BYTES_MAX).then(|| self.memory.lease_leaving(bytes, reserve)).flatten()
    }

    /// Memory for a frame from a writer; [`offer`](Self::offer) accepts it.
    pub(crate) fn space(&self, object: &HotObject, frame: u32) -> Option<Region> {
        let reserve = self.memory.total() / limits::HOT_IN_FLIGHT_RESERVE_DIVISOR;
        let lease = self.lease_leaving(object, frame, reserve)?;
        let range = object.range(frame);
        Some(Region::new((range.end - range.start) as usize, Some(lease)))
    }

    /// The memory budget of its frames.
    pub fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }

    /// The slowest medium among the frames of an object's first `bytes`, which end at the end of a level.
    pub fn medium_of_prefix(&self, object: &ChunkKey, bytes: u64) -> Medium {
        self.state.lock().medium_of_prefix(FrameKey::first(object), bytes)
    }

    /// Like [`medium_of_prefix`](Self::medium_of_prefix), for several objects, each with its first frame.
    pub(crate) fn media(&self, prefixes: &[(FrameKey, u64)]) -> Vec<Medium> {
        let mut media = Vec::with_capacity(prefixes.len());
        for prefixes in prefixes.chunks(MEDIA_TOGETHER) {
            let state = self.state.lock();
            media.extend(prefixes.iter().map(|(first, bytes)| state.medium_of_prefix(*first, *bytes)));
        }
        media
    }

    /// The slowest medium among the frames of `range`.
    pub fn medium(&self, object: &HotObject, range: &std::ops::Range<u64>) -> Medium {
        let state = self.state.lock();
        let mut medium = Medium::Cpu;
        for key in object.frames_of(range).map(|frame| object.key(frame)) {
            if state.ram.contains_key(&key) || state.writing.contains_key(&key) {
                continue;
            }
            if !state.disk.contains_key(&key) {
                return Medium::Object;
            }
            medium = Medium::Disk;
        }
        medium
    }

    /// The first frame of an object, with its head, if it is here. Does not count as a use.
    pub async fn first_frame(self: &Arc<Self>, object: &ChunkKey) -> Option<Bytes> {
        let key = FrameKey::first(object);
        let file = {
            let state = self.state.lock();
            if let Some(bytes) = state.in_memory(&key) {
                return Some(bytes.clone());
            }
            state.disk.get(&key)?.file.clone()
        };
        let (folder, lease) = (Arc::clone(&self.folder), self.memory.lease(u64::from(file.bytes))?);
        blocking(move || folder.read(&file, Some(lease))).await.ok()?
    }

    /// Permission to prefetch; `None` while enough prefetches are running.
    pub(crate) fn prefetch_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.prefetches).try_acquire_owned().ok()
    }

    /// The evictions of frames of `objects`, each with its object's index in `objects`, latest first, as far
    /// back as the log reaches.
    pub fn recent_evictions(&self, objects: &[ChunkKey]) -> Vec<(usize, FrameEviction)> {
        let now = self.clock.now();
        self.state.lock().eviction_log.of_objects(objects, now)
    }

    /// The present contents of the tier.
    pub fn usage(&self) -> HotUsage {
        let state = self.state.lock();
        HotUsage {
            ram_bytes: state.ram_evictions.bytes() + state.prefetched.bytes(),
            writing_bytes: state.writing_bytes,
            disk_bytes: state.disk_evictions.bytes(),
            ram_frames: state.ram.len(),
            disk_frames: state.disk.len(),
            ram_level_bytes: state.ram_kept.by_level.clone(),
            disk_level_bytes: state.disk_kept.by_level.clone(),
            ram_first_bytes: state.ram_kept.first,
            disk_first_bytes: state.disk_kept.first,
        }
    }

    /// The present contents by tenant, in no particular order.
    pub fn usage_by_tenant(&self) -> Vec<HotTenantUsage> {
        let state = self.state.lock();
        let tenants = state.tenants.iter().filter_map(|(tenant, number)| {
            let (ram_bytes, disk_bytes) =
                (state.ram_evictions.bytes_of(number), state.disk_evictions.bytes_of(number));
            let tenant = tenant.parse().ok().filter(|_| ram_bytes + disk_bytes > 0)?;
            Some(HotTenantUsage { tenant, ram_bytes, disk_bytes })
        });
        tenants.collect()
    }

    /// Estimated hit ratio by bytes of recent requests for several multiples of its memory.
    pub fn hit_ratio_curve(&self) -> Option<[f64; CURVE_SCALES.len()]> {
        self.state.lock().curve.hit_ratios()
    }

    /// The settings in force.
    pub fn settings(&self) -> &HotSettings {
        &self.settings
    }

    /// The present time of its clock.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }
}

#[cfg(test)]
impl HotTier {
    /// Whether nothing is in flight to readers or to the disk.
    pub(super) fn is_settled(&self) -> bool {
        let state = self.state.lock();
        let prefetching = self.prefetches.available_permits() < limits::HOT_PREFETCHES_MAX;
        state.fetches.is_empty() && state.writing.is_empty() && !prefetching
    }
}
