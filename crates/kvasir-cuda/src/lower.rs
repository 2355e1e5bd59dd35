//! Converts pieces to work for warps: streams of all levels of a scope and span, fused where their cuts
//! agree.

use std::ops::Range;

use kvasir_codec::rans::{Coding, PieceError, PieceParts};
use kvasir_kernels::{
    CODING_NONE, CODING_STAGE, CODING_TRIT, NONE, STATUS_DIGIT, STATUS_FINAL, STATUS_OK, STATUS_STATE,
    STATUS_UNDERRUN, Status, Stream, TASK_RAW, TASK_REFINES, Task,
};

/// Most levels that one kernel decodes together.
pub(crate) const FUSED_LEVELS_MAX: usize = 4;
/// Most coefficients of a task: a tile of shared memory holds no more.
pub(crate) const TASK_COEFFICIENTS_MAX: usize = 128;

/// How all levels code a scope's coefficients: coding words for the device, plans for the host.
#[derive(Debug, Clone)]
pub(crate) struct ScopeCodings {
    pub(crate) rank: usize,
    /// `[level][coefficient]`.
    pub(crate) words: Vec<u32>,
    /// Coefficients of each level's plan, in stream order.
    pub(crate) plans: Vec<Vec<usize>>,
}

impl ScopeCodings {
    /// From each level's plan: coefficient indices and codings.
    pub(crate) fn new<'a>(rank: usize, levels: impl Iterator<Item = (&'a [usize], &'a [Coding])>) -> Self {
        let (mut words, mut plans) = (Vec::new(), Vec::new());
        for (coefficients, codings) in levels {
            let mut row = vec![CODING_NONE; rank];
            for (&coefficient, coding) in coefficients.iter().zip(codings) {
                row[coefficient] = coding_word(*coding);
            }
            words.extend(row);
            plans.push(coefficients.to_vec());
        }
        Self { rank, words, plans }
    }
}

pub(crate) fn coding_word(coding: Coding) -> u32 {
    match coding {
        Coding::Stage { table, trits, trit_table } => {
            CODING_STAGE | u32::from(trits) << 4 | u32::from(table) << 8 | u32::from(trit_table) << 16
        }
        Coding::Trit { table } => CODING_TRIT | u32::from(table) << 16,
    }
}

/// One piece of a scope and span: its position in the batch, and its outline.
#[derive(Debug, Clone)]
pub(crate) struct PlacedPiece {
    pub(crate) section: usize,
    /// Offset in the batch's compressed bytes, a multiple of 4.
    pub(crate) offset: u32,
    pub(crate) parts: PieceParts,
}

/// Identifies a stream in an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamName {
    pub(crate) section: usize,
    pub(crate) span: usize,
    /// Offset of the piece in the batch.
    pub(crate) piece: u32,
    /// Index within the piece.
    pub(crate) stream: usize,
}

/// Tasks with their streams, level by level; indices are relative to these lists until they join a batch.
#[derive(Debug, Default)]
pub(crate) struct LoweredTasks {
    pub(crate) tasks: Vec<Task>,
    pub(crate) streams: Vec<Stream>,
    /// One per stream; `None` if the task has no stream at that level.
    pub(crate) names: Vec<Option<StreamName>>,
}

/// The tasks of one scope and span.
#[derive(Debug)]
pub(crate) enum Lowered {
    /// All levels in one pass.
    Fused(LoweredTasks),
    /// One pass per level, through scratch: the levels' cuts differ, there are too many levels, or a piece is
    /// raw.
    Staged(Vec<LoweredTasks>),
}

