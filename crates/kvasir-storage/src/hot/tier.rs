//! The tier: looks frames up, joins or starts flights, fills and drops.

use std::{collections::HashMap, fmt, io, ops::Range, sync::Arc};

use bytes::Bytes;
use futures::{
    StreamExt, TryStreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use kvasir_types::Medium;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::{
    StorageError,
    eviction::{ClassId, Moment},
    limits,
};

use super::{
    EvictReason, FrameKey, HotClock, HotObject, HotObserver, HotSettings, HotUsage,
    book::{Book, TenantNumbers},
    disk::FrameFolder,
    flight::{Arrival, Flight, Run},
    keep::{DiskWork, Held, Place, State, access},
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
    pub(super) state: Mutex<State>,
}

impl fmt::Debug for HotTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HotTier").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// One frame of one read.
struct Wanted<'a> {
    object: &'a Arc<HotObject>,
    frame: u32,
    /// The last frame that the read wants too: a flight brings what is missing up to it.
    last: u32,
    context: HotContext,
    /// Whether somebody waits for it; a prefetch is no use of a frame.
    used: bool,
}

enum Found {
    Here(Bytes),
    Coming(Arrival),
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
        let state = State {
            tenants: TenantNumbers::default(),
            ram_book: Book::new(settings.policy, settings.ram_bytes),
            ram: HashMap::new(),
            disk_book: Book::new(settings.policy, settings.disk_bytes),
            disk: HashMap::new(),
            writing: HashMap::new(),
            flights: HashMap::new(),
        };
        let folder = Arc::new(FrameFolder::new(settings.directory.clone()));
        let prefetches = Arc::new(Semaphore::new(limits::HOT_PREFETCHES_MAX));
        let tier = Self { settings, clock, observer, folder, prefetches, state: Mutex::new(state) };
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
        self.stream(object, range, context, fetch, true)
    }

    fn stream(
        self: &Arc<Self>,
        object: &Arc<HotObject>,
        range: Range<u64>,
        context: HotContext,
        fetch: Fetch,
        used: bool,
    ) -> BoxStream<'static, Result<Bytes, StorageError>> {
        let frames = object.frames_of(&range);
        let at = context.at.unwrap_or_else(|| self.clock.now());
        let context = HotContext { at: Some(at), ..context };
        let (tier, object, last) = (Arc::clone(self), Arc::clone(object), frames.end.saturating_sub(1));
        let parts = stream::iter(frames).then(move |frame| {
            let (tier, object, fetch, range) =
                (Arc::clone(&tier), Arc::clone(&object), Arc::clone(&fetch), range.clone());
            async move {
                let wanted = Wanted { object: &object, frame, last, context, used };
                let whole = tier.frame(wanted, &fetch).await?;
                let at = object.range(frame);
                let from = range.start.max(at.start) - at.start;
                let to = range.end.min(at.end) - at.start;
                Ok(whole.slice(from as usize..to as usize))
            }
        });
        // After an error there is nothing more: the reader would take a hole for bytes.
        let ended = parts.scan(false, |failed, part: Result<Bytes, StorageError>| {
            let stop = std::mem::replace(failed, part.is_err());
            futures::future::ready((!stop).then_some(part))
        });
        ended.boxed()
    }

    async fn frame(self: &Arc<Self>, wanted: Wanted<'_>, fetch: &Fetch) -> Result<Bytes, StorageError> {
        let range = wanted.object.range(wanted.frame);
        let mut arrival = match self.find(&wanted, fetch) {
            Found::Here(bytes) => return Ok(bytes),
            Found::Coming(arrival) => arrival,
        };
        let bytes = arrival.wait_for(Option::is_some).await.ok().and_then(|bytes| bytes.clone());
        match bytes {
            Some(bytes) => Ok(bytes),
            // The flight failed: ask for this frame alone, and learn why.
            None => {
                let parts: Vec<Bytes> = fetch(range).await?.try_collect().await?;
                Ok(parts.concat().into())
            }
        }
    }

    /// Where a frame is, or will be: the flight that brings it is started here if there is none.
    fn find(self: &Arc<Self>, wanted: &Wanted<'_>, fetch: &Fetch) -> Found {
        let Wanted { object, frame, context, used, .. } = *wanted;
        let key = object.key(frame);
        let now = context.at.unwrap_or_default();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        self.expire(state, self.clock.now());
        if let Some(held) = state.ram.get_mut(&key) {
            let bytes = held.bytes.clone();
            if used {
                held.place.access = access(&held.place.file, context, now);
                state.ram_book.touch(&key, &held.place.access);
                state.disk_book.touch(&key, &held.place.access);
                self.observer.served(Medium::Cpu, context.class, bytes.len() as u64);
            }
            return Found::Here(bytes);
        }
        if let Some(arrival) = state.flights.get(&key) {
            return Found::Coming(arrival.clone());
        }
        if let Some(bytes) = state.writing.get(&key).cloned() {
            self.observer.served(Medium::Cpu, context.class, bytes.len() as u64);
            return Found::Here(bytes);
        }
        if let Some(place) = state.disk.get_mut(&key) {
            if used {
                place.access = access(&place.file, context, now);
                state.disk_book.touch(&key, &place.access);
            }
            let file = place.file.clone();
            let (sender, arrival) = watch::channel(None);
            state.flights.insert(key, arrival.clone());
            drop(guard);
            let flight = Flight::new(self, object, context, used, vec![(frame, sender)]);
            tokio::spawn(flight.bring_from_disk(file, Arc::clone(fetch)));
            return Found::Coming(arrival);
        }
        let (run, arrival) = start_run(state, wanted);
        drop(guard);
        let flight = Flight::new(self, object, context, used, run);
        tokio::spawn(flight.bring_from_store(Arc::clone(fetch)));
        Found::Coming(arrival)
    }

    /// Takes frames in that come from a writer: bytes of the object from its start, as far as they go.
    pub fn offer(self: &Arc<Self>, object: &HotObject, context: HotContext, mut content: &[u8]) {
        let now = context.at.unwrap_or_else(|| self.clock.now());
        let mut work = DiskWork::default();
        let mut state = self.state.lock();
        for frame in 0..object.frames() {
            let range = object.range(frame);
            let Some((bytes, rest)) = content.split_at_checked((range.end - range.start) as usize) else {
                break;
            };
            let place = self.place(&mut state, object, frame, context, now);
            self.take_in_ram(&mut state, Held { bytes: Bytes::copy_from_slice(bytes), place }, &mut work);
            content = rest;
        }
        drop(state);
        self.do_disk_work(work);
    }

    /// Reads what is likely to be read next, where few do so already. Nobody waits for it.
    pub fn prefetch(
        self: &Arc<Self>,
        object: &Arc<HotObject>,
        range: Range<u64>,
        context: HotContext,
        fetch: Fetch,
    ) {
        let Ok(permit) = Arc::clone(&self.prefetches).try_acquire_owned() else { return };
        let mut parts = self.stream(object, range, context, fetch, false);
        tokio::spawn(async move {
            while let Some(Ok(_)) = parts.next().await {}
            drop(permit);
        });
    }

    /// Drops all frames of an object that was deleted or found broken.
    pub fn remove(self: &Arc<Self>, object: &HotObject) {
        let mut work = DiskWork::default();
        let mut state = self.state.lock();
        for key in (0..object.frames()).map(|frame| object.key(frame)) {
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
        let mut usage = HotUsage {
            ram_bytes: state.ram_book.bytes(),
            disk_bytes: state.disk_book.bytes(),
            ram_frames: state.ram.len(),
            disk_frames: state.disk.len(),
            level_bytes: Vec::new(),
        };
        for file in
            state.ram.values().map(|held| &held.place.file).chain(state.disk.values().map(|p| &p.file))
        {
            let level = usize::from(file.level);
            if usage.level_bytes.len() <= level {
                usage.level_bytes.resize(level + 1, 0);
            }
            usage.level_bytes[level] += u64::from(file.bytes);
        }
        usage
    }

    pub(super) fn folder(&self) -> &Arc<FrameFolder> {
        &self.folder
    }

    pub(super) fn observer(&self) -> &dyn HotObserver {
        &*self.observer
    }
}

fn start_run(state: &mut State, wanted: &Wanted<'_>) -> (Run, Arrival) {
    let Wanted { object, frame, last, .. } = *wanted;
    let mut run = Vec::new();
    let mut first = None;
    for next in frame..=last.max(frame) {
        let key = object.key(next);
        let present = state.ram.contains_key(&key) || state.disk.contains_key(&key);
        let bytes = object.range(next).end - object.range(frame).start;
        if next > frame && (present || state.flights.contains_key(&key) || bytes > limits::HOT_FLIGHT_BYTES) {
            break;
        }
        let (sender, arrival) = watch::channel(None);
        state.flights.insert(key, arrival.clone());
        first.get_or_insert(arrival);
        run.push((next, sender));
    }
    (run, first.expect("the run has its first frame"))
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
