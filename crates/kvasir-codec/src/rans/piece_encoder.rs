//! Writing pieces: streams of at most 128 coefficients × 256 tokens with their lengths and states, or the raw fallback.
//!
//! `u16 n_active · u16 words[streams] · fill to 4 · u32 state[streams][lanes] · u16 words[]`, `lanes = min(32, tokens)`.

use super::{
    bank::TableBank,
    blocks::Blocks,
    coding::Coding,
    constants::{LANES, STREAM_COEFFICIENTS_MAX, STREAM_WORDS_MAX, VALUE_MAX},
    error::PieceError,
    level_rows::{FinestValues, LevelRows, RowBits},
    plan::PiecePlan,
    raw,
    stream::{
        encode::{BlockJob, EncodeJob, EncodedStream, ReverseWords, Uncodable, encode_stream},
        lane_count, stream_count, stream_range,
    },
};
use crate::arch::{ENCODED_AT_ONCE, StreamEncoder};

/// Encodes pieces. Every encoder gives the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceEncoder {
    streams: StreamEncoder,
}

impl Default for PieceEncoder {
    fn default() -> Self {
        Self::best()
    }
}

impl PieceEncoder {
    /// The fastest encoder of this CPU.
    pub fn best() -> Self {
        Self { streams: StreamEncoder::best() }
    }

    /// The portable encoder, which the others are compared with.
    pub fn scalar() -> Self {
        Self { streams: StreamEncoder::scalar() }
    }

    /// Every encoder that this CPU can run, the portable one first.
    pub fn available() -> Vec<Self> {
        StreamEncoder::available().into_iter().map(|streams| Self { streams }).collect()
    }

