//! CacheGen's three observations (§5.1, Figs. 3, 4, 5), re-measured on a cache of this engine.
//!
//! They are what the paper's codec rests on. Whether they hold is a property of the model, so they are measured
//! rather than believed.

use std::collections::HashMap;

use kvasir_codec::{KvBuffer, KvSink};
use kvasir_types::{ModelSpec, Plane};
use serde::Serialize;

use kvasir_engine::{
    EngineError, Model, PagedKv,
    quality::{Quality, Samples, compare_prefixes},
};

/// Tokens of an anchor group in the paper.
pub const ANCHOR_GROUP: usize = 10;

/// Fig. 3, one layer: how much smaller deltas within a group of ten tokens are than the values themselves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DeltaVariance {
    /// The layer.
    pub layer: usize,
    /// Which tensor.
    pub plane: Plane,
    /// Variance of all values of the tensor, channels pooled (the paper's view).
    pub pooled: f64,
    /// Mean over channels of the variance along tokens: the variance that remains once channel means are
    /// known.
    pub along_tokens: f64,
    /// Variance of the differences to the group's first token.
    pub deltas: f64,
}

/// Measures Fig. 3 over a context's cache.
pub fn delta_variances(spec: &ModelSpec, kv: &KvBuffer) -> Vec<DeltaVariance> {
    let planes = (0..spec.layers.len()).flat_map(|l| Plane::ALL.map(|p| (l, p)));
    planes
        .filter(|&(l, p)| kv.heads(l, p) > 0)
        .map(|(layer, plane)| delta_variance(spec, kv, layer, plane))
        .collect()
}

fn delta_variance(spec: &ModelSpec, kv: &KvBuffer, layer: usize, plane: Plane) -> DeltaVariance {
    let (heads, dim) = spec.layers[layer].layout.planes()[plane as usize];
    let (mut all, mut along, mut deltas) = (Moments::default(), 0.0, Moments::default());
    for (rows, channel) in (0..heads).flat_map(|h| (0..dim).map(move |c| (kv.rows(layer, plane, h), c))) {
        let values: Vec<f64> = rows.iter().skip(channel).step_by(dim).map(|&v| f64::from(v)).collect();
        let mut own = Moments::default();
        values.iter().for_each(|&v| {
            own.add(v);
            all.add(v);
        });
        along += own.variance();
        for group in values.chunks(ANCHOR_GROUP) {
            group[1..].iter().for_each(|v| deltas.add(v - group[0]));
        }
    }
    let along_tokens = along / (heads * dim) as f64;
    DeltaVariance { layer, plane, pooled: all.variance(), along_tokens, deltas: deltas.variance() }
}

#[derive(Default)]
struct Moments {
    n: f64,
    sum: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, value: f64) {
        self.n += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    fn variance(&self) -> f64 {
        if self.n == 0.0 { 0.0 } else { self.squares / self.n - (self.sum / self.n).powi(2) }
    }
}

/// Fig. 4, one group of layers: the cost of quantising only these layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerSensitivity {
    /// First layer of the group.
    pub first: usize,
    /// Layers in the group.
    pub count: usize,
    /// The cost.
    pub quality: Quality,
}

/// Measures Fig. 4: rounds one group of `group` layers at a time to `step` standard deviations of its plane.
///
/// # Errors
/// As [`Model::logits`].
pub fn layer_sensitivity(
    model: &Model,
    kv: &PagedKv,
    suffix: &[u32],
    group: usize,
    step: f64,
) -> Result<Vec<LayerSensitivity>, EngineError> {
    let spec = model.spec();
    let exact = KvBuffer::from_source(spec, kv.len(), kv);
    let mut rows = Vec::new();
    for first in (0..spec.layers.len()).step_by(group.max(1)) {
        let layers = first..(first + group.max(1)).min(spec.layers.len());
        let lossy = rounded(model, &exact, layers.clone(), step)?;
        let mut samples = Samples::default();
        compare_prefixes(model, kv, &lossy, suffix, &mut samples)?;
        rows.push(LayerSensitivity { first, count: layers.len(), quality: samples.summary() });
    }
    Ok(rows)
}

/// A paged copy of `exact` with some layers rounded.
fn rounded(
    model: &Model,
    exact: &KvBuffer,
    layers: std::ops::Range<usize>,
    step: f64,
) -> Result<PagedKv, EngineError> {
    let mut kv = model.new_kv()?;
    kv.reserve(exact.tokens())?;
    let mut sink = kv.sink(0)?;
    for (layer, plane) in (0..model.spec().layers.len()).flat_map(|l| Plane::ALL.map(|p| (l, p))) {
        let mut moments = Moments::default();
        let heads = 0..exact.heads(layer, plane);
        heads.clone().flat_map(|h| exact.rows(layer, plane, h)).for_each(|&v| moments.add(f64::from(v)));
        let width = (moments.variance().sqrt() * step) as f32;
        for head in heads {
            let mut rows = exact.rows(layer, plane, head).to_vec();
            if layers.contains(&layer) && width > 0.0 {
                rows.iter_mut().for_each(|v| *v = (*v / width).round() * width);
            }
            sink.write(layer, plane, head, 0, &rows);
        }
    }
    sink.finish()?;
    kv.commit(exact.tokens())?;
    Ok(kv)
}

