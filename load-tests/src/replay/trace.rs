//! Requests of a recorded trace, as prompts.

use std::{
    fs::File,
    io::{BufRead, BufReader, Cursor},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use kvasir_replay::trace::{Request, SyntheticTrace, TraceFormat, TraceReader};
use serde::{Deserialize, Serialize};

/// Which trace, and which part of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceSpec {
    /// `mooncake` or `bailian`.
    pub(crate) format: String,
    /// Tokens of the trace's blocks.
    pub(crate) block_tokens: usize,
    /// Start of its window, in seconds of the trace.
    #[serde(default)]
    pub(crate) from_seconds: f64,
    /// Prompts are cut to this many tokens; 0 for no limit.
    #[serde(default)]
    pub(crate) tokens_max: usize,
    /// Layers of the model whose cache is stored: with four, a token's cache is 1/128 of an 8B model's.
    #[serde(default = "four")]
    pub(crate) layers: usize,
}

fn four() -> usize {
    4
}

/// A prompt of the trace.
#[derive(Debug, Clone)]
pub(crate) struct Prompt {
    pub(crate) at: Duration,
    pub(crate) blocks: Vec<u64>,
    pub(crate) tokens: usize,
}

/// The replayed trace, for the report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TraceFacts {
    pub(crate) source: String,
    pub(crate) window_s: (f64, f64),
    pub(crate) requests: usize,
    pub(crate) tokens: u64,
}

/// Requests per second of the synthetic trace that is used without a file: as in Mooncake's conversation
/// trace.
const SYNTHETIC_RATE: f64 = 3.34;
/// More of them than fill the time on average.
const SYNTHETIC_SPARE: f64 = 1.2;

/// The prompts of `seconds` of the trace in `file`, `speed` times as fast. Without a file: a synthetic trace of the same
/// format, so that the scenario runs anywhere.
pub(crate) fn prompts(
    spec: &TraceSpec,
    file: Option<&PathBuf>,
    seconds: f64,
    speed: f64,
    seed: u64,
) -> Result<(Vec<Prompt>, TraceFacts)> {
    let until = spec.from_seconds + seconds * speed;
    let (source, reader): (String, Box<dyn BufRead>) = match file {
        Some(path) => (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), open(path)?),
        None => (format!("synthetic, seed {seed}"), Box::new(synthetic(spec, until, seed)?)),
    };
    let format: TraceFormat = spec.format.parse()?;
    let format = if file.is_none() { TraceFormat::Bailian } else { format };
    let mut reader = TraceReader::new(reader, format);
    let (mut request, mut prompts) = (Request::default(), Vec::new());
    while reader.read(&mut request)? {
        let at = request.at.as_micros() as f64 * 1e-6;
        if at >= until {
            break;
        }
        if at < spec.from_seconds {
            continue;
        }
        let tokens = (request.input_tokens as usize).min(request.blocks.len() * spec.block_tokens);
        let tokens = if spec.tokens_max > 0 { tokens.min(spec.tokens_max) } else { tokens };
        let blocks = request.blocks[..tokens.div_ceil(spec.block_tokens)].to_vec();
        let at = Duration::from_secs_f64((at - spec.from_seconds) / speed);
        prompts.push(Prompt { at, blocks, tokens });
    }
    let tokens = prompts.iter().map(|p| p.tokens as u64).sum();
    let facts = TraceFacts { source, window_s: (spec.from_seconds, until), requests: prompts.len(), tokens };
    Ok((prompts, facts))
}

fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    let file = File::open(path).with_context(|| format!("the trace {}", path.display()))?;
    Ok(if path.extension().is_some_and(|e| e == "zst") {
        let mut decoder = zstd::Decoder::new(file)?;
        decoder.window_log_max(27)?;
        Box::new(BufReader::new(decoder))
    } else {
        Box::new(BufReader::new(file))
    })
}

fn synthetic(spec: &TraceSpec, seconds: f64, seed: u64) -> Result<Cursor<Vec<u8>>> {
    let mut rows = Vec::new();
    let requests = (seconds * SYNTHETIC_RATE * SYNTHETIC_SPARE) as usize + 100;
    let scale = 64.0 / spec.block_tokens as f64;
    let (rate, block_tokens) = (SYNTHETIC_RATE, spec.block_tokens as u64);
    SyntheticTrace { seed, requests, rate, scale, block_tokens, ..SyntheticTrace::default() }
        .write(&mut rows)?;
    Ok(Cursor::new(rows))
}

impl Prompt {
    /// Its tokens: equal blocks of the trace are equal tokens.
    pub(crate) fn tokens(&self, block_tokens: usize) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(self.blocks.len() * block_tokens);
        for block in &self.blocks {
            tokens.extend(kvasir_tests::chunks::tokens(*block + 1, block_tokens));
        }
        tokens.truncate(self.tokens);
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(format: &str, block_tokens: usize) -> TraceSpec {
        TraceSpec { format: format.into(), block_tokens, from_seconds: 1.0, tokens_max: 0, layers: 4 }
    }

    #[test]
    fn both_formats_are_cut_and_sped_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.jsonl");
        let rows = [
            r#"{"timestamp":500,"input_length":600,"output_length":1,"hash_ids":[0,1]}"#,
            r#"{"timestamp":3000,"input_length":1300,"output_length":1,"hash_ids":[0,1,7]}"#,
            r#"{"timestamp":9000,"input_length":512,"output_length":1,"hash_ids":[3]}"#,
        ];
        std::fs::write(&path, rows.join("\n")).unwrap();
        let (prompts, facts) = prompts_of(&spec("mooncake", 512), &path, 2.0, 2.0);
        assert_eq!((facts.requests, facts.tokens, facts.window_s), (1, 1300, (1.0, 5.0)));
        assert_eq!(prompts[0].at, Duration::from_secs(1));
        let tokens = prompts[0].tokens(512);
        assert_eq!(tokens.len(), 1300);
        assert_eq!(tokens[..512], kvasir_tests::chunks::tokens(1, 512)[..]);
        let row = r#"{"chat_id":1,"parent_chat_id":-1,"timestamp":2.5,"input_length":100,"output_length":1,"type":"text","turn":1,"hash_ids":[5,6]}"#;
        std::fs::write(&path, row).unwrap();
        let (prompts, _) = prompts_of(&spec("bailian", 64), &path, 10.0, 1.0);
        assert_eq!((prompts[0].at, prompts[0].tokens), (Duration::from_millis(1_500), 100));
    }

    fn prompts_of(spec: &TraceSpec, path: &Path, seconds: f64, speed: f64) -> (Vec<Prompt>, TraceFacts) {
        prompts(spec, Some(&path.to_owned()), seconds, speed, 1).unwrap()
    }

    #[test]
    fn without_a_file_there_is_a_trace_all_the_same() {
        let (prompts, facts) = prompts(&spec("bailian", 64), None, 30.0, 1.0, 5).unwrap();
        assert!(facts.requests > 20 && prompts.len() == facts.requests, "{facts:?}");
    }
}