    /// `scalar` or `avx512`: for reports and metrics.
    pub fn name(&self) -> &'static str {
        self.streams.name()
    }

    /// Whether it is faster from blocks than from rows.
    pub(crate) fn takes_blocks(&self) -> bool {
        self.streams.takes_blocks()
    }

    /// Appends the bytes of a piece to `out`; appends nothing if every value is as predicted, which is an
    /// *absent* piece.
    ///
    /// `values[c * plan.tokens + t]` is the value of coefficient `c` at token `t` *at this piece's level*;
    /// for [`Coding::Trit`] the digit is derived from it, and the decoder must know its
    /// [`coarsen`](super::coarsen)ed value. The piece is raw if a value cannot be coded or raw is smaller.
    ///
    /// # Errors
    /// A plan that does not fit the bank or the values, or a value beyond [`VALUE_MAX`]. `out` is then
    /// unchanged.
    pub fn encode_piece(
        &self,
        bank: &TableBank,
        plan: &PiecePlan<'_>,
        values: &[i32],
        out: &mut Vec<u8>,
    ) -> Result<(), PieceError> {
        plan.check(bank, values.len())?;
        self.encode_rows(
            bank,
            plan,
            &LevelRows { fine: FinestValues::Wide(values), tokens: plan.tokens, listed: None, up: 0 },
            out,
        )
    }

    /// As [`encode_piece`](Self::encode_piece), for values made row by row when needed: a piece exceeds a
    /// core's nearest caches many times, a stream does not.
    pub(crate) fn encode_rows(
        &self,
        bank: &TableBank,
        plan: &PiecePlan<'_>,
        rows: &LevelRows<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), PieceError> {
        plan.check(bank, plan.value_count())?;
        let active = self.active_count(plan, rows)?;
        if active == 0 {
            return Ok(());
        }
        match self.encode_streams(bank, plan, active, rows)? {
            Some(streams) => write_streams(plan, active, &streams, out),
            None => {
                let values = self.all(plan, active, rows)?;
                raw::encode(plan, &values, out);
            }
        }
        Ok(())
    }

    /// `None` if a value cannot be coded, a stream's length does not fit its field, or raw values are
    /// smaller.
    fn encode_streams(
        &self,
        bank: &TableBank,
        plan: &PiecePlan<'_>,
        active: usize,
        rows: &LevelRows<'_>,
    ) -> Result<Option<Vec<EncodedStream>>, PieceError> {
        let mut made = Blocks::default();
        let blocks = match rows.fine {
            _ if !self.streams.takes_blocks() => None,
            FinestValues::Narrow(blocks) => Some((blocks, rows.listed, rows.up)),
            FinestValues::Wide(_) => self.fill(plan, active, rows, &mut made)?.then_some((&made, None, 0)),
        };
        let streams = match blocks {
            Some(blocks) => self.encode_blocks(bank, plan, active, blocks),
            None => self.encode_tiles(bank, plan, active, rows)?,
        };
        let Some(streams) = streams.filter(|all| all.iter().all(|s| s.words.len() <= STREAM_WORDS_MAX))
        else {
            return Ok(None);
        };
        // the start of a row bounds its bits from below, which usually suffices
        let coded = coded_bytes(plan, &streams);
        let is_smaller = self.is_raw_as_long(coded, plan, active, rows, LANES)?
            || self.is_raw_as_long(coded, plan, active, rows, plan.tokens)?;
        Ok(is_smaller.then_some(streams))
    }

    /// Two streams at a time.
    fn encode_blocks(
        &self,
        bank: &TableBank,
        plan: &PiecePlan<'_>,
        active: usize,
        (blocks, listed, up): (&Blocks, Option<&[usize]>, u32),
    ) -> Option<Vec<EncodedStream>> {
        let mut words = [(); ENCODED_AT_ONCE].map(|()| ReverseWords::new());
        let mut streams = Vec::with_capacity(stream_count(active));
        let all: Vec<usize>;
        let rows = match listed {
            Some(listed) => listed,
            None => {
                all = (0..active).collect();
                &all
            }
        };
        let job = |index| {
            let range = stream_range(active, index);
            let codings = &plan.coefficients[range.clone()];
            BlockJob { bank, codings, rows: &rows[range], blocks, up }
        };
        let jobs: Vec<_> = (0..stream_count(active)).map(job).collect();
        for jobs in jobs.chunks(ENCODED_AT_ONCE) {
            streams.extend(self.streams.encode_blocks(jobs, &mut words)?.ok()?);
        }
        Some(streams)
    }

    /// One stream at a time, from a tile of its values.
    fn encode_tiles(
        &self,
        bank: &TableBank,
        plan: &PiecePlan<'_>,
        active: usize,
        rows: &LevelRows<'_>,
    ) -> Result<Option<Vec<EncodedStream>>, PieceError> {
        let mut words = ReverseWords::new();
        let mut tile = vec![0; active.min(STREAM_COEFFICIENTS_MAX) * plan.tokens];
        let mut streams = Vec::with_capacity(stream_count(active));
        for range in (0..stream_count(active)).map(|index| stream_range(active, index)) {
            let values = &mut tile[..range.len() * plan.tokens];
            for (c, row) in range.clone().zip(values.chunks_exact_mut(plan.tokens)) {
                self.row(plan, rows, c, row)?;
            }
            let codings = &plan.coefficients[range];
            match encode_stream(EncodeJob { bank, codings, tokens: plan.tokens, values }, &mut words) {
                Ok(stream) => streams.push(stream),
                Err(Uncodable) => return Ok(None),
            }
        }
        Ok(Some(streams))
    }

    /// Blocks of the first `active` coefficients at the piece's level; `false` if a value is too large for
    /// them.
    fn fill(
        &self,
        plan: &PiecePlan<'_>,
        active: usize,
        rows: &LevelRows<'_>,
        blocks: &mut Blocks,
    ) -> Result<bool, PieceError> {
        blocks.reset(active, plan.tokens);
        let mut row = vec![0; plan.tokens];
        let mut fits = true;
        for c in 0..active {
            self.row(plan, rows, c, &mut row)?;
            fits &= blocks.fill_row(c, &row);
        }
        Ok(fits)
    }

    /// Whether a raw piece of the first `active` coefficients has at least as many bytes, by their first `tokens` values.
    fn is_raw_as_long(
        &self,
        bytes: usize,
        plan: &PiecePlan<'_>,
        active: usize,
        rows: &LevelRows<'_>,
        tokens: usize,
    ) -> Result<bool, PieceError> {
        let mut row = vec![0; tokens.min(plan.tokens)];
        let mut width_sum = 0;
        for c in 0..active {
            if bytes <= raw::bytes(plan, active, width_sum) {
                return Ok(true);
            }
            width_sum += self.row(plan, rows, c, &mut row)?.width();
        }
        Ok(bytes <= raw::bytes(plan, active, width_sum))
    }

    /// The first values of a coefficient, as many as `out` holds, if all are in range.
    fn row(
        &self,
        plan: &PiecePlan<'_>,
        rows: &LevelRows<'_>,
        coefficient: usize,
        out: &mut [i32],
    ) -> Result<RowBits, PieceError> {
        let refines = matches!(plan.coefficients[coefficient], Coding::Trit { .. });
        let bits = self.streams.row(rows, coefficient, refines, out);
        let beyond =
            |value: &i32| bits.values >> raw::WIDTH_MAX != 0 && value.unsigned_abs() > VALUE_MAX as u32;
        match out.iter().position(beyond) {
            Some(token) => Err(PieceError::ValueRange { coefficient, token, value: out[token] }),
            None => Ok(bits),
        }
    }

    /// The values of the first `active` coefficients.
    fn all(&self, plan: &PiecePlan<'_>, active: usize, rows: &LevelRows<'_>) -> Result<Vec<i32>, PieceError> {
        let mut values = vec![0; active * plan.tokens];
        for (c, row) in values.chunks_exact_mut(plan.tokens).enumerate() {
            self.row(plan, rows, c, row)?;
        }
        Ok(values)
    }

    /// Coefficients up to the last one that this piece changes.
    fn active_count(&self, plan: &PiecePlan<'_>, rows: &LevelRows<'_>) -> Result<usize, PieceError> {
        let mut row = vec![0; plan.tokens];
        for c in (0..plan.coefficients.len()).rev() {
            let beginning = LANES.min(plan.tokens);
            // which usually suffices
            if self.row(plan, rows, c, &mut row[..beginning])?.width() > 0
                || self.row(plan, rows, c, &mut row)?.width() > 0
            {
                return Ok(c + 1);
            }
        }
        Ok(0)
    }
}