/// Cuts a scope and span into tasks. `pieces` has one entry a level wanted, coarsest first.
pub(crate) fn lower(codings: &ScopeCodings, span: usize, tokens: usize, pieces: &[PlacedPiece]) -> Lowered {
    let raw = pieces.iter().any(|piece| matches!(piece.parts, PieceParts::Raw { .. }));
    if pieces.len() <= FUSED_LEVELS_MAX
        && !raw
        && let Some(cuts) = common_cuts(codings, pieces)
    {
        let mut work = LoweredTasks::default();
        for cut in cuts {
            work.task(codings, span, tokens, cut, pieces, 0);
        }
        return Lowered::Fused(work);
    }
    let stage = |(level, piece): (usize, &PlacedPiece)| {
        let mut work = LoweredTasks::default();
        if let PieceParts::Raw { active, widths, bits } = &piece.parts {
            work.raw_task(codings, span, tokens, level, piece, (*active, widths.start, bits.start));
            return work;
        }
        let pieces = std::slice::from_ref(piece);
        for cut in stream_cuts(&codings.plans[level], codings.rank, &piece.parts) {
            work.task(codings, span, tokens, cut, pieces, level);
        }
        work
    };
    Lowered::Staged(pieces.iter().enumerate().map(stage).collect())
}

/// Coefficient ranges of a level's streams, and the ranges between and after them, in order and without gaps.
fn stream_cuts(plan: &[usize], rank: usize, parts: &PieceParts) -> Vec<Range<usize>> {
    let mut cuts = Vec::new();
    let mut at = 0;
    for range in stream_ranges(plan, parts) {
        // Coefficients between two streams that a level does not code join the first stream.
        push_split(&mut cuts, at, range.start);
        cuts.push(range.clone());
        at = range.end;
    }
    push_split(&mut cuts, at, rank);
    cuts
}

fn push_split(cuts: &mut Vec<Range<usize>>, from: usize, to: usize) {
    let starts = (from..to).step_by(TASK_COEFFICIENTS_MAX);
    cuts.extend(starts.map(|start| start..(start + TASK_COEFFICIENTS_MAX).min(to)));
}

/// The coefficient ranges that streams cover, from the first to the last coefficient of each.
fn stream_ranges(plan: &[usize], parts: &PieceParts) -> Vec<Range<usize>> {
    let PieceParts::Coded(streams) = parts else { return Vec::new() };
    let range = |stream: &kvasir_codec::rans::StreamParts| {
        let range = &stream.coefficients;
        plan[range.start]..plan[range.end - 1] + 1
    };
    streams.iter().map(range).collect()
}

/// Cuts that suit all levels: no stream of any level crosses one, and none has two streams of a level.
fn common_cuts(codings: &ScopeCodings, pieces: &[PlacedPiece]) -> Option<Vec<Range<usize>>> {
    let ranges: Vec<_> =
        pieces.iter().zip(&codings.plans).map(|(piece, plan)| stream_ranges(plan, &piece.parts)).collect();
    let most = ranges.iter().max_by_key(|ranges| ranges.len())?;
    if most.is_empty() {
        return Some(stream_cuts(&[], codings.rank, &PieceParts::Absent));
    }
    // Between two streams of the finest division, a cut may be anywhere; it is placed directly before the
    // second one.
    let mut cuts = Vec::with_capacity(most.len());
    for (index, range) in most.iter().enumerate() {
        let start = if index == 0 { 0 } else { range.start };
        let next = most.get(index + 1).map(|next| next.start);
        let reach =
            ranges.iter().flatten().filter(|r| r.start >= start).filter(|r| next.is_none_or(|n| r.start < n));
        let end = next.unwrap_or_else(|| reach.map(|r| r.end).max().unwrap_or(range.end));
        cuts.push(start..end);
    }
    let fits = |r: &Range<usize>| cuts.iter().any(|cut| cut.start <= r.start && r.end <= cut.end);
    let alone = |ranges: &Vec<Range<usize>>| {
        cuts.iter().all(|cut| ranges.iter().filter(|r| cut.contains(&r.start)).count() <= 1)
    };
    if !ranges.iter().flatten().all(fits) || !ranges.iter().all(alone) {
        return None;
    }
    let end = cuts.last().map_or(0, |cut| cut.end);
    push_split(&mut cuts, end, codings.rank);
    Some(cuts)
}

