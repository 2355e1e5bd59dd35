//! Decides which frames stay in memory and on disk: admission, eviction, and the resulting work for the disk.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use kvasir_eviction::Moment;
use kvasir_types::Medium;

use crate::{blocking::blocking, limits, memory::Region};

use super::{
    context::HotContext,
    disk::FrameFile,
    frame_record::{FrameRecord, MemoryFrame, access},
    frames::{FrameKey, HotObject},
    observe::EvictReason,
    tier::HotTier,
    tier_state::{DiskWork, TierState},
};

impl HotTier {
    fn record(
        &self,
        state: &mut TierState,
        object: &HotObject,
        frame: u32,
        context: HotContext,
        now: Moment,
    ) -> FrameRecord {
        let range = object.range(frame);
        let bytes =
            u32::try_from(range.end - range.start).expect("frames above HOT_FRAME_BYTES_MAX are not kept");
        let tenant = object.tenant().clone();
        let number = state.tenants.number(tenant.as_str());
        let file = FrameFile { tenant, key: object.key(frame), bytes, level: object.level(frame) };
        let access = access(&file, context, now);
        FrameRecord { file, tenant: number, access, since: self.clock.now(), is_first: context.is_first }
    }

    fn admit_to_ram(&self, state: &mut TierState, frame: MemoryFrame, work: &mut DiskWork) {
        let key = frame.record.file.key;
        let (tenant, access) = (frame.record.tenant, frame.record.access);
        state.ram_kept.add(&frame.record);
        if let Some(before) = state.ram.insert(key, frame) {
            state.ram_kept.subtract(&before.record);
        }
        for victim in state.ram_evictions.insert(tenant, key, &access) {
            let reason = if victim == key { EvictReason::NotAdmitted } else { EvictReason::Capacity };
            let Some(frame) = self.remove_from_ram(state, &victim, reason) else { continue };
            if state.disk_evictions.contains(&victim) || self.settings.disk_bytes == 0 {
                continue;
            }
            if state.writing_bytes + frame.bytes.len() as u64 <= self.writing_bytes_max {
                let record = FrameRecord { since: self.clock.now(), ..frame.record.clone() };
                let file = record.file.clone();
                if self.admit_to_disk(state, record, work) {
                    state.start_writing(victim, frame.bytes.clone());
                    work.write.push((file, frame.bytes));
                }
            }
        }
    }

    /// Offers a frame to the disk's policy. Returns whether it was admitted.
    pub(super) fn admit_to_disk(
        &self,
        state: &mut TierState,
        record: FrameRecord,
        work: &mut DiskWork,
    ) -> bool {
        let (key, tenant, access) = (record.file.key, record.tenant, record.access);
        state.disk_kept.add(&record);
        if let Some(before) = state.disk.insert(key, record) {
            state.disk_kept.subtract(&before);
        }
        let victims = state.disk_evictions.insert(tenant, key, &access);
        for victim in &victims {
            let reason = if *victim == key { EvictReason::NotAdmitted } else { EvictReason::Capacity };
            self.remove_from_disk(state, victim, reason, work);
        }
        !victims.contains(&key)
    }

    fn remove_from_ram(
        &self,
        state: &mut TierState,
        key: &FrameKey,
        reason: EvictReason,
    ) -> Option<MemoryFrame> {
        let frame = state.ram.remove(key)?;
        state.ram_kept.subtract(&frame.record);
        self.report_eviction(state, Medium::Cpu, reason, &frame.record);
        Some(frame)
    }

    fn remove_from_disk(
        &self,
        state: &mut TierState,
        key: &FrameKey,
        reason: EvictReason,
        work: &mut DiskWork,
    ) {
        state.end_writing(key);
        if let Some(record) = state.disk.remove(key) {
            state.disk_kept.subtract(&record);
            self.report_eviction(state, Medium::Disk, reason, &record);
            work.write.retain(|(file, _)| file.key != *key);
            work.delete.push(record.file);
        }
    }

    fn report_eviction(
        &self,
        state: &mut TierState,
        medium: Medium,
        reason: EvictReason,
        record: &FrameRecord,
    ) {
        let (age, idle) = state.eviction_log.record(medium, reason, record, self.clock.now());
        self.observer.evicted(medium, reason, age, idle);
    }

    /// Deletes before it writes, so that the folder exceeds its capacity by at most the bytes being written.
    fn do_disk_work(self: &Arc<Self>, work: DiskWork) {
        if work.delete.is_empty() && work.write.is_empty() {
            return;
        }
        let tier = Arc::clone(self);
        blocking(move || {
            work.delete.iter().for_each(|file| tier.folder.delete(file));
            for (file, bytes) in work.write {
                let written = tier.folder.write(&file, &bytes);
                if let Err(error) = &written {
                    tracing::warn!(%error, "the hot tier cannot write to its folder; check the disk of hot.directory");
                }
                tier.finish_write(&file, written.is_ok());
            }
        });
    }

    /// Takes note that a frame's file was written, or could not be.
    pub(super) fn finish_write(&self, file: &FrameFile, done: bool) {
        let mut state = self.state.lock();
        state.end_writing(&file.key);
        if !done
            && state.disk_evictions.remove(&file.key)
            && let Some(record) = state.disk.remove(&file.key)
        {
            state.disk_kept.subtract(&record);
        }
        // It may have been dropped while being written, when there was no file to delete yet.
        let unwanted = !state.disk.contains_key(&file.key);
        drop(state);
        if unwanted {
            self.folder.delete(file);
        }
    }

