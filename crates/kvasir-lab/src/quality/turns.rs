//! Errors over turns: load a lossy cache, compute the next turn over it, store that, load it again.

use std::sync::Arc;

use kvasir_codec::{KvBuffer, KvSink as _, Profile};
use kvasir_engine::{Model, quality::Estimate};

use kvasir_types::Level;
use serde::Serialize;

use super::{
    Text,
    judge::{Questions, each_head, paged},
};
use crate::{BenchError, Chunk, codecs::ProfileCodec};

/// A conversation.
#[derive(Debug, Clone, Copy)]
pub struct TurnOptions {
    /// Tokens of the first turn.
    pub first_tokens: usize,
    /// Tokens of every other turn.
    pub turn_tokens: usize,
    /// Turns.
    pub turns: usize,
    /// Tokens after the last turn that judge a cache.
    pub suffix: usize,
    /// Level of every load.
    pub level: Level,
    /// Whether to keep KV with too much loss beneath it out of the store.
    pub rule: bool,
}

/// A turn, mean over the windows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Turn {
    /// Level of the loads.
    pub level: u8,
    /// Whether the rule is on.
    pub rule: bool,
    /// 1 is the first load.
    pub turn: usize,
    /// KL of the loaded and extended cache, nats per token.
    pub kl: f64,
    /// Lower end of its 95 % interval over windows.
    pub kl_low: f64,
    /// Upper end.
    pub kl_high: f64,
    /// Share of a repeated passage that is predicted right.
    pub retrieval: f64,
    /// Share of the context loaded from the store; the rest was computed again.
    pub loaded: f64,
}

/// KV as the store has it: a run of tokens with the loss it was computed over.
struct Stored {
    first: usize,
    tokens: usize,
    kv: KvBuffer,
    kl_beneath: f32,
}

/// Plays every window of `text` with one profile. The rule: what is computed over a prefix is stored when the predicted KL
/// beneath it, its ancestors' losses summed over the generations, is at most twice that of the finest level.
///
/// # Errors
/// As [`measure`](super::measure()).
pub fn turns(
    model: &Model,
    profile: &Arc<Profile>,
    text: &Text,
    options: &TurnOptions,
) -> Result<Vec<Turn>, BenchError> {
    let codec = ProfileCodec::new("kvasir", "", model.spec(), Arc::clone(profile))?;
    let mut out: Vec<Turn> = (1..=options.turns)
        .map(|turn| Turn {
            level: options.level.0,
            rule: options.rule,
            turn,
            kl: 0.0,
            kl_low: 0.0,
            kl_high: 0.0,
            retrieval: 0.0,
            loaded: 0.0,
        })
        .collect();
    let mut losses = vec![Vec::new(); options.turns];
    for window in &text.windows {
        play(model, &codec, &window.tokens, options, &mut out, &mut losses)?;
    }
    let count = text.windows.len() as f64;
    for (turn, losses) in out.iter_mut().zip(&losses) {
        let kl = Estimate::of_mean(losses);
        (turn.kl, turn.kl_low, turn.kl_high) = (kl.mean, kl.low.max(0.0), kl.high);
        turn.retrieval /= count;
        turn.loaded /= count;
    }
    Ok(out)
}

fn play(
    model: &Model,
    codec: &ProfileCodec,
    window: &[u32],
    options: &TurnOptions,
    out: &mut [Turn],
    losses: &mut [Vec<f64>],
) -> Result<(), BenchError> {
    let profile = codec.profile();
    let loss = |level: Level| profile.predicted_kl(level).unwrap_or(0.0);
    let bound = 2.0 * loss(profile.top_level());
    let needed = options.first_tokens + options.turns * options.turn_tokens + options.suffix;
    if window.len() < needed {
        return Err(BenchError::Window {
            prefix: needed - options.suffix,
            suffix: options.suffix,
            context: window.len(),
        });
    }
    let exact_first = model.calculate_kv(&window[..options.first_tokens])?;
    let first_kv = KvBuffer::from_source(model.spec(), options.first_tokens, &exact_first);
    let mut store = vec![Stored { first: 0, tokens: options.first_tokens, kv: first_kv, kl_beneath: 0.0 }];
    for (index, turn) in out.iter_mut().enumerate() {
        let end = options.first_tokens + (index + 1) * options.turn_tokens;
        let stored = store.last().map_or(0, |last| last.first + last.tokens);
        let mut kv = paged(model, &load(model, codec, window, &store, options.level)?)?;
        // The tokens missing from the store are computed over the stored ones: the turn's new tokens, and
        // turns that were not stored.
        model.extend_kv(&mut kv, &window[stored..end])?;
        let beneath = store.iter().map(|s| s.kl_beneath).fold(0.0, f32::max) + loss(options.level);
        if !options.rule || beneath <= bound {
            let all = KvBuffer::from_source(model.spec(), end, &kv);
            store.push(Stored {
                first: stored,
                tokens: end - stored,
                kv: all.slice(stored..end),
                kl_beneath: beneath,
            });
        }
        let (prefix, rest) = window.split_at(end);
        let questions = Questions::new(model, prefix, &rest[..options.suffix], &[]);
        let exact = questions.ask(&model.calculate_kv(prefix)?)?;
        let lossy = questions.ask(&kv)?;
        losses[index].push(questions.compare(&exact, &lossy).summary().kl.mean);
        turn.retrieval += lossy.retrieved.0 as f64 / lossy.retrieved.1.max(1) as f64;
        turn.loaded += stored as f64 / end as f64;
    }
    Ok(())
}

/// Everything stored, through the codec at a level.
fn load(
    model: &Model,
    codec: &ProfileCodec,
    window: &[u32],
    store: &[Stored],
    level: Level,
) -> Result<KvBuffer, BenchError> {
    let spec = model.spec();
    let tokens = store.iter().map(|s| s.tokens).sum();
    let mut kv = KvBuffer::new(spec, tokens);
    for stored in store {
        let chunk = Chunk {
            spec,
            tokens: &window[stored.first..stored.first + stored.tokens],
            preceding_token: stored.first.checked_sub(1).map(|before| window[before]),
            first_position: stored.first,
            kv: &stored.kv,
        };
        let coded = codec.decode(spec, &codec.encode(&chunk)?, level)?;
        each_head(spec, |layer, plane, head| {
            kv.write(layer, plane, head, stored.first, coded.kv.rows(layer, plane, head));
        });
    }
    Ok(kv)
}