impl LoweredTasks {
    fn task(
        &mut self,
        codings: &ScopeCodings,
        span: usize,
        tokens: usize,
        cut: Range<usize>,
        pieces: &[PlacedPiece],
        first_level: usize,
    ) {
        self.tasks.push(Task {
            first: cut.start as u32,
            count: cut.len() as u32,
            tokens: tokens as u32,
            streams: self.streams.len() as u32,
            codings: (first_level * codings.rank + cut.start) as u32,
            coding_stride: codings.rank as u32,
            values: (cut.start * tokens) as u32,
            flags: if first_level == 0 { 0 } else { TASK_REFINES },
            placement: 0,
            steps: cut.start as u32,
        });
        for (level, piece) in pieces.iter().enumerate() {
            let plan = &codings.plans[first_level + level];
            let ranges = stream_ranges(plan, &piece.parts);
            let index = ranges.iter().position(|range| cut.contains(&range.start));
            let (stream, name) = match (&piece.parts, index) {
                (PieceParts::Coded(streams), Some(index)) => {
                    let parts = &streams[index];
                    let stream = Stream {
                        states: piece.offset + parts.states.start as u32,
                        words: piece.offset + parts.words.start as u32,
                        word_count: (parts.words.len() / 2) as u32,
                        end: (ranges[index].end - cut.start) as u32,
                    };
                    let name =
                        StreamName { section: piece.section, span, piece: piece.offset, stream: index };
                    (stream, Some(name))
                }
                _ => (Stream { states: NONE, ..Stream::default() }, None),
            };
            self.streams.push(stream);
            self.names.push(name);
        }
    }

    fn raw_task(
        &mut self,
        codings: &ScopeCodings,
        span: usize,
        tokens: usize,
        level: usize,
        piece: &PlacedPiece,
        (active, widths, bits): (usize, usize, usize),
    ) {
        self.tasks.push(Task {
            first: 0,
            count: codings.rank as u32,
            tokens: tokens as u32,
            streams: self.streams.len() as u32,
            codings: (level * codings.rank) as u32,
            coding_stride: codings.rank as u32,
            values: 0,
            flags: TASK_RAW | if level == 0 { 0 } else { TASK_REFINES },
            placement: 0,
            steps: 0,
        });
        self.streams.push(Stream {
            states: piece.offset + widths as u32,
            words: piece.offset + bits as u32,
            word_count: 0,
            end: active as u32,
        });
        self.names.push(Some(StreamName { section: piece.section, span, piece: piece.offset, stream: 0 }));
    }
}

/// The codec's error for a status word; `piece` gives the bytes of the stream's piece. `None` if no kernel wrote a status.
pub(crate) fn piece_error<'a>(
    status: Status,
    stream: Stream,
    name: StreamName,
    piece: impl FnOnce() -> &'a [u8],
) -> Option<Result<(), PieceError>> {
    let index = name.stream;
    Some(match status.code {
        STATUS_OK => Ok(()),
        STATUS_STATE => {
            let offset = (stream.states + 4 * status.detail - name.piece) as usize;
            let state =
                piece().get(offset..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_le_bytes(*b));
            Err(PieceError::State { offset, state })
        }
        STATUS_UNDERRUN => Err(PieceError::Underrun { stream: index, words: status.detail as usize }),
        STATUS_FINAL => {
            let (left, lanes) = ((status.detail >> 8) as usize, (status.detail & 0xff) as usize);
            Err(PieceError::FinalState { stream: index, left, lanes })
        }
        STATUS_DIGIT => {
            let offset = (stream.words + status.detail - name.piece) as usize;
            Err(PieceError::Field { offset, limit: 2, actual: 3 })
        }
        _ => return None,
    })
}
