//! The best possible result with a known future.

use std::time::Duration;

use kvasir_client::tuning::{FetchPlan, TextMode};
use kvasir_types::Level;

use super::spec::{Outcome, SimulationConfig, quality};

/// Up to this many chunks, every set of text chunks is tried; above it, only text prefixes.
const CHUNKS_EXHAUSTIVE: usize = 8;

/// The best plan under the link's true future: which chunks go as text (GPU and network side by side, a text
/// chunk waits for its prefix), and the levels of the rest, refined greedily by loss removed per byte within the
/// deadline. If no plan meets the deadline, the one that comes closest.
///
/// It bounds violations from below up to its order of transfer (in context order, one after the other, which
/// lets text chunks start soonest); its quality is a greedy, hence attainable, figure.
pub fn oracle(plan: &FetchPlan, simulation: &SimulationConfig, arrival: Duration) -> Outcome {
    let count = plan.chunks.len();
    let sets: Vec<u64> = if count <= CHUNKS_EXHAUSTIVE {
        (0..1 << count).collect()
    } else {
        (0..=count.min(63)).map(|k| (1u64 << k) - 1).collect()
    };
    let candidates = sets.into_iter().map(|set| {
        let levels: Vec<_> = (0..count).map(|i| (set >> i & 1 == 0).then_some(Level::BASE)).collect();
        refine(plan, simulation, arrival, levels)
    });
    let better = |a: Outcome, b: Outcome| {
        let key = |o: &Outcome| (!o.met, if o.met { Duration::ZERO } else { o.ttft });
        let order = key(&a).cmp(&key(&b)).then(b.quality.total_cmp(&a.quality)).then(a.bytes.cmp(&b.bytes));
        if order.is_gt() { b } else { a }
    };
    candidates.reduce(better).unwrap_or(Outcome {
        ttft: plan.suffix_time,
        met: plan.suffix_time <= plan.slo,
        quality: 1.0,
        bytes: 0,
        levels: Vec::new(),
    })
}

/// When the load ends if chunks are fetched in order at these levels.
fn finish(
    plan: &FetchPlan,
    simulation: &SimulationConfig,
    arrival: Duration,
    levels: &[Option<Level>],
) -> Duration {
    let mut link = arrival + simulation.first_byte;
    let (mut decoder, mut gpu, mut resolved) = (arrival, arrival, arrival);
    let mut after = Duration::ZERO;
    for (i, (chunk, level)) in plan.chunks.iter().zip(levels).enumerate() {
        match *level {
            Some(level) => {
                link = simulation.link.time_after(link, i, chunk.bytes_at(level));
                decoder =
                    decoder.max(link) + simulation.decode.predict(chunk.tokens.len(), chunk.bytes_at(level));
                resolved = resolved.max(decoder);
            }
            None if simulation.text_mode == TextMode::Deferred => {
                after += simulation.recompute.predict(chunk.tokens);
            }
            None => {
                gpu = gpu.max(resolved) + simulation.recompute.predict(chunk.tokens);
                resolved = resolved.max(gpu);
            }
        }
    }
    resolved + after - arrival
}

fn refine(
    plan: &FetchPlan,
    simulation: &SimulationConfig,
    arrival: Duration,
    mut levels: Vec<Option<Level>>,
) -> Outcome {
    let deadline = plan.deadline();
    let met = |levels: &[Option<Level>]| finish(plan, simulation, arrival, levels) <= deadline;
    if met(&levels) {
        loop {
            let mut steps: Vec<(f64, usize, Level)> = Vec::new();
            for (i, (chunk, level)) in plan.chunks.iter().zip(&levels).enumerate() {
                let Some(level) = level.filter(|&l| l < chunk.top_level()) else { continue };
                for target in (level.0 + 1..=chunk.top_level().0).map(Level) {
                    let bytes = (chunk.bytes_at(target) - chunk.bytes_at(level)).max(1) as f64;
                    let gain = (chunk.loss_at(level) - chunk.loss_at(target)) * chunk.tokens.len() as f64;
                    steps.push((gain / bytes, i, target));
                }
            }
            steps.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let fits = steps.into_iter().find(|&(_, i, target)| {
                let mut tried = levels.clone();
                tried[i] = Some(target);
                met(&tried)
            });
            match fits {
                Some((_, i, target)) => levels[i] = Some(target),
                None => break,
            }
        }
    }
    let ttft = finish(plan, simulation, arrival, &levels) + plan.suffix_time;
    let bytes = plan.chunks.iter().zip(&levels).map(|(c, l)| l.map_or(0, |l| c.bytes_at(l))).sum();
    Outcome { ttft, met: ttft <= plan.slo, quality: quality(plan, &levels), bytes, levels }
}
