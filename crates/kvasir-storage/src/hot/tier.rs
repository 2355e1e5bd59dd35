//! The tier: looks frames up, joins or starts flights, fills and drops.

use std::{collections::HashMap, fmt, io, ops::Range, sync::Arc};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, channel::oneshot, future::BoxFuture, stream::BoxStream};
use kvasir_types::Medium;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    StorageError,
    blocking::blocking,
    eviction::{ClassId, Moment},
    layout::ChunkKey,
    limits,
    memory::{Lease, MemoryBudget, Region},
};

use super::{
    EvictReason, FrameKey, HotClock, HotObject, HotObserver, HotSettings, HotUsage,
    ahead::Ahead,
    book::{Book, TenantNumbers},
    disk::FrameFolder,
    flight::{Arrival, Coming, Flight, Outcome, Run},
    keep::{DiskWork, LevelBytes, Place, State, access, touch},
    log::DepartureLog,
    reading,
};

/// Reads a byte range of one object from the store: exactly its bytes, or an error.
pub type Fetch = Arc<
    dyn Fn(
            Range<u64>,
        )
            -> BoxFuture<'static, Result<BoxStream<'static, Result<Bytes, StorageError>>, StorageError>>
        + Send
        + Sync,
>;

/// What is known of the request that reads an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HotContext {
    /// Its class.
    pub class: ClassId,
    /// When it began; the present for `None`. Objects that one request reads share it.
    pub at: Option<Moment>,
    /// See `Access::pace_seconds` of the eviction policies.
    pub pace_seconds: Option<f32>,
    /// Number of the object in its context.
    pub position: u32,
    /// The first frame of the object before it in its context.
    pub parent: Option<FrameKey>,
}

impl HotContext {
    /// A read of which nothing is known.
    pub const UNKNOWN: Self =
        Self { class: ClassId::OTHER, at: None, pace_seconds: None, position: 0, parent: None };
}

/// The hot tier of a replica.
pub struct HotTier {
    pub(super) settings: HotSettings,
    pub(super) clock: Arc<dyn HotClock>,
    pub(super) observer: Arc<dyn HotObserver>,
    pub(super) folder: Arc<FrameFolder>,
    pub(super) prefetches: Arc<Semaphore>,
    /// What all frames are paid from as long as anybody holds them: kept, on their way, or being sent to slow readers.
    memory: Arc<MemoryBudget>,
    /// Bytes that may wait to be written to disk.
    pub(super) writing_bytes_max: u64,
    pub(super) state: Mutex<State>,
}

impl fmt::Debug for HotTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HotTier").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// One frame of one read.
pub(super) struct Wanted<'a> {
    pub(super) object: &'a Arc<HotObject>,
    pub(super) frame: u32,
    /// The last frame that the read wants too: a flight brings what is missing up to it.
    pub(super) last: u32,
    pub(super) context: HotContext,
    /// Whether somebody waits for it; a prefetch is no use of a frame.
    pub(super) used: bool,
}

/// Where a frame is.
pub(super) enum Found {
    Here(Bytes),
    /// Somebody else brings it.
    Joined(Arrival),
    /// A flight of this reader brings it, and perhaps frames behind it.
    Started(Vec<(u32, Arrival)>),
    /// There is no memory for it now, nor for those behind it up to this one.
    NoMemory(u32),
}

