//! What `s3s` holds of a body before it passes it on: a whole aws-chunk, whose length its sender chooses, or a whole body
//! of XML.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use futures::StreamExt;
use kvasir_api::{ErrorCode, Problem};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::access::CallRecord;
use crate::{
    body_room::{HeldRoom, LONG_BODIES},
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
}

impl HeldBody {
    /// The body of a call, which ends with an error at the limits.
    pub(super) fn measure(&self, body: Body, call: CallRecord) -> Body {
        if body.is_end_stream() {
            return body;
        }
        let held = self.clone();
        Body::from_stream(body.into_data_stream().map(move |part| {
            let part = part?;
            match held.take(part.len(), || LONG_BODIES.hold(call.tenant())) {
                None => Ok(part),
                Some(problem) => Err(axum::Error::new(problem.detail)),
            }
        }))
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
            let most = limits::S3_HELD_BYTES_MAX >> 20;
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
        (state.room, state.refusal) = (None, Some(problem.clone()));
        Some(problem)
    }
}

#[cfg(test)]
mod tests {
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
