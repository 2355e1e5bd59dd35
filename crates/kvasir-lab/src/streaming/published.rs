//! The decision rule behind CacheGen's published violation rates.

use std::time::Duration;

use kvasir_client::tuning::FetchPlan;
use kvasir_types::Level;

use super::spec::{LinkRate, Outcome, quality};

/// Time that its simulation assumes to compute a chunk from text (`run_adaptation.py`, `chunk_delay`).
const CHUNK_COMPUTE: Duration = Duration::from_millis(200);

/// CacheGen's own simulation (its repository, `src/utils.py`, `config_selection`, read in October 2024's state),
/// which is *not* Algorithm 1: the bandwidth of each chunk is known before it is sent, every chunk has the same
/// share of the SLO, the finest level that fits its share is taken, a chunk that fits at no level is computed in
/// a constant 0.2 s, and the TTFT is the sum of it all. No prefill of the prompt, no decoding, no overlap.
pub fn published_rule(plan: &FetchPlan, link: &LinkRate) -> Outcome {
    let share = plan.slo / (plan.chunks.len().max(1) as u32);
    let (mut now, mut bytes, mut levels) = (Duration::ZERO, 0, Vec::new());
    for (i, chunk) in plan.chunks.iter().enumerate() {
        let took = |level: Level| link.time_after(now, i, chunk.bytes_at(level)).saturating_sub(now);
        let level = (0..=chunk.top_level().0).rev().map(Level).find(|&level| took(level) < share);
        now += level.map_or(CHUNK_COMPUTE, took);
        bytes += level.map_or(0, |level| chunk.bytes_at(level));
        levels.push(level);
    }
    let quality = quality(plan, &levels);
    Outcome { ttft: now, met: now <= plan.slo, quality, bytes, levels }
}
