//! The scalar encoder: the decoder's steps backwards.

use super::inverted_stage::InvertedStage;
use crate::rans::{
    bank::TableBank,
    blocks::Blocks,
    coding::Coding,
    constants::{
        ESCAPE, ESCAPE_MAX, LANES, PROBABILITY_BITS, PROBABILITY_ONE, STATE_MIN, STREAM_WORDS_MAX, TRITS_MAX,
    },
    nested_index::{coarsen, digit},
    trit::TritTable,
};

/// Most words that one coefficient of one row emits: a stage word, three of an escape, the trits, for every lane.
pub(crate) const ROW_WORDS_MAX: usize = LANES * (4 + TRITS_MAX as usize);

/// A value that the stream's tables cannot express, or too many words: the piece becomes raw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Uncodable;

/// An encoded stream: the decoder's initial data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EncodedStream {
    pub(crate) states: [u32; LANES],
    pub(crate) words: Vec<u16>,
}

/// A stream to encode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EncodeJob<'a> {
    /// The tables.
    pub(crate) bank: &'a TableBank,
    /// Its coefficients.
    pub(crate) codings: &'a [Coding],
    /// Tokens per row of `values`.
    pub(crate) tokens: usize,
    /// `codings.len() × tokens` values at the piece's level.
    pub(crate) values: &'a [i32],
}

/// A stream to encode from blocks of finer values.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the portable encoder takes rows"))]
pub(crate) struct BlockJob<'a> {
    /// The tables.
    pub(crate) bank: &'a TableBank,
    /// Its coefficients.
    pub(crate) codings: &'a [Coding],
    /// Their rows.
    pub(crate) rows: &'a [usize],
    /// The source of values.
    pub(crate) blocks: &'a Blocks,
    /// Levels from the blocks' to the piece's.
    pub(crate) up: u32,
}

/// The words of a stream, written from the end towards the front. One buffer serves many streams.
#[derive(Debug)]
pub(crate) struct ReverseWords {
    pub(crate) buffer: Vec<u16>,
    /// The first word.
    pub(crate) top: usize,
}

impl ReverseWords {
    pub(crate) fn new() -> Self {
        let length = STREAM_WORDS_MAX + ROW_WORDS_MAX;
        Self { buffer: vec![0; length], top: length }
    }

    pub(crate) fn clear(&mut self) {
        self.top = self.buffer.len();
    }

    fn push(&mut self, word: u16) {
        self.top -= 1; // `ready` leaves room
        self.buffer[self.top] = word;
    }

    /// Whether a coefficient's words still fit; if not, the stream has more than [`STREAM_WORDS_MAX`] already.
    pub(crate) fn ready(&self) -> Result<(), Uncodable> {
        if self.top >= ROW_WORDS_MAX { Ok(()) } else { Err(Uncodable) }
    }
}

/// The 32 coders.
pub(crate) struct LaneEncoder<'w> {
    pub(crate) states: [u32; LANES],
    pub(crate) words: &'w mut ReverseWords,
}

/// Encodes one stream.
pub(crate) fn encode_stream(
    job: EncodeJob<'_>,
    words: &mut ReverseWords,
) -> Result<EncodedStream, Uncodable> {
    let mut lanes = LaneEncoder::new(words);
    for row in (0..job.tokens).step_by(LANES).rev() {
        lanes.row(job, row)?;
    }
    Ok(lanes.finish())
}

impl<'w> LaneEncoder<'w> {
    pub(crate) fn new(words: &'w mut ReverseWords) -> Self {
        words.clear();
        Self { states: [STATE_MIN; LANES], words }
    }

    pub(crate) fn finish(self) -> EncodedStream {
        EncodedStream { states: self.states, words: self.words.buffer[self.words.top..].to_vec() }
    }