/// Fig. 5: entropy of the rounded values in bits per element, if the distribution is known per group.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GroupedEntropy {
    /// One distribution for everything.
    pub global: f64,
    /// One per token position.
    pub by_token: f64,
    /// One per layer (K and V separate).
    pub by_layer: f64,
    /// One a channel, shared by the layers.
    pub by_channel: f64,
    /// One per layer and channel: the paper's choice.
    pub by_layer_and_channel: f64,
}

/// Measures Fig. 5 with steps of `step` (absolute, the same everywhere).
///
/// Empirical entropies fall with the number of distributions even on noise: each has fewer samples. The
/// Miller–Madow correction, (symbols − 1) ÷ 2 samples nats a distribution, takes most of that out.
pub fn grouped_entropy(spec: &ModelSpec, kv: &KvBuffer, step: f32) -> GroupedEntropy {
    let mut tables: [HashMap<u64, HashMap<i32, u32>>; 5] = Default::default();
    for (layer, plane) in (0..spec.layers.len()).flat_map(|l| Plane::ALL.map(|p| (l, p))) {
        let dim = spec.layers[layer].layout.planes()[plane as usize].1;
        for head in 0..kv.heads(layer, plane) {
            for (index, value) in kv.rows(layer, plane, head).iter().enumerate() {
                let (token, channel) = ((index / dim) as u64, (head * dim + index % dim) as u64);
                let (plane, layer) = (plane as u64, (2 * layer) as u64 + plane as u64);
                let keys = [0, token, layer, channel << 1 | plane, channel << 32 | layer];
                let symbol = (value / step).round() as i32;
                for (table, key) in tables.iter_mut().zip(keys) {
                    *table.entry(key).or_default().entry(symbol).or_default() += 1;
                }
            }
        }
    }
    let [global, by_token, by_layer, by_channel, by_layer_and_channel] = tables.map(|t| entropy(&t));
    GroupedEntropy { global, by_token, by_layer, by_channel, by_layer_and_channel }
}

fn entropy(groups: &HashMap<u64, HashMap<i32, u32>>) -> f64 {
    let (mut bits, mut total) = (0.0, 0.0);
    for counts in groups.values() {
        let n: f64 = counts.values().map(|&c| f64::from(c)).sum();
        let plain: f64 = counts.values().map(|&c| -f64::from(c) * (f64::from(c) / n).log2()).sum();
        bits += plain + (counts.len() as f64 - 1.0) / 2.0 * std::f64::consts::LOG2_E;
        total += n;
    }
    bits / total
}

#[cfg(test)]
mod tests {
    use kvasir_types::{KvDtype, KvLayout, LayerKv, Reuse};

    use super::*;

    fn spec() -> ModelSpec {
        let layout = KvLayout::Gqa { kv_heads: 1, head_dim: 2 };
        ModelSpec {
            weights: "toy".into(),
            revision: "1".into(),
            adapter: None,
            kv_dtype: KvDtype::F32,
            ropes: vec![],
            layers: vec![LayerKv { layout, rope: None }; 2],
            thinning: None,
            reuse: Reuse::Prefix,
        }
    }

    fn filled(tokens: usize, value: impl Fn(usize, Plane, usize, usize) -> f32) -> KvBuffer {
        let mut kv = KvBuffer::new(&spec(), tokens);
        for (layer, plane) in (0..2).flat_map(|l| Plane::ALL.map(|p| (l, p))) {
            for (i, slot) in kv.rows_mut(layer, plane, 0).iter_mut().enumerate() {
                *slot = value(layer, plane, i / 2, i % 2);
            }
        }
        kv
    }

    #[test]
    fn slow_signals_have_small_deltas_and_alternating_ones_large() {
        let slow = delta_variances(&spec(), &filled(200, |_, _, token, _| token as f32));
        let fast = delta_variances(&spec(), &filled(200, |_, _, token, _| (token % 2) as f32));
        assert!(slow.iter().all(|v| v.deltas * 100.0 < v.along_tokens));
        assert!(fast.iter().all(|v| v.deltas > 0.9 * v.along_tokens));
        let offsets = delta_variances(&spec(), &filled(20, |_, _, _, channel| channel as f32));
        assert!(offsets.iter().all(|v| v.along_tokens == 0.0 && (v.pooled - 0.25).abs() < 1e-12));
    }

    #[test]
    fn grouping_helps_exactly_where_the_groups_differ() {
        // Every (layer, channel) has a different constant: known there, unknown elsewhere.
        let constants =
            filled(64, |layer, plane, _, channel| (layer * 4 + plane as usize * 2 + channel) as f32);
        let entropy = grouped_entropy(&spec(), &constants, 1.0);
        assert_eq!(entropy.by_layer_and_channel, 0.0);
        assert!(entropy.global > 2.9 && entropy.by_token > 2.9);
        assert!((entropy.by_layer - 1.0).abs() < 0.1 && (entropy.by_channel - 1.0).abs() < 0.1);
    }
}
