//! What `s3s` holds of a body before it passes it on: a whole aws-chunk, whose length its sender chooses, or a whole body
//! of XML.

use std::sync::Arc;

use axum::body::{Body, BodyDataStream, HttpBody};
use futures::{StreamExt, stream};
use kvasir_api::{ErrorCode, Problem};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::access::CallRecord;
use crate::{
    body_room::{HeldRoom, LONG_BODIES},
    handlers::v1::body,
    limits,
};

/// Measures what is held of one body, and ends the body at the limits. Clones share the measure.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldBody(Arc<Mutex<HeldState>>);

#[derive(Debug, Default)]
struct HeldState {
    bytes: usize,
    /// Length of the last part of the body: its end may belong to the next chunk.
    last: usize,
    has_passed_on: bool,
    since: Option<Instant>,
    room: Option<HeldRoom>,
    refusal: Option<Problem>,
    /// What nobody has read.
    rest: Option<BodyDataStream>,
    is_decided: bool,
}

impl HeldBody {
    /// The body of a call, which ends with an error at the limits.
    pub(super) fn measure(&self, body: Body, call: CallRecord) -> Body {
        if body.is_end_stream() {
            return body;
        }
        self.0.lock().rest = Some(body.into_data_stream());
        Body::from_stream(stream::try_unfold((self.clone(), call), |(held, call)| async move {
            // Between parts it lies where `drain` finds it, whoever drops this body.
            let Some(mut parts) = held.0.lock().rest.take() else { return Ok(None) };
            let Some(part) = parts.next().await.transpose()? else { return Ok(None) };
            held.0.lock().rest = Some(parts);
            let bytes = part.len() + limits::HELD_PART_BYTES;
            match held.take(bytes, || LONG_BODIES.hold(call.tenant())) {
                None => Ok(Some((part, (held, call)))),
                Some(problem) => Err(axum::Error::new(problem.detail)),
            }
        }))
    }

    /// The answer is decided: what the rest of the body meets changes it no more.
    pub(super) fn decided(&self) {
        self.0.lock().is_decided = true;
    }

    /// After a refusal, reads on for a while, for the client to see the answer, and to find the connection open.
    pub(super) async fn drain(&self) {
        let rest = self.0.lock().rest.take();
        if let Some(rest) = rest {
            body::drain(rest).await;
        }
    }

    /// `s3s` passed on a part of the body: it does so with all of a chunk before it takes more.
    pub(super) fn passed_on(&self) {
        self.0.lock().has_passed_on = true;
    }

    /// Why the body was ended.
    pub(super) fn refusal(&self) -> Option<Problem> {
        self.0.lock().refusal.clone()
    }

