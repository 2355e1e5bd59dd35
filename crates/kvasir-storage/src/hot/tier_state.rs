//! The state of the tier: the frames of each medium, and those in flight.

use std::collections::HashMap;

use bytes::Bytes;
use foldhash::fast::RandomState;
use kvasir_eviction::{EvictionIndex, HitRatioCurve, TenantNumbers};
use kvasir_types::Medium;

use super::{
    context::HotContext,
    disk::FrameFile,
    eviction_log::EvictionLog,
    frame_record::{FrameRecord, MemoryFrame, access},
    frames::FrameKey,
    pending::FrameReceiver,
    prefetch_buffer::PrefetchBuffer,
};

/// By frame. A lookup asks for the frames of hundreds of objects.
type FrameMap<T> = HashMap<FrameKey, T, RandomState>;

#[derive(Debug)]
pub(super) struct TierState {
    pub(super) tenants: TenantNumbers,
    pub(super) ram_evictions: EvictionIndex<FrameKey>,
    /// Estimated hit ratios for other sizes of memory.
    pub(super) curve: HitRatioCurve<FrameKey>,
    pub(super) ram: FrameMap<MemoryFrame>,
    pub(super) disk_evictions: EvictionIndex<FrameKey>,
    pub(super) disk: FrameMap<FrameRecord>,
    /// Frames waiting to be written; they count as on disk and are served from here.
    pub(super) writing: FrameMap<Bytes>,
    pub(super) writing_bytes: u64,
    pub(super) prefetched: PrefetchBuffer,
    /// Frames that are being fetched.
    pub(super) fetches: FrameMap<FrameReceiver>,
    pub(super) ram_kept: KeptBytes,
    pub(super) disk_kept: KeptBytes,
    pub(super) eviction_log: EvictionLog,
}

impl TierState {
    /// Sizes of a frame wherever it is kept.
    pub(super) fn lengths_of(&self, key: &FrameKey) -> [Option<u64>; 3] {
        let ram = self.ram.get(key).map(|frame| frame.bytes.len() as u64);
        let prefetched = self.prefetched.get(key).map(|bytes| bytes.len() as u64);
        [ram, prefetched, self.disk.get(key).map(|record| u64::from(record.file.bytes))]
    }

    /// A frame in memory.
    pub(super) fn in_memory(&self, key: &FrameKey) -> Option<&Bytes> {
        let resident = self.ram.get(key).map(|frame| &frame.bytes);
        resident.or_else(|| self.prefetched.get(key)).or_else(|| self.writing.get(key))
    }

    /// The slowest medium among the frames of the first `bytes` of the object whose first frame is `key`.
    pub(super) fn medium_of_prefix(&self, mut key: FrameKey, bytes: u64) -> Medium {
        let (mut medium, mut at) = (Medium::Cpu, 0);
        while at < bytes {
            let resident = self.ram.get(&key).map(|frame| u64::from(frame.record.file.bytes));
            let prefetched = || self.prefetched.get(&key).map(|content| content.len() as u64);
            let writing = || self.writing.get(&key).map(|content| content.len() as u64);
            at += match resident.or_else(prefetched).or_else(writing) {
                Some(bytes) => bytes,
                None => {
                    let Some(record) = self.disk.get(&key) else { return Medium::Object };
                    medium = Medium::Disk;
                    u64::from(record.file.bytes)
                }
            };
            key.frame += 1;
        }
        medium
    }

    pub(super) fn start_writing(&mut self, key: FrameKey, content: Bytes) {
        self.writing_bytes += content.len() as u64;
        self.writing.insert(key, content);
    }

    pub(super) fn end_writing(&mut self, key: &FrameKey) {
        if let Some(content) = self.writing.remove(key) {
            self.writing_bytes -= content.len() as u64;
        }
    }

    /// Records a use of a frame in memory or on disk. A request uses a frame once, in however many reads.
    pub(super) fn touch(&mut self, key: &FrameKey, context: HotContext) {
        let record = match (self.ram.get_mut(key), self.disk.get_mut(key)) {
            (Some(frame), _) => &mut frame.record,
            (None, Some(record)) => record,
            (None, None) => return,
        };
        let now = context.at.unwrap_or_default();
        if record.access.now != now {
            record.access = access(&record.file, context, now);
            let (access, tenant) = (record.access, record.tenant);
            self.curve.note(tenant, *key, &access, true);
            self.ram_evictions.touch(key, &access);
            self.disk_evictions.touch(key, &access);
            if let Some(frame) = self.ram.get_mut(key) {
                self.ram_kept.set_first(&mut frame.record, context.is_first);
            }
            if let Some(record) = self.disk.get_mut(key) {
                self.disk_kept.set_first(record, context.is_first);
            }
        }
    }
}

/// Bytes that a medium keeps.
#[derive(Debug, Clone, Default)]
pub(super) struct KeptBytes {
    pub(super) by_level: Vec<u64>,
    /// Those last used for a route of which this replica is the first.
    pub(super) first: u64,
}

impl KeptBytes {
    pub(super) fn add(&mut self, record: &FrameRecord) {
        let (level, bytes) = (usize::from(record.file.level), u64::from(record.file.bytes));
        if self.by_level.len() <= level {
            self.by_level.resize(level + 1, 0);
        }
        self.by_level[level] += bytes;
        self.first += if record.is_first { bytes } else { 0 };
    }

    fn set_first(&mut self, record: &mut FrameRecord, is_first: bool) {
        self.subtract(record);
        record.is_first = is_first;
        self.add(record);
    }

    pub(super) fn subtract(&mut self, record: &FrameRecord) {
        let (level, bytes) = (usize::from(record.file.level), u64::from(record.file.bytes));
        self.by_level[level] -= bytes;
        self.first -= if record.is_first { bytes } else { 0 };
    }
}

/// Work for the disk, done outside the lock: deletions, then writes.
#[derive(Debug, Default)]
pub(super) struct DiskWork {
    pub(super) delete: Vec<FrameFile>,
    pub(super) write: Vec<(FrameFile, Bytes)>,
}