impl HotTier {
    /// Opens the tier; takes in what lies in its folder. Blocks.
    ///
    /// # Errors
    /// When the folder cannot be made or listed.
    pub fn open(
        settings: HotSettings,
        clock: Arc<dyn HotClock>,
        observer: Arc<dyn HotObserver>,
    ) -> io::Result<Arc<Self>> {
        let share = |wanted: bool, divisor: u64| if wanted { settings.ram_bytes / divisor } else { 0 };
        let writing = share(settings.disk_bytes > 0, limits::HOT_WRITING_DIVISOR);
        let ahead_bytes_max = share(settings.read_ahead_chunks > 0, limits::HOT_AHEAD_DIVISOR);
        let flying = settings.ram_bytes / limits::HOT_FLYING_DIVISOR;
        let book_bytes = settings.ram_bytes - writing - ahead_bytes_max - flying;
        let writing_bytes_max = writing.max(limits::HOT_WRITING_BYTES_MIN);
        let book = |capacity| Book::new(settings.policy, capacity, settings.tenant_share_max);
        let state = State {
            tenants: TenantNumbers::default(),
            ram_book: book(book_bytes),
            ram: HashMap::new(),
            disk_book: book(settings.disk_bytes),
            disk: HashMap::new(),
            writing: HashMap::new(),
            writing_bytes: 0,
            ahead: Ahead::new(ahead_bytes_max),
            flights: HashMap::new(),
            ram_levels: LevelBytes::default(),
            disk_levels: LevelBytes::default(),
            departures: DepartureLog::default(),
        };
        let folder = Arc::new(FrameFolder::new(settings.directory.clone(), settings.keys.clone()));
        let prefetches = Arc::new(Semaphore::new(limits::HOT_PREFETCHES_MAX));
        let tier = Self {
            memory: MemoryBudget::new(settings.ram_bytes.max(limits::HOT_MEMORY_BYTES_MIN)),
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
            let worth = limits::HOT_SECONDS_PER_BYTE_UNKNOWN;
            let access = access(&file, worth, HotContext::UNKNOWN, now);
            let place = Place { file, tenant, access, since: now };
            let mut work = DiskWork::default();
            self.take_in_disk(&mut state, place, &mut work);
            work.delete.iter().for_each(|file| self.folder.delete(file));
        }
        Ok(())
    }

