//! Finds a frame: in memory, on its way, on disk, or by a new fetch.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use crate::{limits, memory::Lease};

use super::{
    context::{HotContext, RangeReader},
    frames::{FrameKey, HotObject},
    pending::{FrameBatch, FrameReceiver, PendingFrame, frame_channel},
    shared_fetch::SharedFetch,
    tier::HotTier,
    tier_state::TierState,
};

/// One frame of one read.
pub(super) struct FrameRequest<'a> {
    pub(super) object: &'a Arc<HotObject>,
    pub(super) frame: u32,
    /// The last frame that the read wants too: a fetch brings what is missing up to it.
    pub(super) last: u32,
    pub(super) context: HotContext,
    /// Whether a reader waits for it; a prefetch is no use of a frame.
    pub(super) used: bool,
}

/// Where a frame is.
pub(super) enum FrameLocation {
    Resident(Bytes),
    /// Another reader's fetch brings it.
    Joined(FrameReceiver),
    /// A fetch of this reader brings it, and perhaps frames behind it.
    Started(Vec<(u32, FrameReceiver)>),
    /// There is no memory for it now, nor for those behind it up to this one.
    NoMemory(u32),
}

impl HotTier {
    /// Where a frame is, or will be: the fetch that brings it is started here if there is none.
    pub(super) fn find(self: &Arc<Self>, request: &FrameRequest<'_>, source: &RangeReader) -> FrameLocation {
        let FrameRequest { object, frame, context, used, .. } = *request;
        let key = object.key(frame);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let range = object.range(frame);
        if state.lengths_of(&key).into_iter().flatten().any(|length| length != range.end - range.start) {
            // What is kept under its name was cut by another head: the store once gave that of another object.
            drop(guard);
            self.remove(object);
            return self.find(request, source);
        }
        if let Some(resident) = state.ram.get(&key) {
            let bytes = resident.bytes.clone();
            if used {
                state.touch(&key, context);
            }
            return FrameLocation::Resident(bytes);
        }
        if let Some(bytes) = state.prefetched.get(&key).cloned() {
            drop(guard);
            if used {
                self.record_use(object, frame, context);
            }
            return FrameLocation::Resident(bytes);
        }
        if let Some(receiver) = state.fetches.get(&key) {
            return FrameLocation::Joined(receiver.clone());
        }
        if used {
            state.touch(&key, context);
        }
        if let Some(bytes) = state.writing.get(&key) {
            return FrameLocation::Resident(bytes.clone());
        }
        let Some(lease) = self.lease_for(object, frame) else {
            return FrameLocation::NoMemory(missing_frames(state, request, limits::HOT_FETCH_BYTES).end);
        };
        if let Some(file) = state.disk.get(&key).map(|record| record.file.clone()) {
            let (sender, receiver) = frame_channel();
            state.fetches.insert(key, receiver.clone());
            drop(guard);
            let batch = vec![PendingFrame { frame, lease: Some(lease), sender }];
            let fetch = SharedFetch::new(self, object, context, used, batch);
            tokio::spawn(fetch.fetch_from_disk(file, Arc::clone(source)));
            return FrameLocation::Started(vec![(frame, receiver)]);
        }
        let (batch, receivers) = self.start_batch(state, request, lease);
        drop(guard);
        let fetch = SharedFetch::new(self, object, context, used, batch);
        tokio::spawn(fetch.fetch_from_store(Arc::clone(source)));
        FrameLocation::Started(receivers)
    }

    /// The frame that is wanted, for which there is a lease, and those behind it that are missing, as far as there is
    /// memory for them without taking the last.
    fn start_batch(
        &self,
        state: &mut TierState,
        request: &FrameRequest<'_>,
        first: Lease,
    ) -> (FrameBatch, Vec<(u32, FrameReceiver)>) {
        let reserve = self.memory().total() / limits::HOT_IN_FLIGHT_RESERVE_DIVISOR;
        let (mut batch, mut receivers, mut first) = (Vec::new(), Vec::new(), Some(first));
        for frame in missing_frames(state, request, limits::HOT_FETCH_BYTES) {
            let lease = first.take().or_else(|| self.lease_leaving(request.object, frame, reserve));
            if lease.is_none() {
                break;
            }
            let (sender, receiver) = frame_channel();
            state.fetches.insert(request.object.key(frame), receiver.clone());
            receivers.push((frame, receiver));
            batch.push(PendingFrame { frame, lease, sender });
        }
        (batch, receivers)
    }
}

/// The frame that is wanted, and those behind it that are missing, up to so many bytes.
fn missing_frames(state: &TierState, request: &FrameRequest<'_>, bytes_max: u64) -> Range<u32> {
    let FrameRequest { object, frame, last, .. } = *request;
    let is_here = |key: &FrameKey| {
        state.ram.contains_key(key) || state.disk.contains_key(key) || state.prefetched.get(key).is_some()
    };
    let stops = |next: u32| {
        let key = object.key(next);
        let bytes = object.range(next).end - object.range(frame).start;
        is_here(&key) || state.fetches.contains_key(&key) || bytes > bytes_max
    };
    frame..(frame + 1..=last).find(|next| stops(*next)).unwrap_or(last.max(frame) + 1)
}
