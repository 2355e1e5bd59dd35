//! Ends request and response bodies soon after their credential is revoked or expires.
//!
//! Authorization checks a credential once, when its request begins. An event stream, a long upload or a long
//! download would outlive it.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    response::Response,
};
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::limits;

/// Watches the credential of one request.
#[derive(Clone)]
pub(crate) struct CredentialWatch {
    is_in_force: Arc<dyn Fn() -> bool + Send + Sync>,
    has_ended: Arc<AtomicBool>,
}

impl fmt::Debug for CredentialWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialWatch").field("has_ended", &self.has_ended).finish_non_exhaustive()
    }
}

impl CredentialWatch {
    pub(crate) fn new(is_in_force: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { is_in_force: Arc::new(is_in_force), has_ended: Arc::default() }
    }

    /// Whether a body was ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// The request with its body watched.
    pub(crate) fn request(&self, request: Request) -> Request {
        request.map(|body| self.body(body))
    }

    /// The response, `paced`, with its body watched unless it is already in memory. A part that waits for its turn ends with the
    /// credential, too.
    pub(crate) fn response(&self, response: Response, paced: impl FnOnce(Response) -> Response) -> Response {
        let is_short = response.body().size_hint().exact().is_some_and(|b| b <= limits::UNWATCHED_BYTES_MAX);
        let response = paced(response);
        if is_short { response } else { response.map(|body| self.body(body)) }
    }

    fn body(&self, body: Body) -> Body {
        if body.is_end_stream() {
            return body;
        }
        let next_look = Instant::now() + limits::CREDENTIAL_LOOK_EVERY;
        Body::new(WatchedBody { body, watch: self.clone(), next_look, alarm: None })
    }

    /// Checks the credential. Remembers that it has ended: a credential that returns must not join two halves
    /// of a body.
    fn look(&self) -> bool {
        let is_in_force = !self.has_ended() && (self.is_in_force)();
        if !is_in_force {
            self.has_ended.store(true, Ordering::Relaxed);
        }
        is_in_force
    }
}

struct WatchedBody {
    body: Body,
    watch: CredentialWatch,
    next_look: Instant,
    /// Wakes the reader of an idle body.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        loop {
            if Instant::now() >= self.next_look {
                if !self.watch.look() {
                    return Poll::Ready(Some(Err(axum::Error::new("its credential is no longer valid"))));
                }
                self.next_look = Instant::now() + limits::CREDENTIAL_LOOK_EVERY;
            }
            if let ready @ Poll::Ready(_) = Pin::new(&mut self.body).poll_frame(cx) {
                return ready;
            }
            let next_look = self.next_look;
            let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(next_look)));
            if alarm.deadline() != next_look {
                alarm.as_mut().reset(next_look);
            }
            if alarm.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::identity, time::Duration};

    use axum::http::header;
    use futures::{StreamExt, stream};

    use super::*;

    fn watch() -> (CredentialWatch, Arc<AtomicBool>) {
        let in_force = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&in_force);
        (CredentialWatch::new(move || asked.load(Ordering::Relaxed)), in_force)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_ends_soon_after_its_credential_whether_it_moves_or_not() {
        let parts = |pause| {
            Body::from_stream(stream::repeat(()).then(move |()| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, axum::Error>(Bytes::from_static(b"part"))
            }))
        };
        for pause in [Duration::from_millis(10), Duration::from_secs(3600)] {
            let (watch, in_force) = watch();
            let body = watch.response(Response::new(parts(pause)), identity).into_body();
            let reading = tokio::spawn(async move {
                body.into_data_stream().take_while(|part| std::future::ready(part.is_ok())).count().await
            });
            tokio::time::sleep(Duration::from_secs(100)).await;
            assert!(!reading.is_finished(), "it is in force");
            in_force.store(false, Ordering::Relaxed);
            tokio::time::sleep(limits::CREDENTIAL_LOOK_EVERY).await;
            tokio::task::yield_now().await;
            assert!(watch.has_ended() && reading.is_finished(), "{pause:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_keeps_its_length_and_one_in_memory_is_not_touched() {
        let (watch, in_force) = watch();
        let long = vec![7; limits::UNWATCHED_BYTES_MAX as usize + 1];
        let response = watch.response(Response::new(Body::from(long.clone())), identity);
        assert_eq!(response.body().size_hint().exact(), Some(long.len() as u64));
        assert!(!response.headers().contains_key(header::TRANSFER_ENCODING));
        assert_eq!(axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("reads"), long);
        let short = watch.response(Response::new(Body::from("short")), identity);
        in_force.store(false, Ordering::Relaxed);
        tokio::time::sleep(limits::CREDENTIAL_LOOK_EVERY * 2).await;
        assert_eq!(axum::body::to_bytes(short.into_body(), 1 << 20).await.expect("reads"), "short");
    }
}