    /// The bytes of `range` of an object, from wherever they are soonest. What the tier lacks is read with `fetch`,
    /// once however many ask, and kept where the policy likes.
    pub fn read(
        self: &Arc<Self>,
        object: &Arc<HotObject>,
        range: Range<u64>,
        context: HotContext,
        fetch: Fetch,
    ) -> BoxStream<'static, Result<Bytes, StorageError>> {
        reading::stream(self, object, range, context, fetch, true)
    }

    /// Memory for a frame, if it is one that may be kept and there is any.
    pub(super) fn lease_for(&self, object: &HotObject, frame: u32) -> Option<Lease> {
        self.lease_leaving(object, frame, 0)
    }

    fn lease_leaving(&self, object: &HotObject, frame: u32, left: u64) -> Option<Lease> {
        let range = object.range(frame);
        let bytes = range.end - range.start;
        (bytes <= limits::HOT_FRAME_BYTES_MAX).then(|| self.memory.lease_leaving(bytes, left)).flatten()
    }

    /// What its frames may hold in memory, and do.
    pub fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }

    /// Where a frame is, or will be: the flight that brings it is started here if there is none.
    pub(super) fn find(self: &Arc<Self>, wanted: &Wanted<'_>, fetch: &Fetch) -> Found {
        let Wanted { object, frame, context, used, .. } = *wanted;
        let key = object.key(frame);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        self.expire(state, self.clock.now());
        let range = object.range(frame);
        if state.lengths_of(&key).into_iter().flatten().any(|length| length != range.end - range.start) {
            // What is kept under its name was cut by another head: the store once gave that of another object.
            drop(guard);
            self.remove(object);
            return self.find(wanted, fetch);
        }
        if let Some(held) = state.ram.get(&key) {
            let bytes = held.bytes.clone();
            if used {
                touch(state, &key, context);
            }
            return Found::Here(bytes);
        }
        if let Some(bytes) = state.ahead.get(&key).cloned() {
            drop(guard);
            if used {
                self.used(object, frame, context);
            }
            return Found::Here(bytes);
        }
        if let Some(arrival) = state.flights.get(&key) {
            return Found::Joined(arrival.clone());
        }
        if used {
            touch(state, &key, context);
        }
        if let Some(bytes) = state.writing.get(&key) {
            return Found::Here(bytes.clone());
        }
        let Some(lease) = self.lease_for(object, frame) else {
            return Found::NoMemory(missing_run(state, wanted, limits::HOT_FLIGHT_BYTES).end);
        };
        if let Some(file) = state.disk.get(&key).map(|place| place.file.clone()) {
            let (waiting, arrival) = in_flight();
            state.flights.insert(key, arrival.clone());
            drop(guard);
            let run = vec![Coming { frame, lease: Some(lease), waiting }];
            let flight = Flight::new(self, object, context, used, run);
            tokio::spawn(flight.bring_from_disk(file, Arc::clone(fetch)));
            return Found::Started(vec![(frame, arrival)]);
        }
        let (run, arrivals) = self.start_run(state, wanted, lease);
        drop(guard);
        let flight = Flight::new(self, object, context, used, run);
        tokio::spawn(flight.bring_from_store(Arc::clone(fetch)));
        Found::Started(arrivals)
    }

    /// The frame that is wanted, for which there is a lease, and those behind it that are missing, as far as there is
    /// memory for them without taking the last.
    fn start_run(&self, state: &mut State, wanted: &Wanted<'_>, first: Lease) -> (Run, Vec<(u32, Arrival)>) {
        let left = self.memory.total() / limits::HOT_FLYING_LEFT_DIVISOR;
        let (mut run, mut arrivals, mut first) = (Vec::new(), Vec::new(), Some(first));
        for frame in missing_run(state, wanted, limits::HOT_FLIGHT_BYTES) {
            let lease = first.take().or_else(|| self.lease_leaving(wanted.object, frame, left));
            if lease.is_none() {
                break;
            }
            let (waiting, arrival) = in_flight();
            state.flights.insert(wanted.object.key(frame), arrival.clone());
            arrivals.push((frame, arrival));
            run.push(Coming { frame, lease, waiting });
        }
        (run, arrivals)
    }

    /// Whether the first `bytes` of an object, from its start to the end of a level, are here: the slowest medium among
    /// their frames.
    pub fn medium_of_front(&self, object: &ChunkKey, bytes: u64) -> Medium {
        self.medium_from(FrameKey::first(object), bytes)
    }

    /// As [`medium_of_front`](Self::medium_of_front), of the object whose first frame is `key`.
    pub(crate) fn medium_from(&self, mut key: FrameKey, bytes: u64) -> Medium {
        let state = self.state.lock();
        let (mut medium, mut at) = (Medium::Cpu, 0);
        while at < bytes {
            let held = state.ram.get(&key).map(|held| u64::from(held.place.file.bytes));
            let ahead = || state.ahead.get(&key).map(|content| content.len() as u64);
            let here = held.or_else(ahead).or_else(|| state.writing.get(&key).map(|c| c.len() as u64));
            at += match (here, state.disk.get(&key)) {
                (Some(bytes), _) => bytes,
                (None, Some(place)) => {
                    medium = Medium::Disk;
                    u64::from(place.file.bytes)
                }
                (None, None) => return Medium::Object,
            };
            key.frame += 1;
        }
        medium
    }

    /// The first frame of an object, with its head, if it is here. Not a use of it.
    pub async fn first_frame(self: &Arc<Self>, object: &ChunkKey) -> Option<Bytes> {
        let key = FrameKey::first(object);
        let file = {
            let state = self.state.lock();
            let held = state.ram.get(&key).map(|held| &held.bytes);
            let here = held.or_else(|| state.ahead.get(&key)).or_else(|| state.writing.get(&key));
            if let Some(bytes) = here {
                return Some(bytes.clone());
            }
            state.disk.get(&key)?.file.clone()
        };
        let (folder, lease) = (Arc::clone(&self.folder), self.memory.lease(u64::from(file.bytes))?);
        blocking(move || folder.read(&file, Some(lease))).await.ok()?
    }

    /// Memory for a frame that comes from a writer; [`offer`](Self::offer) takes it in.
    pub(crate) fn space(&self, object: &HotObject, frame: u32) -> Option<Region> {
        let left = self.memory.total() / limits::HOT_FLYING_LEFT_DIVISOR;
        let lease = self.lease_leaving(object, frame, left)?;
        let range = object.range(frame);
        Some(Region::new((range.end - range.start) as usize, Some(lease)))
    }

    /// Takes a frame in that comes from a writer, who has verified it.
    pub(crate) fn offer(
        self: &Arc<Self>,
        object: &HotObject,
        frame: u32,
        context: HotContext,
        bytes: Region,
    ) {
        let length = bytes.len();
        let mut work = DiskWork::default();
        let mut state = self.state.lock();
        self.take_in(&mut state, object, frame, context, bytes.freeze(length), &mut work);
        drop(state);
        self.do_disk_work(work);
    }

    /// Leave to read something ahead; `None` while enough is being read.
    pub(crate) fn prefetch_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.prefetches).try_acquire_owned().ok()
    }

    /// Reads what is likely to be read next. Nobody waits for it, and failures are for those who will.
    pub async fn read_ahead(
        self: &Arc<Self>,
        object: &Arc<HotObject>,
        range: Range<u64>,
        context: HotContext,
        fetch: Fetch,
    ) {
        let mut parts = reading::stream(self, object, range, context, fetch, false);
        while let Some(Ok(_)) = parts.next().await {}
    }

    /// Drops all frames of an object that was deleted or found broken.
    pub fn remove(self: &Arc<Self>, object: &HotObject) {
        let mut work = DiskWork::default();
        let mut state = self.state.lock();
        for key in (0..object.frames()).map(|frame| object.key(frame)) {
            state.ahead.take(&key);
            if state.ram_book.remove(&key) {
                self.leave_ram(&mut state, &key, EvictReason::Removed);
            }
            if state.disk_book.remove(&key) {
                self.leave_disk(&mut state, &key, EvictReason::Removed, &mut work);
            }
        }
        drop(state);
        self.do_disk_work(work);
    }

    /// Where the frames of `range` are: the slowest medium among them.
    pub fn medium(&self, object: &HotObject, range: &Range<u64>) -> Medium {
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

    /// What the tier holds now.
    pub fn usage(&self) -> HotUsage {
        let state = self.state.lock();
        HotUsage {
            ram_bytes: state.ram_book.bytes() + state.ahead.bytes(),
            writing_bytes: state.writing_bytes,
            disk_bytes: state.disk_book.bytes(),
            ram_frames: state.ram.len(),
            disk_frames: state.disk.len(),
            ram_level_bytes: state.ram_levels.0.clone(),
            disk_level_bytes: state.disk_levels.0.clone(),
        }
    }

    /// The settings in force.
    pub fn settings(&self) -> &HotSettings {
        &self.settings
    }

    /// Its time.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    pub(super) fn folder(&self) -> &Arc<FrameFolder> {
        &self.folder
    }
}

