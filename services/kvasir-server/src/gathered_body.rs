//! Bodies in long writes: the parts of an answer that are ready go to the socket together.
//!
//! A part is mostly a frame of the hot tier, a MiB. At the end of each write the kernel sends what it has and wakes the reader, so one
//! write of several frames costs less than a write for each. A slow reader gets one frame at a time: a frame that it has not taken
//! stays in memory.

use std::{
    collections::VecDeque,
    io::IoSlice,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use bytes::Buf;
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;

use crate::{
    idle_timer::{IdleTimer, UnwrittenPart},
    limits,
};

/// Bytes that are gathered on a connection: more while it takes them fast.
#[derive(Debug, Clone)]
pub(crate) struct GatherLimit(Arc<AtomicUsize>);

impl GatherLimit {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicUsize::new(limits::GATHERED_BYTES_MIN)))
    }

    fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes note of how long the parts before took to be written.
    fn written_in(&self, time: Duration) {
        let now = self.bytes();
        let next = if time <= limits::GATHERED_TIME_MAX { now * 2 } else { now / 2 };
        let next = next.clamp(limits::GATHERED_BYTES_MIN, limits::GATHERED_BYTES_MAX);
        self.0.store(next, Ordering::Relaxed);
    }
}

/// A body whose ready parts are one frame.
#[derive(Debug)]
pub(crate) struct GatheredBody {
    body: Body,
    /// Polled no more.
    has_ended: bool,
    limit: GatherLimit,
    timer: IdleTimer,
    /// When the last parts were handed over.
    handed_over: Option<Instant>,
    /// What came behind the parts and is not one: trailers, or the error that it ended with.
    behind: Option<Result<Frame<Parts>, axum::Error>>,
}

impl GatheredBody {
    pub(crate) fn new(body: Body, limit: GatherLimit, timer: IdleTimer) -> Self {
        Self { body, has_ended: false, limit, timer, handed_over: None, behind: None }
    }
}

