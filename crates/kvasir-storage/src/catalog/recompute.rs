//! The cost of recomputing stored tokens, which determines the value of keeping them.
//!
//! The service does not know how fast engines are, and need not: policies only compare values of entries.
//! What matters is how the cost grows along a context and with the model.

use kvasir_types::{ModelId, Name};

use super::Catalog;
use crate::limits;

/// Prefill time of a reference engine, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PrefillCost {
    per_token: f64,
    /// Per pair of a token and a preceding token: attention.
    per_pair: f64,
}

impl PrefillCost {
    /// For a transformer of `layers` layers: 24 × layers × width² operations per token and 4 × layers × width
    /// per pair. A spec does not contain the width (grouped heads hide it); models keep it near
    /// [`limits::WIDTH_PER_LAYER`] per layer.
    pub(crate) fn of_layers(layers: usize) -> Self {
        let layers = layers.max(1) as f64;
        let width = layers * limits::WIDTH_PER_LAYER;
        let seconds = |operations: f64| operations / limits::REFERENCE_FLOPS;
        Self { per_token: seconds(24.0 * layers * width * width), per_pair: seconds(4.0 * layers * width) }
    }

    /// The cost of computing `tokens` tokens after `first` present ones.
    pub(crate) fn seconds(&self, first: u64, tokens: u32) -> f64 {
        let (first, tokens) = (first as f64, f64::from(tokens));
        tokens * (self.per_token + self.per_pair * (first + tokens / 2.0))
    }
}

impl Catalog {
    /// Seconds to recompute a chunk: by its model if that was used recently, otherwise by a model of the
    /// usual size.
    pub(crate) fn recompute_seconds(
        &self,
        tenant: &Name,
        model_id: &ModelId,
        first_position: u64,
        token_count: u32,
    ) -> f32 {
        let spec = self.models.get(&(tenant.clone(), *model_id));
        let layers = spec.map_or(limits::REFERENCE_LAYERS, |spec| spec.layers.len());
        PrefillCost::of_layers(layers).seconds(first_position, token_count) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_grow_along_a_context_and_with_the_model() {
        let of_7b = PrefillCost::of_layers(32);
        let start = of_7b.seconds(0, 1_536);
        // 2 × 6.4e9 operations per token on 156 TFLOP/s, and 3 % for attention within the chunk.
        assert!((start - 1_536.0 * 2.0 * 6.44e9 / 156e12 * 1.03).abs() < 0.003, "{start}");
        // Attention over six widths of tokens costs as much as everything else.
        let far = of_7b.seconds(6 * 4_096, 1_536);
        assert!((1.9..2.1).contains(&(far / start)), "{}", far / start);
        assert!(PrefillCost::of_layers(80).seconds(0, 1_536) > 10.0 * start);
        assert_eq!(of_7b.seconds(5, 0), 0.0);
        assert!(PrefillCost::of_layers(0).seconds(u64::MAX, u32::MAX).is_finite());
    }
}