/// Both ends of a frame's way.
fn in_flight() -> (oneshot::Sender<Outcome>, Arrival) {
    let (waiting, arrival) = oneshot::channel();
    (waiting, arrival.shared())
}

/// The frame that is wanted, and those behind it that are missing, up to so many bytes.
fn missing_run(state: &State, wanted: &Wanted<'_>, bytes_max: u64) -> Range<u32> {
    let Wanted { object, frame, last, .. } = *wanted;
    let is_here = |key: &FrameKey| {
        state.ram.contains_key(key) || state.disk.contains_key(key) || state.ahead.get(key).is_some()
    };
    let stops = |next: u32| {
        let key = object.key(next);
        let bytes = object.range(next).end - object.range(frame).start;
        is_here(&key) || state.flights.contains_key(&key) || bytes > bytes_max
    };
    frame..(frame + 1..=last).find(|next| stops(*next)).unwrap_or(last.max(frame) + 1)
}

#[cfg(test)]
impl HotTier {
    /// Whether nothing is on its way: neither to the readers nor to the disk.
    pub(super) fn is_settled(&self) -> bool {
        let state = self.state.lock();
        let prefetching = self.prefetches.available_permits() < limits::HOT_PREFETCHES_MAX;
        state.flights.is_empty() && state.writing.is_empty() && !prefetching
    }
}
