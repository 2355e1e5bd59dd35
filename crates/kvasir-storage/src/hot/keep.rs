//! What the tier keeps: taking frames in, letting them go, and the work this makes for the disk.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use kvasir_types::Medium;

use crate::{
    eviction::{Access, Moment},
    limits,
};

use super::{
    EvictReason, FrameKey, HotObject,
    book::{Book, TenantIndex, TenantNumbers},
    disk::FrameFile,
    flight::Arrival,
    tier::{HotContext, HotTier},
};

/// A frame in memory.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) bytes: Bytes,
    pub(super) place: Place,
}

/// What a medium knows of a frame beside its policy.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) file: FrameFile,
    pub(super) tenant: TenantIndex,
    pub(super) access: Access<FrameKey>,
    pub(super) since: Moment,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) tenants: TenantNumbers,
    pub(super) ram_book: Book,
    pub(super) ram: HashMap<FrameKey, Held>,
    pub(super) disk_book: Book,
    pub(super) disk: HashMap<FrameKey, Place>,
    /// Frames that wait to be written; they count as on disk and are served from here.
    pub(super) writing: HashMap<FrameKey, Bytes>,
    pub(super) flights: HashMap<FrameKey, Arrival>,
}

/// Work for the disk, done outside the lock: deletions, then writes.
#[derive(Debug, Default)]
pub(super) struct DiskWork {
    pub(super) delete: Vec<FrameFile>,
    pub(super) write: Vec<(FrameFile, Bytes)>,
}

impl HotTier {
    pub(super) fn place(
        &self,
        state: &mut State,
        object: &HotObject,
        frame: u32,
        context: HotContext,
        now: Moment,
    ) -> Place {
        let range = object.range(frame);
        let bytes = u32::try_from(range.end - range.start).expect("frames are at most HOT_FRAME_BYTES");
        let tenant = object.tenant().clone();
        let number = state.tenants.number(tenant.as_str());
        let file = FrameFile { tenant, key: object.key(frame), bytes, level: object.level(frame) };
        let access = access(&file, context, now);
        Place { file, tenant: number, access, since: self.clock.now() }
    }

    pub(super) fn take_in_ram(&self, state: &mut State, held: Held, work: &mut DiskWork) {
        let key = held.place.file.key;
        let (tenant, access) = (held.place.tenant, held.place.access);
        state.ram.insert(key, held);
        for victim in state.ram_book.insert(tenant, key, &access) {
            let reason = if victim == key { EvictReason::NotAdmitted } else { EvictReason::Capacity };
            let Some(held) = self.leave_ram(state, &victim, reason) else { continue };
            if state.disk_book.contains(&victim) || self.settings.disk_bytes == 0 {
                continue;
            }
            if state.writing.len() < limits::HOT_WRITES_MAX {
                let place = Place { since: self.clock.now(), ..held.place.clone() };
                let file = place.file.clone();
                if self.take_in_disk(state, place, work) {
                    state.writing.insert(victim, held.bytes.clone());
                    work.write.push((file, held.bytes));
                }
            }
        }
    }

    /// Whether the disk's policy wants it.
    pub(super) fn take_in_disk(&self, state: &mut State, place: Place, work: &mut DiskWork) -> bool {
        let (key, tenant, access) = (place.file.key, place.tenant, place.access);
        state.disk.insert(key, place);
        let victims = state.disk_book.insert(tenant, key, &access);
        for victim in &victims {
            let reason = if *victim == key { EvictReason::NotAdmitted } else { EvictReason::Capacity };
            self.leave_disk(state, victim, reason, work);
        }
        !victims.contains(&key)
    }

    pub(super) fn leave_ram(&self, state: &mut State, key: &FrameKey, reason: EvictReason) -> Option<Held> {
        let held = state.ram.remove(key)?;
        self.report(Medium::Cpu, reason, &held.place);
        Some(held)
    }

    pub(super) fn leave_disk(
        &self,
        state: &mut State,
        key: &FrameKey,
        reason: EvictReason,
        work: &mut DiskWork,
    ) {
        state.writing.remove(key);
        if let Some(place) = state.disk.remove(key) {
            self.report(Medium::Disk, reason, &place);
            work.write.retain(|(file, _)| file.key != *key);
            work.delete.push(place.file);
        }
    }