    /// All coefficients in tokens `row..row + 32`, or up to the end.
    pub(crate) fn row(&mut self, job: EncodeJob<'_>, row: usize) -> Result<(), Uncodable> {
        let valid = LANES.min(job.tokens - row);
        let trit_table = |table| &job.bank.trit_tables()[usize::from(table)];
        for (coding, token_values) in job.codings.iter().zip(job.values.chunks_exact(job.tokens)).rev() {
            self.words.ready()?;
            let mut values = [0; LANES];
            let values = &mut values[..valid];
            values.copy_from_slice(&token_values[row..row + valid]);
            match *coding {
                Coding::Stage { table, trits, trit_table: refining } => {
                    for _ in 0..trits {
                        self.trit(trit_table(refining), values)?;
                    }
                    self.stage(&job.bank.inverted_stages()[usize::from(table)], values)?;
                }
                Coding::Trit { table } => self.trit(trit_table(table), values)?,
            }
        }
        Ok(())
    }

    /// Emits a word if coding a symbol of `frequency` would push the state to `2^31`.
    #[inline]
    fn spill(&mut self, lane: usize, frequency: u32) -> u32 {
        let state = self.states[lane];
        if state >= frequency << (31 - PROBABILITY_BITS) {
            self.words.push(state as u16);
            state >> 16
        } else {
            state
        }
    }

    /// Codes eight bits without a model.
    fn bypass(&mut self, lane: usize, bits: u32) {
        let state = self.spill(lane, PROBABILITY_ONE >> 8);
        self.states[lane] = state << 8 | bits;
    }

    /// Escape payloads, then stage symbols, lanes backwards.
    fn stage(&mut self, table: &InvertedStage, row: &[i32]) -> Result<(), Uncodable> {
        let is_escape = |value: &i32| table.code(*value) == ESCAPE;
        let escapes = row.iter().rev().fold(0, |set, value| set << 1 | u32::from(is_escape(value)));
        if escapes != 0 {
            self.escape(escapes, row)?;
        }
        for (lane, &value) in row.iter().enumerate().rev() {
            let symbol = table.code(value);
            let (start, frequency) = (table.starts[symbol], table.frequencies[symbol]);
            if frequency == 0 {
                return Err(Uncodable);
            }
            let state = self.spill(lane, frequency);
            let slot = table.slots[(start + state % frequency) as usize];
            self.states[lane] = (state / frequency) << PROBABILITY_BITS | u32::from(slot);
        }
        Ok(())
    }

    /// The decoder reads 8 bits of every escaped lane, then the low and the high bytes of the long ones.
    pub(crate) fn escape(&mut self, escapes: u32, row: &[i32]) -> Result<(), Uncodable> {
        let escaped = || lanes_of(escapes).map(|lane| (lane, row[lane]));
        if escaped().any(|(_, value)| value.unsigned_abs() > ESCAPE_MAX as u32) {
            return Err(Uncodable);
        }
        // 127 + 16 bits: `checked_sub` is `None` for short escapes
        let long = || escaped().filter_map(|(lane, v)| Some((lane, v.unsigned_abs().checked_sub(127)?)));
        for (lane, rest) in long() {
            self.bypass(lane, rest >> 8);
        }
        for (lane, rest) in long() {
            self.bypass(lane, rest & 0xff);
        }
        for (lane, value) in escaped() {
            self.bypass(lane, value.unsigned_abs().min(127) << 1 | u32::from(value < 0));
        }
        Ok(())
    }

    /// The trit of every lane, lanes backwards; leaves the coarser values in `row`.
    fn trit(&mut self, table: &TritTable, row: &mut [i32]) -> Result<(), Uncodable> {
        for (lane, value) in row.iter_mut().enumerate().rev() {
            let (coarse, digit) = (coarsen(*value), digit(*value));
            let folded = if coarse < 0 { -digit } else { digit };
            let (start, frequency) = table.range(TritTable::context(coarse), folded);
            if frequency == 0 {
                return Err(Uncodable);
            }
            let state = self.spill(lane, frequency);
            self.states[lane] = (state / frequency) << PROBABILITY_BITS | (start + state % frequency);
            *value = coarse;
        }
        Ok(())
    }
}

/// The lanes of a set, in decreasing order.
fn lanes_of(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = set.checked_ilog2()?;
        set ^= 1 << lane;
        Some(lane as usize)
    })
}
