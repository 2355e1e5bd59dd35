//! Concurrent loads of one client that read the same object read each byte once.

use std::{
    collections::HashMap,
    ops::Range,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use bytes::Bytes;
use kvasir_types::ObjectDigest;
use tokio::sync::Notify;

use super::{ByteSink, ObjectName, Routes};
use crate::{Error, limits::SHARED_SILENCE_MAX};

/// Objects that loads are reading.
#[derive(Debug, Default)]
pub(crate) struct SharedReads(Mutex<HashMap<ObjectDigest, Weak<SharedObject>>>);

impl SharedReads {
    /// The object, shared with the other loads that hold it now.
    pub(crate) fn open(&self, digest: ObjectDigest) -> Arc<SharedObject> {
        let mut objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = objects.get(&digest).and_then(Weak::upgrade) {
            return shared;
        }
        objects.retain(|_, object| object.strong_count() > 0);
        let object = Arc::<SharedObject>::default();
        objects.insert(digest, Arc::downgrade(&object));
        object
    }
}

/// The arrived and requested bytes of an object, for as long as a load holds it.
#[derive(Debug, Default)]
pub(crate) struct SharedObject {
    state: Mutex<ObjectState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct ObjectState {
    /// Sorted by first byte; they do not overlap.
    arrived: Vec<(u64, Bytes)>,
    /// Ranges that are being read.
    reading: Vec<Range<u64>>,
}

/// The source of the first bytes of a range.
enum Source {
    /// They have arrived.
    Here(u64, Bytes),
    /// Another load reads them.
    Reading,
    /// No load reads the bytes up to this offset.
    Nobody(u64),
}

/// How to get the first bytes of a range.
enum Next<'a> {
    Here(u64, Bytes),
    Wait,
    Read(ReadClaim<'a>),
}

impl ObjectState {
    fn source(&self, range: &Range<u64>) -> Source {
        let after = self.arrived.partition_point(|(start, _)| *start <= range.start);
        if let Some((start, bytes)) = after.checked_sub(1).map(|i| &self.arrived[i])
            && start + bytes.len() as u64 > range.start
        {
            let end = (start + bytes.len() as u64).min(range.end);
            return Source::Here(
                range.start,
                bytes.slice((range.start - start) as usize..(end - start) as usize),
            );
        }
        if self.reading.iter().any(|reading| reading.contains(&range.start)) {
            return Source::Reading;
        }
        let begun = self.reading.iter().map(|reading| reading.start);
        let here = self.arrived.get(after).map(|(start, _)| *start);
        let end = begun.filter(|start| *start > range.start).chain(here).chain([range.end]).min();
        Source::Nobody(end.unwrap_or(range.end))
    }

    /// Keeps bytes that have not arrived before.
    fn insert(&mut self, offset: u64, bytes: &Bytes) {
        let (at, end) =
            (self.arrived.partition_point(|(start, _)| *start < offset), offset + bytes.len() as u64);
        let free_from = at.checked_sub(1).map(|i| &self.arrived[i]).map_or(0, |(s, b)| s + b.len() as u64);
        let free_to = self.arrived.get(at).map_or(u64::MAX, |(start, _)| *start);
        // Bytes are read twice only after an abandoned read; the first copy is kept.
        if free_from <= offset && end <= free_to && !bytes.is_empty() {
            self.arrived.insert(at, (offset, bytes.clone()));
        }
    }
}

/// A range that this load reads for all.
struct ReadClaim<'a> {
    object: &'a SharedObject,
    range: Range<u64>,
}

impl Drop for ReadClaim<'_> {
    fn drop(&mut self) {
        let mut state = self.object.state();
        if let Some(at) = state.reading.iter().position(|reading| *reading == self.range) {
            state.reading.swap_remove(at);
        }
        drop(state);
        self.object.changed.notify_waiters();
    }
}

/// Keeps a load's bytes for the other loads.
struct Tee<'a, S> {
    object: &'a SharedObject,
    sink: &'a mut S,
}

impl<S: ByteSink> ByteSink for Tee<'_, S> {
    async fn write(&mut self, offset: u64, bytes: Bytes) {
        self.object.state().insert(offset, &bytes);
        self.object.changed.notify_waiters();
        self.sink.write(offset, bytes).await;
    }

    async fn found(&mut self, offset: u64, bytes: Bytes) {
        self.sink.found(offset, bytes).await;
    }
}