impl HttpBody for GatheredBody {
    type Data = Parts;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Parts>, axum::Error>>> {
        if let Some(behind) = self.behind.take() {
            return Poll::Ready(Some(behind));
        }
        if let Some(handed_over) = self.handed_over.take() {
            self.limit.written_in(handed_over.elapsed());
        }
        let (mut parts, limit) = (Parts::default(), self.limit.bytes());
        while parts.remaining() < limit && !self.has_ended && !self.body.is_end_stream() {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending if parts.remaining() == 0 => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(None) => self.has_ended = true,
                Poll::Ready(Some(Err(error))) => (self.behind, self.has_ended) = (Some(Err(error)), true),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(part) => {
                        let is_long = part.len() >= limits::GATHERED_PART_BYTES_MIN;
                        parts.push(part);
                        if !is_long && parts.remaining() > 0 {
                            break;
                        }
                    }
                    Err(other) => {
                        self.behind =
                            other.into_trailers().ok().map(|trailers| Ok(Frame::trailers(trailers)));
                        break;
                    }
                },
            }
        }
        if parts.remaining() == 0 {
            return Poll::Ready(self.behind.take());
        }
        self.handed_over = Some(Instant::now());
        parts.unwritten = Some(self.timer.hand_over());
        Poll::Ready(Some(Ok(Frame::data(parts))))
    }

    fn is_end_stream(&self) -> bool {
        self.behind.is_none() && (self.has_ended || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Parts that follow each other.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Empty only where there are no others.
    first: Bytes,
    rest: VecDeque<Bytes>,
    bytes: usize,
    /// Dropped with the parts, when all are written.
    unwritten: Option<UnwrittenPart>,
}

impl Parts {
    fn push(&mut self, part: Bytes) {
        self.bytes += part.len();
        if self.first.is_empty() {
            self.first = part;
        } else if !part.is_empty() {
            self.rest.push_back(part);
        }
    }
}

impl Buf for Parts {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        &self.first
    }

    fn advance(&mut self, mut count: usize) {
        self.bytes = self.bytes.checked_sub(count).expect("callers advance within what remains");
        while count >= self.first.len()
            && let Some(next) = self.rest.pop_front()
        {
            count -= self.first.len();
            self.first = next;
        }
        self.first.advance(count);
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = std::iter::once(&self.first).chain(&self.rest).filter(|part| !part.is_empty());
        let filled = slices.iter_mut().zip(parts).map(|(slice, part)| *slice = IoSlice::new(part));
        filled.count()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use futures::{FutureExt, stream};

    use super::*;

    const MIB: usize = 1 << 20;

    async fn next(body: &mut GatheredBody) -> Option<Result<Frame<Parts>, axum::Error>> {
        std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
    }

    async fn next_bytes(body: &mut GatheredBody) -> usize {
        let frame = next(body).await.expect("there is more").expect("no error");
        frame.into_data().expect("data").remaining()
    }

    fn body_of(parts: Vec<Result<Bytes, axum::Error>>) -> Body {
        Body::from_stream(stream::iter(parts))
    }

    fn megabytes(count: usize) -> Vec<Result<Bytes, axum::Error>> {
        (0..count).map(|_| Ok(Bytes::from(vec![7; MIB]))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_fast_reader_gets_more_at_once_and_a_slow_one_a_part() {
        let limit = GatherLimit::new();
        let mut body = GatheredBody::new(body_of(megabytes(20)), limit.clone(), IdleTimer::new());
        for expected in [1, 2, 4, 4] {
            assert_eq!(next_bytes(&mut body).await, expected * MIB);
        }
        // What a connection was found to take holds for its next answer.
        let mut other = GatheredBody::new(body_of(megabytes(5)), limit, IdleTimer::new());
        assert_eq!(next_bytes(&mut other).await, 4 * MIB);
        for expected in [2, 1, 1] {
            tokio::time::sleep(limits::GATHERED_TIME_MAX + Duration::from_millis(1)).await;
            assert_eq!(next_bytes(&mut body).await, expected * MIB);
        }
        assert_eq!(next_bytes(&mut body).await, 2 * MIB);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_ready_does_not_wait_for_what_is_not() {
        let (sender, receiver) = futures::channel::mpsc::unbounded::<Result<Bytes, axum::Error>>();
        let mut body = GatheredBody::new(Body::from_stream(receiver), GatherLimit::new(), IdleTimer::new());
        assert!(next(&mut body).now_or_never().is_none());
        for part in [MIB, 3, 4] {
            sender.unbounded_send(Ok(Bytes::from(vec![7; part]))).expect("it is read");
        }
        // Others do not go behind a short one.
        for expected in [MIB, 3, 4] {
            assert_eq!(next_bytes(&mut body).await, expected);
        }
        assert!(next(&mut body).now_or_never().is_none());
        drop(sender);
        assert!(next(&mut body).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_or_trailers_come_behind_all_parts() {
        let mut parts = megabytes(1);
        parts.push(Ok(Bytes::from_static(b"short")));
        parts.push(Err(axum::Error::new("cut off")));
        let limit = GatherLimit::new();
        limit.written_in(Duration::ZERO);
        limit.written_in(Duration::ZERO);
        let mut body = GatheredBody::new(body_of(parts), limit.clone(), IdleTimer::new());
        assert_eq!(next_bytes(&mut body).await, MIB + 5);
        assert!(!body.is_end_stream());
        assert!(next(&mut body).await.is_some_and(|last| last.is_err()));

        let frames = [Frame::data(Bytes::from_static(b"part")), Frame::trailers(HeaderMap::new())];
        let mut body = GatheredBody::new(Body::new(Frames(frames.into())), limit, IdleTimer::new());
        assert_eq!(next_bytes(&mut body).await, 4);
        assert!(next(&mut body).await.is_some_and(|last| last.is_ok_and(|last| last.is_trailers())));
        assert!(next(&mut body).await.is_none());
    }

    struct Frames(VecDeque<Frame<Bytes>>);

    impl HttpBody for Frames {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    #[test]
    fn parts_are_their_bytes_in_order_however_they_are_taken() {
        for (cut, step) in (0..7).flat_map(|cut| (1..9).map(move |step| (cut, step))) {
            let mut gathered = Parts::default();
            // Of each length up to six, empty ones among them.
            let parts: Vec<Vec<u8>> = (0..9).map(|nth| vec![nth; (usize::from(nth) * 5 + cut) % 7]).collect();
            parts.iter().for_each(|part| gathered.push(Bytes::from(part.clone())));
            let whole = parts.concat();
            let mut at = 0;
            while at < whole.len() {
                let mut slices = [IoSlice::new(&[]); 4];
                let filled = gathered.chunks_vectored(&mut slices);
                assert!(filled > 0 && slices[..filled].iter().all(|slice| !slice.is_empty()));
                let seen = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>();
                assert!(whole[at..].starts_with(&seen) && seen.starts_with(gathered.chunk()));
                let taken = step.min(gathered.remaining());
                gathered.advance(taken);
                at += taken;
                assert_eq!(gathered.remaining(), whole.len() - at);
                assert_eq!(gathered.has_remaining(), !gathered.chunk().is_empty());
            }
            assert!(gathered.chunk().is_empty());
        }
    }
}