    /// Accepts a fetched frame. One that a reader waits for is offered to the policy; a prefetched one enters
    /// the prefetch buffer.
    pub(super) fn complete_fetch(
        self: &Arc<Self>,
        object: &HotObject,
        frame: u32,
        context: HotContext,
        used: bool,
        bytes: &Bytes,
    ) {
        let mut state = self.state.lock();
        state.fetches.remove(&object.key(frame));
        let work = if used {
            self.admit(&mut state, object, frame, context, bytes.clone(), true)
        } else {
            state.prefetched.put(object.key(frame), bytes.clone());
            DiskWork::default()
        };
        drop(state);
        self.do_disk_work(work);
    }

    /// Offers a frame to the policy that is being read or written.
    fn admit(
        &self,
        state: &mut TierState,
        object: &HotObject,
        frame: u32,
        context: HotContext,
        bytes: Bytes,
        is_read: bool,
    ) -> DiskWork {
        let mut work = DiskWork::default();
        if bytes.len() as u64 > limits::HOT_FRAME_BYTES_MAX {
            return work;
        }
        let now = context.at.unwrap_or_else(|| self.clock.now());
        let record = self.record(state, object, frame, context, now);
        // The reader that found it on disk has recorded the use.
        let is_noted =
            state.disk.get(&record.file.key).is_some_and(|disk| disk.access.now == record.access.now);
        if !is_noted {
            state.curve.note(record.tenant, record.file.key, &record.access, is_read);
        }
        self.admit_to_ram(state, MemoryFrame { bytes, record }, &mut work);
        work
    }

    /// Accepts a frame from a writer, who has verified it.
    pub(crate) fn offer(
        self: &Arc<Self>,
        object: &HotObject,
        frame: u32,
        context: HotContext,
        bytes: Region,
    ) {
        let length = bytes.len();
        let mut state = self.state.lock();
        let work = self.admit(&mut state, object, frame, context, bytes.freeze(length), false);
        drop(state);
        self.do_disk_work(work);
    }

    /// Records the use of a frame that another reader fetched, or that was prefetched.
    pub(super) fn record_use(self: &Arc<Self>, object: &HotObject, frame: u32, context: HotContext) {
        let key = object.key(frame);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let work = if let Some(bytes) = state.prefetched.take(&key) {
            self.admit(state, object, frame, context, bytes, true)
        } else {
            state.touch(&key, context);
            DiskWork::default()
        };
        drop(guard);
        self.do_disk_work(work);
    }

    /// Removes frames from the running fetches, after their fetch ended without them.
    pub(super) fn abandon_fetches(&self, object: &HotObject, frames: impl Iterator<Item = u32>) {
        let mut state = self.state.lock();
        frames.for_each(|frame| drop(state.fetches.remove(&object.key(frame))));
    }

    /// Deletes a file whose content does not match its name.
    pub(super) fn drop_corrupt_file(self: &Arc<Self>, file: FrameFile) {
        let mut work = DiskWork::default();
        let mut state = self.state.lock();
        if state.disk_evictions.remove(&file.key) {
            self.remove_from_disk(&mut state, &file.key, EvictReason::Corrupt, &mut work);
        }
        drop(state);
        work.delete.push(file);
        self.do_disk_work(work);
    }

    /// Drops all frames of an object that was deleted or found broken.
    pub fn remove(self: &Arc<Self>, object: &HotObject) {
        let mut work = DiskWork::default();
        let mut state = self.state.lock();
        for key in (0..object.frames()).map(|frame| object.key(frame)) {
            state.prefetched.take(&key);
            state.curve.remove(&key);
            if state.ram_evictions.remove(&key) {
                self.remove_from_ram(&mut state, &key, EvictReason::Removed);
            }
            if state.disk_evictions.remove(&key) {
                self.remove_from_disk(&mut state, &key, EvictReason::Removed, &mut work);
            }
        }
        drop(state);
        self.do_disk_work(work);
    }

    /// Verifies the frames of `range` that are in memory, and drops those that do not match the object's head. Frames on disk
    /// are verified whenever they are read. Takes as long as the checksums take.
    pub(crate) fn drop_damaged(self: &Arc<Self>, object: &HotObject, range: &Range<u64>) {
        for frame in object.frames_of(range) {
            let key = object.key(frame);
            let in_memory = self.state.lock().in_memory(&key).cloned();
            let Some(bytes) = in_memory.filter(|bytes| !object.verify(frame, bytes)) else { continue };
            let error = object.corrupt(frame);
            tracing::error!(%error, "a frame in memory was damaged and is dropped; check the machine's memory");
            self.drop_from_memory(&key, &bytes);
        }
    }

    /// Drops a frame that is still these `bytes` in memory, and the file that is being written from them.
    fn drop_from_memory(self: &Arc<Self>, key: &FrameKey, bytes: &Bytes) {
        let mut work = DiskWork::default();
        let mut state = self.state.lock();
        if state.in_memory(key).is_none_or(|now| now.as_ptr() != bytes.as_ptr()) {
            return; // another reader has put a sound one there
        }
        state.prefetched.take(key);
        if state.ram_evictions.remove(key) {
            self.remove_from_ram(&mut state, key, EvictReason::Corrupt);
        }
        if state.writing.contains_key(key) && state.disk_evictions.remove(key) {
            self.remove_from_disk(&mut state, key, EvictReason::Corrupt, &mut work);
        }
        drop(state);
        self.do_disk_work(work);
    }
}
