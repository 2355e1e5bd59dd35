//! Reads non-contiguous parts of an object: some sections, or the pieces of a token prefix.
//!
//! A selection is a separate representation: the head, then the selected pieces in the object's order. A
//! reader with the head knows every length in it, so it is read and verified piece by piece like the object
//! itself.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use kvasir_container::Head;
use kvasir_store::layout::ChunkKey;
use kvasir_types::{Level, SPAN_TOKENS};

use super::Reads;
use crate::{
    error::ChunkError,
    hot::RequestHint,
    limits,
    object_read::{ByteRange, ObjectRead},
};

/// The selected parts; a `None` field selects everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// Sections up to this level.
    pub level: Option<Level>,
    /// Spans that contain this many of the chunk's first tokens.
    pub tokens: Option<u32>,
    /// Sections by their number in the directory.
    pub sections: Option<Vec<Range<u16>>>,
}

impl Selection {
    /// Whether it is more than a byte prefix of the object.
    pub fn is_scattered(&self) -> bool {
        self.tokens.is_some() || self.sections.is_some()
    }

    fn takes(&self, head: &Head, section: usize, span: usize) -> bool {
        let level = head.sections().get(section).map(|id| id.level);
        let is_in = |ranges: &Vec<Range<u16>>| {
            u16::try_from(section).is_ok_and(|section| ranges.iter().any(|range| range.contains(&section)))
        };
        self.level.is_none_or(|wanted| level.is_some_and(|level| level <= wanted))
            && self.tokens.is_none_or(|tokens| span < (tokens as usize).div_ceil(SPAN_TOKENS))
            && self.sections.as_ref().is_none_or(is_in)
    }

    /// The byte ranges of the object, in order and not adjacent.
    ///
    /// # Errors
    /// [`ChunkError::UnknownLevel`].
    pub fn ranges(&self, head: &Head) -> Result<Vec<Range<u64>>, ChunkError> {
        let levels = usize::from(head.header.level_count);
        if let Some(level) = self.level.filter(|level| level.index() >= levels) {
            return Err(ChunkError::UnknownLevel { level, levels });
        }
        let mut ranges: Vec<_> = std::iter::once(0..head.header.head_bytes()).collect();
        for (section, span, piece) in head.pieces() {
            if !self.takes(head, section, span) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == piece.range.start => last.end = piece.range.end,
                _ => ranges.push(piece.range),
            }
        }
        Ok(ranges)
    }
}

/// The part of a representation made of `ranges` that is within `wanted`.
fn within(ranges: &[Range<u64>], wanted: &Range<u64>) -> Vec<Range<u64>> {
    let mut at = 0;
    let cut = ranges.iter().filter_map(|range| {
        let offset = at;
        at += range.end - range.start;
        let start = wanted.start.max(offset) - offset;
        let end = wanted.end.min(at).saturating_sub(offset);
        (start < end).then(|| range.start + start..range.start + end)
    });
    cut.collect()
}

/// Requests for `ranges`: ranges with small gaps share one request, and the bytes in the gaps are dropped.
fn requests(ranges: Vec<Range<u64>>) -> Vec<Vec<Range<u64>>> {
    let mut requests: Vec<Vec<Range<u64>>> = Vec::new();
    for range in ranges {
        match requests.last_mut() {
            Some(run) if run.last().is_some_and(|l| range.start - l.end <= limits::SELECT_GAP_BYTES) => {
                run.push(range);
            }
            _ => requests.push(vec![range]),
        }
    }
    requests
}

impl Reads {
    /// Opens a read of a selection. `range` and the result's own range refer to the selection, not to the
    /// object.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`ChunkError::UnknownLevel`].
    pub async fn read_selection(
        self: &Arc<Self>,
        key: &ChunkKey,
        selection: &Selection,
        range: ByteRange,
        hint: &RequestHint,
    ) -> Result<ObjectRead, ChunkError> {
        self.refuse_removed(key).await?;
        let ranges = selection.ranges(&self.head(key).await?)?;
        let length = ranges.iter().map(|range| range.end - range.start).sum();
        let wanted = range.resolve(length).ok_or(ChunkError::Range { object_bytes: length })?;
        let (this, key, hint) = (Arc::clone(self), key.clone(), hint.clone());
        let parts = stream::iter(requests(within(&ranges, &wanted))).then(move |run| {
            let (this, key, hint) = (Arc::clone(&this), key.clone(), hint.clone());
            async move { this.read_run(&key, run, &hint).await }
        });
        Ok(ObjectRead { range: wanted, object_bytes: length, bytes: parts.try_flatten().boxed() })
    }

    /// One request, without the bytes in the gaps between its ranges.
    async fn read_run(
        self: &Arc<Self>,
        key: &ChunkKey,
        run: Vec<Range<u64>>,
        hint: &RequestHint,
    ) -> Result<BoxStream<'static, Result<Bytes, ChunkError>>, ChunkError> {
        let (start, end) = (run.first().map_or(0, |r| r.start), run.last().map_or(0, |r| r.end));
        let read = self.read_on(key, ByteRange::Bounded(start, end.saturating_sub(1)), hint).await?;
        let mut at = start;
        let cut = read.bytes.map_ok(move |part| {
            let here = at..at + part.len() as u64;
            at = here.end;
            let wanted = run.iter().filter_map(|range| {
                let (start, end) = (range.start.max(here.start), range.end.min(here.end));
                let inside = || (start - here.start) as usize..(end - here.start) as usize;
                (start < end).then(|| Ok(part.slice(inside())))
            });
            stream::iter(wanted.collect::<Vec<Result<Bytes, ChunkError>>>())
        });
        Ok(cut.try_flatten().boxed())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cutting_ranges_is_cutting_their_concatenation(
            lengths in prop::collection::vec((1u64..40, 0u64..40), 1..12), start in 0u64..400, length in 1u64..400,
        ) {
            let mut at = 0;
            let ranges: Vec<_> = lengths.iter().map(|(bytes, gap)| {
                let range = at + gap..at + gap + bytes;
                at = range.end;
                range
            }).collect();
            let all: Vec<u64> = ranges.iter().cloned().flatten().collect();
            let cut: Vec<u64> = within(&ranges, &(start..start + length)).into_iter().flatten().collect();
            let end = all.len().min((start + length) as usize);
            prop_assert_eq!(&cut[..], &all[(start as usize).min(end)..end]);
            prop_assert_eq!(requests(ranges.clone()).concat(), ranges);
        }
    }
}