/// Encodes a piece with [`PieceEncoder::best`].
///
/// # Errors
/// As [`PieceEncoder::encode_piece`].
pub fn encode_piece(
    bank: &TableBank,
    plan: &PiecePlan<'_>,
    values: &[i32],
    out: &mut Vec<u8>,
) -> Result<(), PieceError> {
    PieceEncoder::best().encode_piece(bank, plan, values, out)
}

/// Offset of the states in a piece of `streams` streams.
pub(super) fn states_offset(streams: usize) -> usize {
    (2 + 2 * streams).next_multiple_of(4)
}

fn coded_bytes(plan: &PiecePlan<'_>, streams: &[EncodedStream]) -> usize {
    let words: usize = streams.iter().map(|stream| stream.words.len()).sum();
    states_offset(streams.len()) + streams.len() * lane_count(plan.tokens) * 4 + words * 2
}

fn write_streams(plan: &PiecePlan<'_>, active: usize, streams: &[EncodedStream], out: &mut Vec<u8>) {
    let start = out.len();
    out.reserve(coded_bytes(plan, streams));
    out.extend_from_slice(&(active as u16).to_le_bytes()); // at most COEFFICIENTS_MAX
    for stream in streams {
        out.extend_from_slice(&(stream.words.len() as u16).to_le_bytes()); // at most STREAM_WORDS_MAX
    }
    out.resize(start + states_offset(streams.len()), 0);
    for state in streams.iter().flat_map(|stream| &stream.states[..lane_count(plan.tokens)]) {
        out.extend_from_slice(&state.to_le_bytes());
    }
    for stream in streams {
        let at = out.len();
        out.resize(at + 2 * stream.words.len(), 0);
        let bytes = out[at..].as_chunks_mut().0.iter_mut();
        bytes.zip(&stream.words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    }
}
