//! Concurrent loads of one client that read the same object read each byte once.

use std::{
    collections::HashMap,
    ops::Range,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use bytes::Bytes;
use kvasir_types::ObjectDigest;
use tokio::{sync::Notify, time::Instant};

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
    /// Another load reads them, and has brought what it reads up to this offset.
    Reading(u64),
    /// No load reads the bytes up to this offset.
    Nobody(u64),
}

/// How to get the first bytes of a range.
enum Next<'a> {
    Here(u64, Bytes),
    Wait(u64),
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
        if let Some(reading) = self.reading.iter().find(|reading| reading.contains(&range.start)) {
            return Source::Reading(self.brought(reading));
        }
        let begun = self.reading.iter().map(|reading| reading.start);
        let here = self.arrived.get(after).map(|(start, _)| *start);
        let end = begun.filter(|start| *start > range.start).chain(here).chain([range.end]).min();
        Source::Nobody(end.unwrap_or(range.end))
    }

    /// The end of what has arrived of a range that is being read.
    fn brought(&self, reading: &Range<u64>) -> u64 {
        let before_end = self.arrived.partition_point(|(start, _)| *start < reading.end);
        let last = before_end.checked_sub(1).map(|i| &self.arrived[i]);
        last.map_or(0, |(start, bytes)| start + bytes.len() as u64).max(reading.start)
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
        // How far the load that reads for this one had come when it was last heard of, and when that was.
        let mut heard: Option<(u64, Instant)> = None;
        while !left.is_empty() {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let claim = match self.next(&left) {
                Next::Here(offset, bytes) => {
                    left.start += bytes.len() as u64;
                    heard = None;
                    match has_waited {
                        true => sink.write(offset, bytes).await,
                        false => sink.found(offset, bytes).await,
                    }
                    continue;
                }
                Next::Wait(brought) => {
                    has_waited = true;
                    let before = heard.filter(|(before, _)| *before == brought);
                    let (_, since) = *heard.insert(before.unwrap_or_else(|| (brought, Instant::now())));
                    // Other parts of the object may arrive all the while.
                    let is_silent = since.elapsed() >= SHARED_SILENCE_MAX
                        || tokio::time::timeout_at(since + SHARED_SILENCE_MAX, changed).await.is_err();
                    if !is_silent {
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
            Source::Reading(brought) => Next::Wait(brought),
            Source::Nobody(end) => {
                state.reading.push(range.start..end);
                Next::Read(ReadClaim { object: self, range: range.start..end })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::Ordering, time::Duration};

    use proptest::prelude::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::{
        Deadline,
        rest::{Client, ClientConfig},
    };

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
                    Source::Reading(brought) => {
                        let reading = state.reading.iter().find(|reading| reading.contains(&left.start));
                        prop_assert!(reading.is_some_and(|reading| brought >= reading.start));
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

    /// What a load is given.
    #[derive(Default)]
    struct Given(Vec<u8>);

    impl ByteSink for Given {
        async fn write(&mut self, _: u64, bytes: Bytes) {
            self.0.extend_from_slice(&bytes);
        }

        async fn found(&mut self, offset: u64, bytes: Bytes) {
            self.write(offset, bytes).await;
        }
    }

    #[tokio::test]
    async fn a_silent_reader_is_not_waited_for_while_other_parts_arrive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let client = Client::new(url, ClientConfig::default()).unwrap();
        let routes = Routes::new(client, Deadline::none(), None, &[], Instant::now());
        let (model_id, seq_hash, object_digest) = ([1; 32].into(), [2; 32].into(), [3; 32].into());
        let object = ObjectName { model_id, seq_hash, object_digest };
        let (shared, mut given) = (SharedObject::default(), Given::default());
        let _silent = shared.claim(0..2);
        let answer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_buf(&mut Vec::with_capacity(1 << 14)).await.unwrap();
            let head = "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes 0-1/9\r\ncontent-length: 2";
            stream.write_all(format!("{head}\r\n\r\nab").as_bytes()).await.unwrap();
            stream
        };
        let others = async {
            for offset in 100.. {
                shared.state().insert(offset, &Bytes::from_static(b"x"));
                shared.changed.notify_waiters();
                tokio::time::sleep(SHARED_SILENCE_MAX / 10).await;
            }
        };
        let read = async { tokio::join!(answer, shared.read(&routes, &object, 0..2, false, &mut given)).1 };
        tokio::select! {
            read = tokio::time::timeout(Duration::from_secs(10), read) => read.expect("in time").unwrap(),
            () = others => unreachable!("they go on"),
        }
        assert_eq!(given.0, b"ab");
    }

    /// Another load has brought the end of what the slow one reads.
    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_waited_for_while_its_bytes_arrive() {
        let client = Client::new("http://127.0.0.1:9".parse().unwrap(), ClientConfig::default()).unwrap();
        let routes = Routes::new(client, Deadline::none(), None, &[], Instant::now());
        let (model_id, seq_hash, object_digest) = ([1; 32].into(), [2; 32].into(), [3; 32].into());
        let object = ObjectName { model_id, seq_hash, object_digest };
        let (shared, mut given) = (SharedObject::default(), Given::default());
        let _slow = shared.claim(0..4);
        shared.state().insert(3, &Bytes::from_static(b"d"));
        let slow = async {
            for (offset, byte) in [b"a", b"b", b"c"].into_iter().enumerate() {
                tokio::time::sleep(SHARED_SILENCE_MAX * 3 / 5).await;
                shared.state().insert(offset as u64, &Bytes::from_static(byte));
                shared.changed.notify_waiters();
            }
        };
        let read = shared.read(&routes, &object, 0..4, false, &mut given);
        assert!(tokio::join!(slow, read).1.is_ok());
        assert_eq!((given.0, routes.counters.requests.load(Ordering::Relaxed)), (b"abcd".to_vec(), 0));
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
