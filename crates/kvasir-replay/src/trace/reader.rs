//! Streaming readers of the public KV-cache traces: Mooncake (FAST'25) and Qwen-Bailian (ATC'25).
//!
//! ```text
//! mooncake  {"timestamp": ms, "input_length", "output_length", "hash_ids": [512-token blocks]}
//! bailian   {"chat_id", "parent_chat_id", "timestamp": s, "input_length", "output_length", "type", "turn",
//!            "hash_ids": [16-token blocks, or as many as the file uses]}
//! ```
//! One row a line; memory is that of the longest line ([`LINE_BYTES_MAX`]).

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    str::FromStr,
};

use kvasir_eviction::{Moment, TurnInference};
use serde::Deserialize;

/// Longest line that is read: a 2 M-token request in 16-token blocks with 8-digit ids is under 2 MB.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// The format of a trace file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// Mooncake: milliseconds, no classes.
    Mooncake,
    /// Qwen-Bailian: seconds, request types and turns.
    Bailian,
}

impl FromStr for TraceFormat {
    type Err = TraceError;

    fn from_str(s: &str) -> Result<Self, TraceError> {
        match s {
            "mooncake" => Ok(Self::Mooncake),
            "bailian" => Ok(Self::Bailian),
            _ => Err(TraceError::Format { found: s.to_owned() }),
        }
    }
}

/// The trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Unknown format.
    #[error("there is no trace format {found:?}; use mooncake or bailian")]
    Format {
        /// The requested format.
        found: String,
    },
    /// The file cannot be opened or read.
    #[error("cannot read the trace: {0}")]
    Io(#[from] io::Error),
    /// A malformed line.
    #[error("line {number}: {problem}")]
    Line {
        /// Line number, from 1.
        number: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// No usable row.
    #[error("the trace has no request with blocks")]
    Empty,
    /// The second time, the trace is not as it was the first time.
    #[error("the trace changed, or cannot be read twice; give a plain file")]
    Changed,
}

/// One request of a trace.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    /// Arrival.
    pub at: Moment,
    /// Request type; empty when the format has none.
    pub kind: String,
    /// Turn from 1, inferred from shared prefixes when the format has none.
    pub turn: u32,
    /// Seconds since the previous turn of the conversation, inferred from shared prefixes.
    pub pace_seconds: Option<f32>,
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// The prompt's blocks in order; equal ids mean equal tokens in equal context.
    pub blocks: Vec<u64>,
}

#[derive(Deserialize)]
struct Row<'a> {
    timestamp: f64,
    input_length: u64,
    hash_ids: Vec<u64>,
    #[serde(borrow, default, rename = "type")]
    kind: Option<std::borrow::Cow<'a, str>>,
    #[serde(default)]
    turn: Option<u32>,
}

/// Iterates over the requests of a trace with only one line in memory.
#[derive(Debug)]
pub struct TraceReader<R> {
    source: R,
    format: TraceFormat,
    line: Vec<u8>,
    number: u64,
    turns: TurnInference<u64>,
}

impl TraceReader<BufReader<File>> {
    /// Opens a trace file.
    ///
    /// # Errors
    /// [`TraceError::Io`] when it cannot be opened.
    pub fn open(path: &Path, format: TraceFormat) -> Result<Self, TraceError> {
        Ok(Self::new(BufReader::with_capacity(1 << 20, File::open(path)?), format))
    }
}

impl<R: BufRead> TraceReader<R> {
    /// Reads rows from `source`.
    pub fn new(source: R, format: TraceFormat) -> Self {
        Self { source, format, line: Vec::new(), number: 0, turns: TurnInference::default() }
    }

    /// Reads the next request into `request`, reusing its memory; `false` at the end.
    ///
    /// # Errors
    /// [`TraceError::Io`], and [`TraceError::Line`] for a malformed line.
    pub fn read(&mut self, request: &mut Request) -> Result<bool, TraceError> {
        loop {
            self.line.clear();
            let limit = LINE_BYTES_MAX as u64 + 1;
            if self.source.by_ref().take(limit).read_until(b'\n', &mut self.line)? == 0 {
                return Ok(false);
            }
            self.number += 1;
            if self.line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            self.parse(request).map_err(|problem| TraceError::Line { number: self.number, problem })?;
            return Ok(true);
        }
    }

    fn parse(&mut self, request: &mut Request) -> Result<(), String> {
        if self.line.len() > LINE_BYTES_MAX {
            return Err(format!("longer than {LINE_BYTES_MAX} bytes"));
        }
        let row: Row<'_> = serde_json::from_slice(&self.line).map_err(|error| error.to_string())?;
        let micros_per_unit = match self.format {
            TraceFormat::Mooncake => 1e3,
            TraceFormat::Bailian => 1e6,
        };
        if !(row.timestamp >= 0.0 && row.timestamp <= TIMESTAMP_MAX) {
            return Err(format!("timestamp {} is not between 0 and {TIMESTAMP_MAX}", row.timestamp));
        }
        if row.input_length > INPUT_TOKENS_MAX {
            return Err(format!("input_length {} is above {INPUT_TOKENS_MAX}", row.input_length));
        }
        request.at = Moment::from_micros((row.timestamp * micros_per_unit) as u64);
        request.kind.clear();
        request.kind.push_str(row.kind.as_deref().unwrap_or(""));
        request.input_tokens = row.input_length;
        request.blocks.clear();
        request.blocks.extend_from_slice(&row.hash_ids);
        let (turn, pace_seconds) = self.turns.turn_of(&request.blocks, request.at);
        request.turn = row.turn.unwrap_or(turn);
        request.pace_seconds = pace_seconds;
        Ok(())
    }
}

/// Latest timestamp, in the format's unit: a larger number cannot be a time since the trace's start.
const TIMESTAMP_MAX: f64 = 1e12;
/// Most tokens of a prompt: more of them cannot be meant, and positions of blocks are computed from them.
const INPUT_TOKENS_MAX: u64 = 1 << 40;
