//! Finds a frame: in memory, in flight, on disk, or by a new fetch.

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
    /// The last frame that the read also needs: a fetch brings the missing ones up to it.
    pub(super) last: u32,
    pub(super) context: HotContext,
    /// Whether a reader waits for it; a prefetch does not count as a use.
    pub(super) used: bool,
}

/// Where a frame is.
pub(super) enum FrameLocation {
    Resident(Bytes),
    /// Another reader's fetch brings it.
    Joined(FrameReceiver),
    /// This reader's fetch brings it, and possibly the following ones.
    Started(Vec<(u32, FrameReceiver)>),
    /// There is currently no memory for it, nor for the following frames up to this one.
    NoMemory(u32),
}

impl HotTier {
    /// Finds a frame, or starts the fetch that brings it.
    pub(super) fn find(self: &Arc<Self>, request: &FrameRequest<'_>, source: &RangeReader) -> FrameLocation {
        let FrameRequest { object, frame, context, used, .. } = *request;
        let key = object.key(frame);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let range = object.range(frame);
        if state.lengths_of(&key).into_iter().flatten().any(|length| length != range.end - range.start) {
            // The frame under this name was divided by another head: the store once returned another object's
            // head.
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

    /// The requested frame, for which there is a lease, and the following missing ones, as far as memory
    /// allows without using the last of it.
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

/// The requested frame and the following missing ones, up to this many bytes.
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
