//! Means and scales of a sample.

use std::collections::BTreeMap;

use kvasir_types::{ModelSpec, SPAN_TOKENS};

use super::STARTER_SINKS;
use crate::{
    KvSource,
    authoring::{Elements, Rotations, Scope},
};

/// The statistics of a sample for the elements of a scope with one plane.
pub(super) struct Statistics {
    /// Tokens that were counted.
    pub(super) tokens: usize,
    /// By element, un-roped.
    pub(super) mean: Vec<f32>,
    /// By element, about its mean.
    pub(super) variance: Vec<f64>,
    /// Mean variance of the elements of a layer.
    power: BTreeMap<usize, f64>,
}

impl Statistics {
    /// Mean variance of the scope's elements of a layer.
    pub(super) fn plane_power(&self, layer: usize) -> f64 {
        self.power.get(&layer).copied().unwrap_or(0.0)
    }
}

/// Statistics of the first `tokens` tokens of `kv` but sinks; spans with a value that is not finite are left out.
pub(super) fn of(
    spec: &ModelSpec,
    scope: &Scope,
    tokens: usize,
    first_position: u64,
    kv: &dyn KvSource,
) -> Statistics {
    let (elements, count) = (Elements::new(spec, scope), scope.elements());
    // Of differences to the first row, whose squares do not cancel.
    let (mut sum, mut square, mut counted) = (vec![0f64; count], vec![0f64; count], 0usize);
    let mut origin: Vec<f32> = Vec::new();
    let first = if first_position == 0 { STARTER_SINKS.min(tokens) } else { 0 };
    let (mut raw, zero) = (Vec::new(), vec![0.0; count]);
    for start in (first..tokens).step_by(SPAN_TOKENS) {
        let range = start..(start + SPAN_TOKENS).min(tokens);
        if !elements.read(kv, &range, &mut raw) {
            continue;
        }
        let mut rows = vec![0.0; raw.len()];
        let rotations = Rotations::new(&spec.ropes, first_position, &range);
        elements.normalise(&zero, &rotations, range.len(), &mut raw, &mut rows);
        if origin.is_empty() {
            origin.extend(&rows[..count]);
        }
        for row in rows.chunks_exact(count) {
            for (((sum, square), x), origin) in sum.iter_mut().zip(&mut square).zip(row).zip(&origin) {
                let x = f64::from(*x) - f64::from(*origin);
                *sum += x;
                *square += x * x;
            }
        }
        counted += range.len();
    }
    origin.resize(count, 0.0);
    let tokens = counted.max(1) as f64;
    let mean = sum.iter().zip(&origin).map(|(sum, origin)| (f64::from(*origin) + sum / tokens) as f32);
    let variance = sum.iter().zip(&square).map(|(sum, square)| {
        let mean = sum / tokens;
        (square / tokens - mean * mean).max(0.0)
    });
    let (mean, variance): (Vec<f32>, Vec<f64>) = (mean.collect(), variance.collect());
    let mut sums = BTreeMap::<usize, (f64, usize)>::new();
    let mut start = 0;
    for member in &scope.members {
        let of_layer = sums.entry(member.layer).or_default();
        of_layer.0 += variance[start..start + member.dim].iter().sum::<f64>();
        of_layer.1 += member.dim;
        start += member.dim;
    }
    let power = sums.into_iter().map(|(layer, (sum, dims))| (layer, sum / dims as f64)).collect();
    Statistics { tokens: counted, mean, variance, power }
}
