//! How many tokens at the start of a context are attention sinks: outliers that a static transform would
//! either lose or be bent by (StreamingLLM).

use kvasir_types::{ModelSpec, Plane};

use super::TrainingContext;
use kvasir_codec::limits::EXACT_TOKENS_MAX;

/// A position whose power about the mean is this many times the average in any (layer, plane) is a sink.
const OUTLIER_POWER: f64 = 6.0;

/// Tokens up to and including the last sink among the first [`EXACT_TOKENS_MAX`] positions.
pub(super) fn count(spec: &ModelSpec, contexts: &[TrainingContext]) -> usize {
    let mut sinks = 0;
    for (layer, kv) in spec.layers.iter().enumerate() {
        for plane in Plane::ALL {
            let (heads, dim) = kv.layout.planes()[plane as usize];
            let powers = position_powers(contexts, layer, plane, heads, dim);
            let [first @ .., usual] = &powers;
            let last = first.iter().rposition(|power| *power > OUTLIER_POWER * usual);
            sinks = sinks.max(last.map_or(0, |position| position + 1));
        }
    }
    sinks
}

/// Mean power about the usual mean, by position for the first ones; last, that of all later tokens.
fn position_powers(
    contexts: &[TrainingContext],
    layer: usize,
    plane: Plane,
    heads: usize,
    dim: usize,
) -> [f64; EXACT_TOKENS_MAX + 1] {
    let (mut powers, mut counts) = ([0f64; EXACT_TOKENS_MAX + 1], [0f64; EXACT_TOKENS_MAX + 1]);
    for head in 0..heads {
        let rows = || {
            // Positions count from the start of a text.
            let whole = contexts.iter().filter(|context| context.first_position == 0);
            let rows = whole.map(move |c| c.kv.rows(layer, plane, head).chunks_exact(dim));
            rows.flat_map(Iterator::enumerate).filter(|(_, row)| row.iter().all(|x| x.is_finite()))
        };
        let (mut mean, mut count) = (vec![0f64; dim], 0f64);
        for (_, row) in rows().filter(|(position, _)| *position >= EXACT_TOKENS_MAX) {
            mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += f64::from(*x));
            count += 1.0;
        }
        mean.iter_mut().for_each(|mean| *mean /= f64::max(count, 1.0));
        for (position, row) in rows() {
            let slot = position.min(EXACT_TOKENS_MAX);
            powers[slot] += row.iter().zip(&mean).map(|(x, m)| (f64::from(*x) - m).powi(2)).sum::<f64>();
            counts[slot] += 1.0;
        }
    }
    std::array::from_fn(|slot| powers[slot] / counts[slot].max(1.0))
}
