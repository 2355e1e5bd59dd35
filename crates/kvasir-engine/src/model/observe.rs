//! A view into the forward pass, for methods that decide by attention or hidden states.

use crate::error::EngineError;

/// Observes what a layer computed. Token and layer budgets (H2O, SqueezeAttention) use it; generation passes
/// [`Unobserved`].
pub trait Observer {
    /// Called before a layer reads or writes the cache. A load that is still running blocks the layer here.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`] ends the step; nothing is committed then.
    fn enter(&mut self, layer: usize) -> Result<(), EngineError> {
        let _ = layer;
        Ok(())
    }

    /// Attention probabilities of one layer, `[kv head][query head of the group][token][cached token]`, for the tokens
    /// `first .. cached` of this step.
    fn attention(&mut self, layer: usize, first: usize, cached: usize, probabilities: &[f32]) {
        let _ = (layer, first, cached, probabilities);
    }

    /// The residual stream before and after a layer's self-attention, `[token][hidden]`.
    fn residual(&mut self, layer: usize, before: &[f32], after: &[f32]) {
        let _ = (layer, before, after);
    }

    /// A bias to add to the attention scores of a layer before the softmax, `[kv head][cached token]` (−∞
    /// hides a token from a head), or `None`.
    fn bias(&self, layer: usize, cached: usize) -> Option<Vec<f32>> {
        let _ = (layer, cached);
        None
    }
}

/// Looks at nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}