impl SharedObject {
    fn state(&self) -> MutexGuard<'_, ObjectState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Like [`Routes::read`], for bytes that no other load has or reads; the others' bytes are passed on as
    /// they arrive. A load that stays silent is not waited for.
    pub(crate) async fn read(
        &self,
        routes: &Routes,
        object: &ObjectName,
        range: Range<u64>,
        through_service: bool,
        sink: &mut impl ByteSink,
    ) -> Result<(), Error> {
        let mut left = range;
        let mut has_waited = false;
        while !left.is_empty() {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let claim = match self.next(&left) {
                Next::Here(offset, bytes) => {
                    left.start += bytes.len() as u64;
                    match has_waited {
                        true => sink.write(offset, bytes).await,
                        false => sink.found(offset, bytes).await,
                    }
                    continue;
                }
                Next::Wait => {
                    has_waited = true;
                    if tokio::time::timeout(SHARED_SILENCE_MAX, changed).await.is_ok() {
                        continue;
                    }
                    self.claim(left.clone())
                }
                Next::Read(claim) => claim,
            };
            let mut tee = Tee { object: self, sink };
            routes.read(object, claim.range.clone(), through_service, &mut tee).await?;
            left.start = claim.range.end;
        }
        Ok(())
    }

    fn claim(&self, range: Range<u64>) -> ReadClaim<'_> {
        self.state().reading.push(range.clone());
        ReadClaim { object: self, range }
    }

    /// How to get the first bytes of a range; a part that no load reads is claimed.
    fn next(&self, range: &Range<u64>) -> Next<'_> {
        let mut state = self.state();
        match state.source(range) {
            Source::Here(offset, bytes) => Next::Here(offset, bytes),
            Source::Reading => Next::Wait,
            Source::Nobody(end) => {
                state.reading.push(range.start..end);
                Next::Read(ReadClaim { object: self, range: range.start..end })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever has arrived or is in flight, every byte of a range comes from one source, in order.
        #[test]
        fn a_range_is_pieced_together(
            inserts in prop::collection::vec((0u64..60, 1usize..12), 0..8),
            reading in prop::collection::vec((0u64..60, 1u64..12), 0..3),
            start in 0u64..60, len in 1u64..30,
        ) {
            let mut state = ObjectState::default();
            for (offset, len) in inserts {
                let bytes: Vec<u8> = (offset..offset + len as u64).map(|byte| byte as u8).collect();
                state.insert(offset, &bytes.into());
            }
            prop_assert!(state.arrived.windows(2).all(|w| w[0].0 + w[0].1.len() as u64 <= w[1].0));
            state.reading = reading.into_iter().map(|(start, len)| start..start + len).collect();
            let mut left = start..start + len;
            while !left.is_empty() {
                match state.source(&left) {
                    Source::Here(offset, bytes) => {
                        prop_assert!(offset == left.start && !bytes.is_empty() && bytes.len() as u64 <= left.end - left.start);
                        prop_assert!(bytes.iter().zip(offset..).all(|(byte, at)| *byte == at as u8));
                        left.start += bytes.len() as u64;
                    }
                    Source::Reading => {
                        prop_assert!(state.reading.iter().any(|reading| reading.contains(&left.start)));
                        left.start += 1;
                    }
                    Source::Nobody(end) => {
                        prop_assert!(end > left.start && end <= left.end);
                        for byte in left.start..end {
                            prop_assert!(!state.arrived.iter().any(|(s, b)| (*s..s + b.len() as u64).contains(&byte)));
                            prop_assert!(!state.reading.iter().any(|reading| reading.contains(&byte)));
                        }
                        left.start = end;
                    }
                }
            }
        }
    }

    #[test]
    fn an_object_is_shared_while_somebody_holds_it() {
        let reads = SharedReads::default();
        let first = reads.open([1; 32].into());
        assert!(Arc::ptr_eq(&first, &reads.open([1; 32].into())));
        assert!(!Arc::ptr_eq(&first, &reads.open([2; 32].into())));
        first.state().insert(0, &Bytes::from_static(b"abc"));
        drop(first);
        assert!(reads.open([1; 32].into()).state().arrived.is_empty());
        assert_eq!(reads.0.lock().unwrap().len(), 1, "what nobody holds is forgotten");
    }
}
