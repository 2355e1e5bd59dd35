//! Bodies that end if their clients take nothing: what was read for a response stays in memory until it is taken.
//!
//! HTTP/2 does not ask a body for more while its stream has no window, so the body cannot notice by itself.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::{task::AbortHandle, time::Instant};

use crate::limits;

/// A body that is dropped if nothing is taken of it for [`limits::RESPONSE_STALL_MAX`] while it has something.
#[derive(Debug)]
pub(crate) struct WatchedBody {
    state: Arc<Mutex<WatchedState>>,
    watcher: Option<AbortHandle>,
}

#[derive(Debug)]
struct WatchedState {
    /// `None` once it has ended or was dropped.
    body: Option<Body>,
    has_ended: bool,
    /// Since when the client may take the next part; `None` while the client waits for it.
    since: Option<Instant>,
}

impl WatchedBody {
    /// Must be called in a runtime.
    pub(crate) fn new(body: Body) -> Self {
        let has_more = !body.is_end_stream();
        let state = Arc::new(Mutex::new(WatchedState {
            body: Some(body),
            has_ended: false,
            since: Some(Instant::now()),
        }));
        let watched = Arc::downgrade(&state);
        let watcher = has_more.then(|| tokio::spawn(watch(watched)).abort_handle());
        Self { state, watcher }
    }
}

async fn watch(watched: Weak<Mutex<WatchedState>>) {
    let mut wait = limits::RESPONSE_STALL_MAX;
    loop {
        tokio::time::sleep(wait).await;
        let Some(state) = watched.upgrade() else { return };
        let mut state = state.lock();
        let idle = state.since.map(|since| since.elapsed()).unwrap_or_default();
        wait = limits::RESPONSE_STALL_MAX.saturating_sub(idle);
        if wait.is_zero() {
            state.body = None;
            return;
        }
    }
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut state = self.state.lock();
        if state.has_ended {
            return Poll::Ready(None);
        }
        let Some(body) = &mut state.body else {
            return Poll::Ready(Some(Err(axum::Error::new(
                "the client took nothing of the response for too long",
            ))));
        };
        let polled = Pin::new(body).poll_frame(cx);
        state.since = polled.is_ready().then(Instant::now);
        if matches!(polled, Poll::Ready(None)) {
            (state.body, state.has_ended) = (None, true);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let state = self.state.lock();
        state.has_ended || state.body.as_ref().is_some_and(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.state.lock().body.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, SinkExt, channel::mpsc};

    use super::*;

    async fn next(body: &mut WatchedBody) -> Option<Result<Frame<Bytes>, axum::Error>> {
        std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
    }

    async fn seconds_pass() {
        // Not an advance: the watcher's timers have to run.
        tokio::time::sleep(limits::RESPONSE_STALL_MAX + limits::RESPONSE_STALL_MAX / 10).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_takes_is_dropped() {
        for taken in [0, 1] {
            let (mut parts, read) = mpsc::channel::<Result<Bytes, axum::Error>>(4);
            let mut body = WatchedBody::new(Body::from_stream(read));
            for _ in 0..3 {
                parts.send(Ok(Bytes::from_static(b"part"))).await.expect("is read");
            }
            for _ in 0..taken {
                assert!(next(&mut body).await.is_some_and(|part| part.is_ok()));
            }
            seconds_pass().await;
            assert!(parts.is_closed());
            assert!(next(&mut body).await.is_some_and(|part| part.is_err()) && !body.is_end_stream());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_next_part_gets_it_however_late() {
        let (mut parts, read) = mpsc::channel::<Result<Bytes, axum::Error>>(4);
        let mut body = WatchedBody::new(Body::from_stream(read));
        for _ in 0..3 {
            assert!(next(&mut body).now_or_never().is_none());
            seconds_pass().await;
            parts.send(Ok(Bytes::from_static(b"part"))).await.expect("is read");
            assert!(next(&mut body).await.is_some_and(|part| part.is_ok()));
        }
        drop(parts);
        assert!(next(&mut body).await.is_none());
        seconds_pass().await;
        assert!(body.is_end_stream() && next(&mut body).await.is_none());
    }
}