    fn take(&self, length: usize, room: impl FnOnce() -> HeldRoom) -> Option<Problem> {
        let mut state = self.0.lock();
        if std::mem::take(&mut state.has_passed_on) {
            (state.bytes, state.since) = (state.last, None);
        }
        (state.bytes, state.last) = (state.bytes + length, length);
        let bytes = state.bytes;
        let begun = *state.since.get_or_insert_with(Instant::now);
        let (code, detail) = if bytes > limits::S3_HELD_BYTES_MAX {
            let most = limits::S3_CHUNK_BYTES_MAX >> 20;
            let detail = format!("a chunk of the body has more than {most} MiB; send shorter ones");
            (ErrorCode::BodyTooLarge, detail)
        } else if bytes > limits::SHORT_BODY_BYTES && begun.elapsed() > limits::WHOLE_BODY_TIME_MAX {
            let seconds = limits::WHOLE_BODY_TIME_MAX.as_secs();
            (ErrorCode::BodyTooSlow, format!("a chunk of the body took longer than {seconds} s"))
        } else if state.room.get_or_insert_with(room).resize(bytes) {
            return None;
        } else {
            let detail = "the service is reading too many long chunks at once; send the request again";
            (ErrorCode::Throttled, detail.to_owned())
        };
        let problem = Problem::new(code, detail);
        state.room = None;
        if !state.is_decided {
            state.refusal = Some(problem.clone());
        }
        Some(problem)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::body_room::BodyRoom;

    const UNIT: usize = limits::SHORT_BODY_BYTES;

    fn code(problem: Option<Problem>) -> Option<ErrorCode> {
        problem.map(|problem| problem.code)
    }

    #[test]
    fn held_bytes_have_limits_and_bytes_passed_on_have_none() {
        static ROOM: BodyRoom = BodyRoom::new(8);
        let room = || ROOM.hold("a".parse().ok());
        let held = HeldBody::default();
        for _ in 0..1_000 {
            assert!(held.take(UNIT, room).is_none());
            held.passed_on();
        }
        for _ in 0..4 {
            assert!(held.take(UNIT, room).is_none());
        }
        let other = HeldBody::default();
        assert!(other.take(UNIT, room).is_none(), "short");
        assert_eq!(code(other.take(UNIT, room)), Some(ErrorCode::Throttled));
        assert_eq!(code(other.refusal()), Some(ErrorCode::Throttled));
        held.passed_on();
        assert!(held.take(1, room).is_none() && HeldBody::default().take(3 * UNIT, room).is_none());
        assert_eq!(code(held.take(limits::S3_HELD_BYTES_MAX, room)), Some(ErrorCode::BodyTooLarge));
        assert!(HeldBody::default().take(5 * UNIT, room).is_none(), "nothing is held for a body that ended");
    }

    #[test]
    fn the_longest_chunk_is_taken_with_its_head_and_the_end_of_the_one_before() {
        static ROOM: BodyRoom = BodyRoom::new(4_096);
        let (held, room) = (HeldBody::default(), || ROOM.hold(None));
        let take = |bytes: usize| held.take(bytes + limits::HELD_PART_BYTES, room);
        assert!(take(256 << 10).is_none());
        held.passed_on();
        assert!(take(9).is_none());
        for _ in 0..limits::S3_CHUNK_BYTES_MAX / (16 << 10) {
            assert!(take(16 << 10).is_none());
        }
    }

    #[test]
    fn what_follows_a_decided_answer_changes_it_no_more() {
        static ROOM: BodyRoom = BodyRoom::new(4);
        let held = HeldBody::default();
        held.decided();
        assert!(held.take(10 * UNIT, || ROOM.hold(None)).is_some() && held.refusal().is_none());
    }

    #[tokio::test]
    async fn parts_count_for_what_they_cost_and_the_rest_is_read_on() {
        const PARTS: usize = 1_000_000;
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let parts = stream::repeat_with(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, axum::Error>(axum::body::Bytes::from_static(b"x"))
        });
        let held = HeldBody::default();
        let body = held.measure(Body::from_stream(parts.take(PARTS)), CallRecord::default());
        let taken = body.into_data_stream().filter(|part| std::future::ready(part.is_ok())).count().await;
        assert!(taken < PARTS * 6 / 10, "{taken}");
        assert_eq!(code(held.refusal()), Some(ErrorCode::BodyTooLarge));
        held.drain().await;
        assert_eq!(asked.load(Ordering::Relaxed), PARTS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_chunk_that_trickles_ends() {
        static ROOM: BodyRoom = BodyRoom::new(16);
        let (held, room) = (HeldBody::default(), || ROOM.hold(None));
        let later = limits::WHOLE_BODY_TIME_MAX + std::time::Duration::from_secs(1);
        assert!(held.take(2 * UNIT, room).is_none());
        tokio::time::sleep(later).await;
        held.passed_on();
        assert!(held.take(2 * UNIT, room).is_none(), "another chunk");
        tokio::time::sleep(later).await;
        assert_eq!(code(held.take(1, room)), Some(ErrorCode::BodyTooSlow));
    }
}
