//! What the tier keeps: taking frames in, letting them go, and the work this makes for the disk.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use kvasir_types::Medium;

use crate::{
    blocking::blocking,
    eviction::{Access, Moment},
    limits,
};

use super::{
    EvictReason, FrameKey, HotObject,
    ahead::Ahead,
    book::{Book, TenantIndex, TenantNumbers},
    disk::FrameFile,
    flight::Arrival,
    log::DepartureLog,
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
    pub(super) writing_bytes: u64,
    pub(super) ahead: Ahead,
    pub(super) flights: HashMap<FrameKey, Arrival>,
    pub(super) ram_levels: LevelBytes,
    pub(super) disk_levels: LevelBytes,
    pub(super) departures: DepartureLog,
}

impl State {
    /// Bytes of a frame wherever it is kept.
    pub(super) fn lengths_of(&self, key: &FrameKey) -> [Option<u64>; 3] {
        let ram = self.ram.get(key).map(|held| held.bytes.len() as u64);
        let ahead = self.ahead.get(key).map(|bytes| bytes.len() as u64);
        [ram, ahead, self.disk.get(key).map(|place| u64::from(place.file.bytes))]
    }

    pub(super) fn start_writing(&mut self, key: FrameKey, content: Bytes) {
        self.writing_bytes += content.len() as u64;
        self.writing.insert(key, content);
    }

    fn end_writing(&mut self, key: &FrameKey) {
        if let Some(content) = self.writing.remove(key) {
            self.writing_bytes -= content.len() as u64;
        }
    }
}

/// Bytes by level.
#[derive(Debug, Clone, Default)]
pub(super) struct LevelBytes(pub(super) Vec<u64>);

impl LevelBytes {
    fn add(&mut self, file: &FrameFile) {
        let level = usize::from(file.level);
        if self.0.len() <= level {
            self.0.resize(level + 1, 0);
        }
        self.0[level] += u64::from(file.bytes);
    }

