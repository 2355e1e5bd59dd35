//! A read through the tier, frame by frame.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use bytes::Bytes;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use kvasir_store::StoreError;
use kvasir_types::Medium;

use crate::error::ChunkError;

use super::{
    context::{HotContext, RangeReader},
    frame_lookup::{FrameLocation, FrameRequest},
    frames::HotObject,
    pending::{FrameReceiver, received},
    tier::HotTier,
};

/// The result of a frame for a reader.
enum FrameRead {
    Whole(Bytes),
    /// There is no memory for these frames: their bytes are streamed from the store.
    Bypass(Range<u32>),
}

/// A read in progress.
struct ObjectReading {
    tier: Arc<HotTier>,
    object: Arc<HotObject>,
    range: Range<u64>,
    context: HotContext,
    source: RangeReader,
    used: bool,
    /// Frames not yet delivered.
    frames: Range<u32>,
    /// Frames in flight for this reader, in order.
    pending: VecDeque<(u32, FrameReceiver)>,
    /// Bytes streamed from the store without caching, because there is no memory for their frames.
    bypass: Option<BoxStream<'static, Result<Bytes, ChunkError>>>,
}

impl HotTier {
    /// The bytes of `range` of an object, from the fastest medium. Missing frames are read from `source`,
    /// once for all concurrent readers, and kept if the policy admits them.
    pub fn read(
        self: &Arc<Self>,
        object: &Arc<HotObject>,
        range: Range<u64>,
        context: HotContext,
        source: RangeReader,
    ) -> BoxStream<'static, Result<Bytes, ChunkError>> {
        stream(self, object, range, context, source, true)
    }

    /// Prefetches objects likely to be read next. Nothing waits for it; failures are reported to later
    /// readers.
    pub async fn read_ahead(
        self: &Arc<Self>,
        object: &Arc<HotObject>,
        range: Range<u64>,
        context: HotContext,
        source: RangeReader,
    ) {
        let mut parts = stream(self, object, range, context, source, false);
        while let Some(Ok(_)) = parts.next().await {}
    }
}

/// The bytes of a range; `used`: a reader waits for them.
fn stream(
    tier: &Arc<HotTier>,
    object: &Arc<HotObject>,
    range: Range<u64>,
    context: HotContext,
    source: RangeReader,
    used: bool,
) -> BoxStream<'static, Result<Bytes, ChunkError>> {
    let at = context.at.unwrap_or_else(|| tier.now());
    let reading = ObjectReading {
        tier: Arc::clone(tier),
        frames: object.frames_of(&range),
        object: Arc::clone(object),
        range,
        context: HotContext { at: Some(at), ..context },
        source,
        used,
        pending: VecDeque::new(),
        bypass: None,
    };
    // Stop after an error: the reader would otherwise see a gap as data.
    stream::try_unfold(
        reading,
        |mut reading| async move { Ok(reading.next().await?.map(|part| (part, reading))) },
    )
    .boxed()
}

impl ObjectReading {
    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ChunkError> {
        loop {
            if let Some(bypass) = &mut self.bypass {
                match bypass.try_next().await? {
                    Some(part) => {
                        let bytes = part.len() as u64;
                        self.tier.observer.served(Medium::Object, self.context.class, bytes);
                        return Ok(Some(part));
                    }
                    None => self.bypass = None,
                }
            }
            let Some(frame) = self.frames.next() else { return Ok(None) };
            let read = match self.frame(frame).await {
                // Read once more before reporting corruption: the transfer may have been at fault.
                Err(error) if matches!(*error, ChunkError::Corrupt { .. }) => {
                    self.pending.clear();
                    self.frame(frame).await
                }
                read => read,
            };
            match read.map_err(|error| error.shared())? {
                FrameRead::Whole(whole) => {
                    let within = self.wanted_of(self.object.range(frame));
                    let start = self.object.range(frame).start;
                    let within = (within.start - start) as usize..(within.end - start) as usize;
                    return Ok(Some(whole.slice(within)));
                }
                // Nothing waits for a prefetch.
                FrameRead::Bypass(_) if !self.used => return Ok(None),
                FrameRead::Bypass(frames) => {
                    self.frames.start = frames.end;
                    let last = frames.end.saturating_sub(1);
                    let range = self.object.range(frames.start).start..self.object.range(last).end;
                    self.bypass = Some((self.source)(self.wanted_of(range)).await?);
                }
            }
        }
    }

    /// The part of a range of the object that the reader requested.
    fn wanted_of(&self, range: Range<u64>) -> Range<u64> {
        self.range.start.max(range.start)..self.range.end.min(range.end)
    }

    async fn frame(&mut self, frame: u32) -> Result<FrameRead, Arc<ChunkError>> {
        let (tier, context, used) = (Arc::clone(&self.tier), self.context, self.used);
        let last = self.frames.end.saturating_sub(1);
        let (result, joined) = match self.pending.pop_front().filter(|(next, _)| *next == frame) {
            Some((_, receiver)) => (received(receiver).await, false),
            None => {
                let request = FrameRequest { object: &self.object, frame, last, context, used };
                match tier.find(&request, &self.source) {
                    FrameLocation::Resident(bytes) => (Ok((bytes, Medium::Cpu)), false),
                    FrameLocation::Joined(receiver) => (received(receiver).await, true),
                    FrameLocation::Started(receivers) => {
                        self.pending = receivers.into();
                        let Some((_, receiver)) = self.pending.pop_front() else {
                            return Err(Arc::new(
                                StoreError::own("reading an object", "no fetch was started").into(),
                            ));
                        };
                        (received(receiver).await, false)
                    }
                    FrameLocation::NoMemory(end) => return Ok(FrameRead::Bypass(frame..end)),
                }
            }
        };
        let (bytes, from) = result?;
        let range = self.object.range(frame);
        if bytes.len() as u64 != range.end - range.start {
            // Fetched by a reader that used another object's head for this one's.
            return Err(Arc::new(self.object.corrupt(frame)));
        }
        if used {
            if joined {
                tier.record_use(&self.object, frame, context);
            }
            tier.observer.served(from, context.class, bytes.len() as u64);
        }
        Ok(FrameRead::Whole(bytes))
    }
}
