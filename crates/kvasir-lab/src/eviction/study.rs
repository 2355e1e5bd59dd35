//! The traces of the eviction study: recorded ones if their files are given, generated ones, and mixtures.

use std::path::Path;

use kvasir_eviction::TurnInference;
use kvasir_replay::trace::{Callers, Request, SyntheticTrace, TraceError, TraceFormat, TraceReader};

/// A trace with a name; the same name with other seeds is the same kind.
#[derive(Debug, Clone)]
pub struct StudyTrace {
    /// Its kind.
    pub name: &'static str,
    /// The requests.
    pub requests: Vec<Request>,
}

/// Requests of a generated trace.
const REQUESTS: usize = 6_000;
/// Seconds that it spans, about, and into which it is mixed with a recorded one.
const SECONDS: f64 = 3_600.0;
/// Tokens of a block in the conversation trace and in the agentic one.
const BLOCK_TOKENS: [u64; 2] = [512, 64];
/// Offset that distinguishes the blocks of two mixed traces.
const OTHER_BLOCKS: u64 = 1 << 62;

/// The traces: `conversation` in Mooncake's format with 512-token blocks, `agentic` in Bailian's with
/// 64-token blocks. Recorded ones occur once, those with a generated part once per seed.
///
/// # Errors
/// When a file cannot be read or has a malformed line.
pub fn study_traces(
    conversation: Option<&Path>,
    agentic: Option<&Path>,
    seeds: &[u64],
) -> Result<Vec<StudyTrace>, TraceError> {
    let conversation = conversation.map(|path| read(path, TraceFormat::Mooncake)).transpose()?;
    let agentic = agentic.map(|path| read(path, TraceFormat::Bailian)).transpose()?;
    let mut traces = Vec::new();
    let mut add = |name, requests| traces.push(StudyTrace { name, requests });
    for seed in seeds {
        add("long contexts", long_contexts(Callers::LongContext, *seed, BLOCK_TOKENS[0]));
        add("settled long contexts", long_contexts(Callers::SettledLongContext, *seed, BLOCK_TOKENS[0]));
        for (name, recorded, block_tokens) in [
            ("conversation and long contexts", &conversation, BLOCK_TOKENS[0]),
            ("agentic and long contexts", &agentic, BLOCK_TOKENS[1]),
        ] {
            if let Some(recorded) = recorded {
                let generated = long_contexts(Callers::LongContext, *seed, block_tokens);
                add(name, mixed(recorded.clone(), generated));
            }
        }
    }
    if let (Some(conversation), Some(agentic)) = (&conversation, &agentic) {
        add("conversation and agentic", mixed(agentic.clone(), in_small_blocks(conversation)));
    }
    conversation.into_iter().for_each(|requests| add("conversation", requests));
    agentic.into_iter().for_each(|requests| add("agentic", requests));
    Ok(traces)
}

fn read(path: &Path, format: TraceFormat) -> Result<Vec<Request>, TraceError> {
    let mut reader = TraceReader::open(path, format)?;
    let (mut request, mut requests) = (Request::default(), Vec::new());
    while reader.read(&mut request)? {
        requests.push(request.clone());
    }
    Ok(requests)
}

fn long_contexts(callers: Callers, seed: u64, block_tokens: u64) -> Vec<Request> {
    // Clients that send several requests lower the actual rate below the nominal one.
    let rate = 1.5 * REQUESTS as f64 / SECONDS;
    let trace =
        SyntheticTrace { callers, seed, requests: REQUESTS, rate, scale: 1.0, block_tokens, labels: false };
    let mut turns = TurnInference::default();
    // As the reader does for recorded requests that do not say them.
    let with_turn = |mut request: Request| {
        (request.turn, request.pace_seconds) = turns.turn_of(&request.blocks, request.at);
        request
    };
    trace.iter().map(with_turn).collect()
}

/// The conversation trace in blocks of 64 tokens.
fn in_small_blocks(requests: &[Request]) -> Vec<Request> {
    let parts = BLOCK_TOKENS[0] / BLOCK_TOKENS[1];
    let split = |request: &Request| {
        let count = request.input_tokens.div_ceil(BLOCK_TOKENS[1]).max(1);
        // Ids are any numbers.
        let within = |block: &u64| {
            let first = block.wrapping_mul(parts);
            (0..parts).map(move |part| first.wrapping_add(part))
        };
        let blocks = request.blocks.iter().flat_map(within);
        Request { blocks: blocks.take(count as usize).collect(), ..request.clone() }
    };
    requests.iter().map(split).collect()
}

fn mixed(mut requests: Vec<Request>, mut others: Vec<Request>) -> Vec<Request> {
    let blocks = others.iter_mut().flat_map(|request| &mut request.blocks);
    blocks.for_each(|block| *block |= OTHER_BLOCKS);
    requests.append(&mut others);
    requests.sort_by_key(|request| request.at);
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_traces_are_mixed_and_generated_ones_come_once_a_seed() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("conversation.jsonl");
        let row = |at: u64, tokens: u64, ids: &str| {
            format!(
                "{{\"timestamp\":{at},\"input_length\":{tokens},\"output_length\":1,\"hash_ids\":[{ids}]}}\n"
            )
        };
        std::fs::write(&path, [row(0, 1_024, "3,4"), row(5_000, 600, "3,9")].concat()).unwrap();
        let traces = study_traces(Some(&path), None, &[1, 2]).unwrap();
        let names: Vec<&str> = traces.iter().map(|trace| trace.name).collect();
        let seeded = ["long contexts", "settled long contexts", "conversation and long contexts"];
        assert_eq!(names, [&seeded[..], &seeded[..], &["conversation"]].concat());
        assert_eq!(traces[2].requests.len(), REQUESTS + 2);
        assert!(traces.iter().all(|trace| trace.requests.is_sorted_by_key(|request| request.at)));
        let mut requests = traces.iter().flat_map(|trace| &trace.requests);
        assert!(requests.all(|request| request.kind.is_empty()), "a kind would say what comes back");
        let small = in_small_blocks(&traces[6].requests);
        assert_eq!(small[0].blocks, (24..40).collect::<Vec<u64>>());
        assert_eq!(small[1].blocks, (24..32).chain([72, 73]).collect::<Vec<u64>>());
        let high = Request { input_tokens: 64, blocks: vec![u64::MAX], ..Request::default() };
        assert_eq!(in_small_blocks(&[high])[0].blocks, [u64::MAX - 7]);
    }
}
