//! Closes idle connections.
//!
//! A client that opens connections and abandons them, or never reads its responses, would use up connections
//! until the service has none left. The protocol's own timers cover the head of a request; this one covers
//! the rest.

use std::{
    collections::BTreeSet,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::limits;

/// Idle timeout of one connection. Clones share the timer.
#[derive(Debug, Clone)]
pub(crate) struct IdleTimer(Arc<TimerState>);

#[derive(Debug)]
struct TimerState {
    opened: Instant,
    /// Milliseconds from that instant to the last movement of bytes; 0 before the first.
    last_moved_ms: AtomicU64,
    /// Requests whose response has not begun: the client is waiting for the service.
    in_flight: AtomicUsize,
    /// When the parts of responses that are not written yet were handed over, each with a number of its own.
    unwritten: Mutex<BTreeSet<(Instant, u64)>>,
    handed_over: AtomicU64,
}

/// Keeps the timer from expiring until a request is answered; released when dropped.
#[derive(Debug)]
pub(crate) struct InFlightRequest(IdleTimer);

/// A part of a response that the connection has not written yet; written when dropped.
#[derive(Debug)]
pub(crate) struct UnwrittenPart {
    timer: IdleTimer,
    key: (Instant, u64),
}

impl IdleTimer {
    pub(crate) fn new() -> Self {
        Self(Arc::new(TimerState {
            opened: Instant::now(),
            last_moved_ms: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            unwritten: Mutex::default(),
            handed_over: AtomicU64::new(0),
        }))
    }

    /// Counts a request until the result is dropped.
    pub(crate) fn track_request(&self) -> InFlightRequest {
        self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightRequest(self.clone())
    }

    /// Counts a part of a response as unwritten until the result is dropped.
    pub(crate) fn hand_over(&self) -> UnwrittenPart {
        let key = (Instant::now(), self.0.handed_over.fetch_add(1, Ordering::Relaxed));
        self.0.unwritten.lock().insert(key);
        UnwrittenPart { timer: self.clone(), key }
    }

    /// Whether the client has left a part of a response for too long. HTTP/2 keeps such parts in memory whatever else
    /// moves on the connection.
    fn has_stalled(&self) -> bool {
        let oldest = self.0.unwritten.lock().first().map(|(at, _)| *at);
        oldest.is_some_and(|at| at.elapsed() >= limits::RESPONSE_STALL_MAX)
    }

    fn reset(&self) {
        let now = self.0.opened.elapsed().as_millis() as u64;
        self.0.last_moved_ms.store(now.max(1), Ordering::Relaxed);
    }

    /// Resolves when no bytes have moved for too long, or the client has left a part of a response for too long. The
    /// first limit is shorter for a client that has never sent any bytes.
    pub(crate) async fn expired(&self) {
        loop {
            let moved = self.0.last_moved_ms.load(Ordering::Relaxed);
            let patience = if moved == 0 { limits::HEADER_READ_TIMEOUT } else { limits::IDLE_MAX };
            let until = self.0.opened + std::time::Duration::from_millis(moved) + patience;
            if self.has_stalled() {
                return;
            } else if Instant::now() < until {
                tokio::time::sleep_until(until.min(Instant::now() + limits::STALL_CHECKED_EVERY)).await;
            } else if self.0.in_flight.load(Ordering::Relaxed) > 0 {
                self.reset();
            } else {
                return;
            }
        }
    }
}

impl Drop for UnwrittenPart {
    fn drop(&mut self) {
        self.timer.0.unwritten.lock().remove(&self.key);
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.0.reset();
        self.0.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that resets the timer when bytes move.
#[derive(Debug)]
pub(crate) struct TimedStream<S> {
    stream: S,
    timer: IdleTimer,
}

impl<S> TimedStream<S> {
    pub(crate) fn new(stream: S, timer: IdleTimer) -> Self {
        Self { stream, timer }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.timer.reset();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.timer.reset();
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.timer.reset();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_connection_and_bytes_or_an_answer_under_way_do_not() {
        let begun = Instant::now();
        IdleTimer::new().expired().await;
        assert_eq!(begun.elapsed().as_secs(), limits::HEADER_READ_TIMEOUT.as_secs(), "never sent anything");

        let (timer, (mut near, far)) = (IdleTimer::new(), tokio::io::duplex(64));
        let mut far = TimedStream::new(far, timer.clone());
        let begun = Instant::now();
        let talk = tokio::spawn(async move {
            for _ in 0..4 {
                near.write_all(b"x").await.expect("writes");
                far.read_exact(&mut [0]).await.expect("reads");
                tokio::time::sleep(limits::IDLE_MAX / 2).await;
            }
        });
        timer.expired().await;
        talk.await.expect("no panic");
        let elapsed = begun.elapsed();
        assert!(elapsed >= limits::IDLE_MAX * 5 / 2 && elapsed < limits::IDLE_MAX * 3, "{elapsed:?}");

        let timer = IdleTimer::new();
        timer.reset();
        let (begun, request) = (Instant::now(), timer.track_request());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1_000)).await;
            drop(request);
        });
        timer.expired().await;
        assert!(begun.elapsed() >= Duration::from_secs(1_000) + limits::IDLE_MAX, "{:?}", begun.elapsed());
    }

    /// An HTTP/2 client that answers pings and takes no data.
    #[tokio::test(start_paused = true)]
    async fn a_part_that_is_never_taken_ends_a_connection_on_which_bytes_move() {
        let timer = IdleTimer::new();
        let (begun, pinged) = (Instant::now(), timer.clone());
        let pings = tokio::spawn(async move {
            loop {
                pinged.reset();
                drop(pinged.hand_over());
                tokio::time::sleep(Duration::from_secs(20)).await;
            }
        });
        let waited = tokio::time::timeout(Duration::from_secs(10_000), timer.expired()).await;
        assert!(waited.is_err(), "what is taken at once ends nothing");
        let (handed_over, _part) = (Instant::now(), timer.hand_over());
        timer.expired().await;
        pings.abort();
        let waited = handed_over.elapsed();
        let most = limits::RESPONSE_STALL_MAX + limits::STALL_CHECKED_EVERY;
        assert!(
            waited >= limits::RESPONSE_STALL_MAX && waited <= most,
            "{waited:?} of {:?}",
            begun.elapsed()
        );
    }
}
