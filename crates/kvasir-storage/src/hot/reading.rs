//! A read through the tier, frame by frame.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use bytes::Bytes;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use kvasir_types::Medium;

use crate::StorageError;

use super::{
    HotObject,
    flight::{Arrival, Outcome},
    tier::{Fetch, Found, HotContext, HotTier, Wanted},
};

/// What a reader gets for a frame.
enum Brought {
    Whole(Bytes),
    /// These frames are not to be had as such.
    Not(Range<u32>),
}

/// A read in progress.
struct Reading {
    tier: Arc<HotTier>,
    object: Arc<HotObject>,
    range: Range<u64>,
    context: HotContext,
    fetch: Fetch,
    used: bool,
    /// Frames still to be given.
    frames: Range<u32>,
    /// Frames that are on their way on this reader's account, in order.
    coming: VecDeque<(u32, Arrival)>,
    /// Bytes that the store sends and nobody keeps, because there is no memory for their frames.
    passing: Option<BoxStream<'static, Result<Bytes, StorageError>>>,
}

/// The bytes of a range; `used`: somebody waits for them.
pub(super) fn stream(
    tier: &Arc<HotTier>,
    object: &Arc<HotObject>,
    range: Range<u64>,
    context: HotContext,
    fetch: Fetch,
    used: bool,
) -> BoxStream<'static, Result<Bytes, StorageError>> {
    let at = context.at.unwrap_or_else(|| tier.now());
    let reading = Reading {
        tier: Arc::clone(tier),
        frames: object.frames_of(&range),
        object: Arc::clone(object),
        range,
        context: HotContext { at: Some(at), ..context },
        fetch,
        used,
        coming: VecDeque::new(),
        passing: None,
    };
    // After an error there is nothing more: the reader would take a hole for bytes.
    stream::try_unfold(
        reading,
        |mut reading| async move { Ok(reading.next().await?.map(|part| (part, reading))) },
    )
    .boxed()
}

impl Reading {
    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, StorageError> {
        loop {
            if let Some(passing) = &mut self.passing {
                match passing.try_next().await? {
                    Some(part) => {
                        let bytes = part.len() as u64;
                        self.tier.observer.served(Medium::Object, self.context.class, bytes);
                        return Ok(Some(part));
                    }
                    None => self.passing = None,
                }
            }
            let Some(frame) = self.frames.next() else { return Ok(None) };
            let brought = match self.frame(frame).await {
                // Read once more before it is called corrupt: the store, or what is between, may have erred.
                Err(error) if matches!(*error, StorageError::Corrupt { .. }) => {
                    self.coming.clear();
                    self.frame(frame).await
                }
                brought => brought,
            };
            match brought.map_err(|error| error.shared())? {
                Brought::Whole(whole) => {
                    let within = self.wanted_of(self.object.range(frame));
                    let start = self.object.range(frame).start;
                    let within = (within.start - start) as usize..(within.end - start) as usize;
                    return Ok(Some(whole.slice(within)));
                }
                // Nobody waits for what is read ahead.
                Brought::Not(_) if !self.used => return Ok(None),
                Brought::Not(frames) => {
                    self.frames.start = frames.end;
                    let last = frames.end.saturating_sub(1);
                    let range = self.object.range(frames.start).start..self.object.range(last).end;
                    self.passing = Some((self.fetch)(self.wanted_of(range)).await?);
                }
            }
        }
    }

    /// The part of a range of the object that the reader wants.
    fn wanted_of(&self, range: Range<u64>) -> Range<u64> {
        self.range.start.max(range.start)..self.range.end.min(range.end)
    }

    async fn frame(&mut self, frame: u32) -> Result<Brought, Arc<StorageError>> {
        let (tier, context, used) = (Arc::clone(&self.tier), self.context, self.used);
        let last = self.frames.end.saturating_sub(1);
        let (outcome, joined) = match self.coming.pop_front().filter(|(next, _)| *next == frame) {
            Some((_, arrival)) => (landed(arrival).await, false),
            None => {
                match tier.find(&Wanted { object: &self.object, frame, last, context, used }, &self.fetch) {
                    Found::Here(bytes) => (Ok((bytes, Medium::Cpu)), false),
                    Found::Joined(arrival) => (landed(arrival).await, true),
                    Found::Started(arrivals) => {
                        self.coming = arrivals.into();
                        let Some((_, arrival)) = self.coming.pop_front() else {
                            return Err(Arc::new(StorageError::broken_off("no flight was started")));
                        };
                        (landed(arrival).await, false)
                    }
                    Found::NoMemory(end) => return Ok(Brought::Not(frame..end)),
                }
            }
        };
        let (bytes, from) = outcome?;
        let range = self.object.range(frame);
        if bytes.len() as u64 != range.end - range.start {
            // Brought by a reader who took another object's head for this one's.
            return Err(Arc::new(self.object.corrupt(frame)));
        }
        if used {
            if joined {
                tier.used(&self.object, frame, context);
            }
            tier.observer.served(from, context.class, bytes.len() as u64);
        }
        Ok(Brought::Whole(bytes))
    }
}

async fn landed(arrival: Arrival) -> Outcome {
    let died = |_| Err(Arc::new(StorageError::broken_off("the task that read it ended")));
    arrival.await.unwrap_or_else(died)
}
