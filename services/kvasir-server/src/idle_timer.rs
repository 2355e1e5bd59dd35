//! Closes idle connections.
//!
//! A client that opens connections and abandons them, or never reads its responses, would use up connections
//! until the service has none left. The protocol's own timers cover the head of a request; this one covers
//! the rest.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

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
}

/// Keeps the timer from expiring until a request is answered; released when dropped.
#[derive(Debug)]
pub(crate) struct InFlightRequest(IdleTimer);

impl IdleTimer {
    pub(crate) fn new() -> Self {
        Self(Arc::new(TimerState {
            opened: Instant::now(),
            last_moved_ms: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
        }))
    }

    /// Counts a request until the result is dropped.
    pub(crate) fn track_request(&self) -> InFlightRequest {
        self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightRequest(self.clone())
    }

    fn reset(&self) {
        let now = self.0.opened.elapsed().as_millis() as u64;
        self.0.last_moved_ms.store(now.max(1), Ordering::Relaxed);
    }

    /// Resolves when no bytes have moved for too long. The limit is shorter for a client that has never sent
    /// any.
    pub(crate) async fn expired(&self) {
        loop {
            let moved = self.0.last_moved_ms.load(Ordering::Relaxed);
            let patience = if moved == 0 { limits::HEADER_READ_TIMEOUT } else { limits::IDLE_MAX };
            let until = self.0.opened + std::time::Duration::from_millis(moved) + patience;
            if Instant::now() < until {
                tokio::time::sleep_until(until).await;
            } else if self.0.in_flight.load(Ordering::Relaxed) > 0 {
                self.reset();
            } else {
                return;
            }
        }
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
}