    fn subtract(&mut self, file: &FrameFile) {
        self.0[usize::from(file.level)] -= u64::from(file.bytes);
    }
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
        let bytes =
            u32::try_from(range.end - range.start).expect("frames above HOT_FRAME_BYTES_MAX are not kept");
        let tenant = object.tenant().clone();
        let number = state.tenants.number(tenant.as_str());
        let file = FrameFile { tenant, key: object.key(frame), bytes, level: object.level(frame) };
        let access = access(&file, object.seconds_per_base_byte(), context, now);
        Place { file, tenant: number, access, since: self.clock.now() }
    }

    pub(super) fn take_in_ram(&self, state: &mut State, held: Held, work: &mut DiskWork) {
        let key = held.place.file.key;
        let (tenant, access) = (held.place.tenant, held.place.access);
        state.ram_levels.add(&held.place.file);
        if let Some(before) = state.ram.insert(key, held) {
            state.ram_levels.subtract(&before.place.file);
        }
        for victim in state.ram_book.insert(tenant, key, &access) {
            let reason = if victim == key { EvictReason::NotAdmitted } else { EvictReason::Capacity };
            let Some(held) = self.leave_ram(state, &victim, reason) else { continue };
            if state.disk_book.contains(&victim) || self.settings.disk_bytes == 0 {
                continue;
            }
            if state.writing_bytes + held.bytes.len() as u64 <= self.writing_bytes_max {
                let place = Place { since: self.clock.now(), ..held.place.clone() };
                let file = place.file.clone();
                if self.take_in_disk(state, place, work) {
                    state.start_writing(victim, held.bytes.clone());
                    work.write.push((file, held.bytes));
                }
            }
        }
    }

    /// Whether the disk's policy wants it.
    pub(super) fn take_in_disk(&self, state: &mut State, place: Place, work: &mut DiskWork) -> bool {
        let (key, tenant, access) = (place.file.key, place.tenant, place.access);
        state.disk_levels.add(&place.file);
        if let Some(before) = state.disk.insert(key, place) {
            state.disk_levels.subtract(&before.file);
        }
        let victims = state.disk_book.insert(tenant, key, &access);
        for victim in &victims {
            let reason = if *victim == key { EvictReason::NotAdmitted } else { EvictReason::Capacity };
            self.leave_disk(state, victim, reason, work);
        }
        !victims.contains(&key)
    }

    pub(super) fn leave_ram(&self, state: &mut State, key: &FrameKey, reason: EvictReason) -> Option<Held> {
        let held = state.ram.remove(key)?;
        state.ram_levels.subtract(&held.place.file);
        self.report(state, Medium::Cpu, reason, &held.place);
        Some(held)
    }

    pub(super) fn leave_disk(
        &self,
        state: &mut State,
        key: &FrameKey,
        reason: EvictReason,
        work: &mut DiskWork,
    ) {
        state.end_writing(key);
        if let Some(place) = state.disk.remove(key) {
            state.disk_levels.subtract(&place.file);
            self.report(state, Medium::Disk, reason, &place);
            work.write.retain(|(file, _)| file.key != *key);
            work.delete.push(place.file);
        }
    }

    fn report(&self, state: &mut State, medium: Medium, reason: EvictReason, place: &Place) {
        let (age, idle) = state.departures.note(medium, reason, place, self.clock.now());
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
        blocking(move || {
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
        state.end_writing(&file.key);
        if !done
            && state.disk_book.remove(&file.key)
            && let Some(place) = state.disk.remove(&file.key)
        {
            state.disk_levels.subtract(&place.file);
        }
        // It may have been dropped while it was written; who dropped it found no file to delete.
        let unwanted = !state.disk.contains_key(&file.key);
        drop(state);
        if unwanted {
            self.folder.delete(file);
        }
    }

    /// A frame has come. One that somebody waits for is offered to the policy; one that was read ahead waits apart.
    pub(super) fn arrived(
        self: &Arc<Self>,
        object: &HotObject,
        frame: u32,
        context: HotContext,
        used: bool,
        bytes: &Bytes,
    ) {
        let mut work = DiskWork::default();
        let mut state = self.state.lock();
        state.flights.remove(&object.key(frame));
        if used {
            self.take_in(&mut state, object, frame, context, bytes.clone(), &mut work);
        } else {
            state.ahead.put(object.key(frame), bytes.clone());
        }
        drop(state);
        self.do_disk_work(work);
    }

    /// Offers a frame that is used now to the policy.
    pub(super) fn take_in(
        &self,
        state: &mut State,
        object: &HotObject,
        frame: u32,
        context: HotContext,
        bytes: Bytes,
        work: &mut DiskWork,
    ) {
        if bytes.len() as u64 > limits::HOT_FRAME_BYTES_MAX {
            return;
        }
        let now = context.at.unwrap_or_else(|| self.clock.now());
        let place = self.place(state, object, frame, context, now);
        self.take_in_ram(state, Held { bytes, place }, work);
    }

    /// A frame that came on somebody else's account is used now.
    pub(super) fn used(self: &Arc<Self>, object: &HotObject, frame: u32, context: HotContext) {
        let key = object.key(frame);
        let mut work = DiskWork::default();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(bytes) = state.ahead.take(&key) {
            self.take_in(state, object, frame, context, bytes, &mut work);
        } else {
            touch(state, &key, context);
        }
        drop(guard);
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

/// Notes a use of a frame in memory, or of one on disk. A request uses a frame once, in however many reads.
pub(super) fn touch(state: &mut State, key: &FrameKey, context: HotContext) {
    let place = match (state.ram.get_mut(key), state.disk.get_mut(key)) {
        (Some(held), _) => &mut held.place,
        (None, Some(place)) => place,
        (None, None) => return,
    };
    let now = context.at.unwrap_or_default();
    if place.access.now != now {
        // A frame's worth does not change with its use.
        let recompute_seconds = place.access.recompute_seconds;
        place.access = Access { recompute_seconds, ..access(&place.file, 0.0, context, now) };
        let access = place.access;
        state.ram_book.touch(key, &access);
        state.disk_book.touch(key, &access);
    }
}

/// What a policy is told of the use of a frame. A level refines the steps of the one below by three, so its bytes
/// take off a ninth of the error: [`limits::HOT_LEVEL_WORTH`] of the recompute seconds that a byte of the base saves.
pub(super) fn access(
    file: &FrameFile,
    seconds_per_base_byte: f32,
    context: HotContext,
    now: Moment,
) -> Access<FrameKey> {
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
        .recompute(seconds_per_base_byte * worth * file.bytes as f32)
}