    pub(super) fn report(&self, medium: Medium, reason: EvictReason, place: &Place) {
        let now = self.clock.now();
        let (age, idle) = (now.seconds_since(place.since), now.seconds_since(place.access.now));
        self.observer.left(medium, reason, age, idle);
    }

    pub(super) fn expire(self: &Arc<Self>, state: &mut State, now: Moment) {
        let mut work = DiskWork::default();
        while let Some(key) = state.ram_book.expire(now) {
            self.leave_ram(state, &key, EvictReason::Expired);
        }
        while let Some(key) = state.disk_book.expire(now) {
            self.leave_disk(state, &key, EvictReason::Expired, &mut work);
        }
        self.do_disk_work(work);
    }

    /// Deletes before it writes, so the folder outgrows its books by no more than what is being written.
    pub(super) fn do_disk_work(self: &Arc<Self>, work: DiskWork) {
        if work.delete.is_empty() && work.write.is_empty() {
            return;
        }
        let tier = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            work.delete.iter().for_each(|file| tier.folder.delete(file));
            for (file, bytes) in work.write {
                let written = tier.folder.write(&file, &bytes);
                if let Err(error) = &written {
                    tracing::warn!(%error, "the hot tier cannot write to its folder");
                }
                tier.wrote(&file, written.is_ok());
            }
        });
    }

    pub(super) fn wrote(&self, file: &FrameFile, done: bool) {
        let mut state = self.state.lock();
        state.writing.remove(&file.key);
        if !done && state.disk_book.remove(&file.key) {
            state.disk.remove(&file.key);
        }
        // It may have been dropped while it was written; who dropped it found no file to delete.
        let unwanted = !state.disk.contains_key(&file.key);
        drop(state);
        if unwanted {
            self.folder.delete(file);
        }
    }

    /// A frame has come: whoever waits gets it, and the policy decides whether it stays.
    pub(super) fn arrived(
        self: &Arc<Self>,
        object: &HotObject,
        frame: u32,
        context: HotContext,
        bytes: &Bytes,
    ) {
        let now = context.at.unwrap_or_else(|| self.clock.now());
        let mut work = DiskWork::default();
        let mut state = self.state.lock();
        state.flights.remove(&object.key(frame));
        let place = self.place(&mut state, object, frame, context, now);
        self.take_in_ram(&mut state, Held { bytes: bytes.clone(), place }, &mut work);
        drop(state);
        self.do_disk_work(work);
    }

    /// A flight is over without these frames.
    pub(super) fn lost(&self, object: &HotObject, frames: impl Iterator<Item = u32>) {
        let mut state = self.state.lock();
        frames.for_each(|frame| drop(state.flights.remove(&object.key(frame))));
    }

    /// A file did not hold what its name promised.
    pub(super) fn broken(self: &Arc<Self>, file: FrameFile) {
        let mut work = DiskWork::default();
        let mut state = self.state.lock();
        if state.disk_book.remove(&file.key) {
            self.leave_disk(&mut state, &file.key, EvictReason::Corrupt, &mut work);
        }
        drop(state);
        work.delete.push(file);
        self.do_disk_work(work);
    }
}

/// What a policy is told of the use of a frame. A level refines the steps of the one below by three, so its bytes
/// take off a ninth of the error: [`limits::HOT_LEVEL_WORTH`] apiece.
pub(super) fn access(file: &FrameFile, context: HotContext, now: Moment) -> Access<FrameKey> {
    let FrameKey { object, frame } = file.key;
    let parent = match frame.checked_sub(1) {
        Some(before) => Some(FrameKey { object, frame: before }),
        None => context.parent,
    };
    let offset = context.position.saturating_mul(limits::HOT_FRAMES_ORDERED)
        + frame.min(limits::HOT_FRAMES_ORDERED - 1);
    let worth = limits::HOT_LEVEL_WORTH.powi(i32::from(file.level));
    Access::new(context.at.unwrap_or(now), context.class)
        .bytes(u64::from(file.bytes))
        .at(offset, parent)
        .paced(context.pace_seconds)
        .recompute(worth * file.bytes as f32)
}
