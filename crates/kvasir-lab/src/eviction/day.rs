//! A generated day of conversations: longer than any trace that is recorded, and with a night.

use std::f64::consts::TAU;

use kvasir_eviction::Moment;
use kvasir_replay::trace::Request;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Seconds of a day.
pub const DAY_SECONDS: u32 = 86_400;
/// Conversations that begin within a second, over the day: with six prompts and a half each about as many prompts as the recorded
/// hour has.
const CONVERSATIONS_PER_SECOND: f64 = 0.52;
/// By how much the busiest and the quietest time differ from the mean.
const SWING: f64 = 0.7;
/// Tokens of a block: those of Mooncake's traces.
const BLOCK_TOKENS: u64 = 512;
/// Most prompts of a conversation.
const TURNS_MAX: u32 = 12;
/// Least and most blocks of the first prompt, by a log-uniform distribution, and most that a turn adds.
const FIRST_BLOCKS: (f64, f64) = (2.0, 24.0);
const ADDED_BLOCKS_MAX: u64 = 3;
/// Seconds between two prompts of a conversation: at least, and beyond that in the mean.
const PAUSE_SECONDS: (f64, f64) = (5.0, 90.0);

/// Conversations of `seconds` with one swing from night to day and back, in the order of time. No two of them share a block.
pub fn conversations(seed: u64, seconds: u32) -> Vec<Request> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = || random.random_range(0.0..1.0f64);
    let mut requests = Vec::new();
    // Numbers of blocks: those of a shared template are others.
    for conversation in 1..=(f64::from(seconds) * CONVERSATIONS_PER_SECOND) as u64 {
        let begun = loop {
            let share = uniform();
            if uniform() * (1.0 + SWING) < 1.0 - SWING * (TAU * share).cos() {
                break share * f64::from(seconds);
            }
        };
        let (least, most) = FIRST_BLOCKS;
        let mut blocks = (least * (most / least).powf(uniform())) as u64;
        let turns = 1 + (uniform() * f64::from(TURNS_MAX)) as u32;
        let mut at = begun;
        for turn in 1..=turns {
            requests.push(Request {
                at: Moment::from_micros((at * 1e6) as u64),
                turn,
                input_tokens: blocks * BLOCK_TOKENS,
                blocks: (0..blocks).map(|block| conversation << 16 | block).collect(),
                ..Request::default()
            });
            let (least, mean) = PAUSE_SECONDS;
            at += least - mean * (1.0 - uniform()).ln();
            blocks += 1 + (uniform() * ADDED_BLOCKS_MAX as f64) as u64;
        }
    }
    requests.sort_by_key(|request| request.at);
    requests
}
