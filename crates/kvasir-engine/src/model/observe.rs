//! A view into the forward pass, for methods that decide by attention or hidden states.

use candle_core::Tensor;

use crate::error::EngineError;

/// Sees what a layer computed. Used by token and layer budgets (H2O, SqueezeAttention); generation passes
/// [`Unobserved`].
pub trait Observer {
    /// Called before a layer reads or writes the cache. A load that is still under way holds the layer up here.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`] ends the step; nothing is committed then.
    fn enter(&mut self, layer: usize) -> Result<(), EngineError> {
        let _ = layer;
        Ok(())
    }

    /// Rotated queries of one layer, scaled as they meet the keys: `[kv_heads, query heads per kv head × tokens, head_dim]`
    /// f32.
    ///
    /// # Errors
    /// Whatever reading the tensor gives.
    fn queries(&mut self, layer: usize, queries: &Tensor) -> Result<(), EngineError> {
        let _ = (layer, queries);
        Ok(())
    }

    /// Attention probabilities of one layer: `[kv_heads, query heads per kv head × tokens, cached tokens]`
    /// f32, for the tokens `first ..` of this step.
    ///
    /// # Errors
    /// Whatever reading the tensor gives.
    fn attention(&mut self, layer: usize, first: usize, probabilities: &Tensor) -> Result<(), EngineError> {
        let _ = (layer, first, probabilities);
        Ok(())
    }

    /// The residual stream before and after a layer's self-attention, `[tokens, hidden]` f32.
    ///
    /// # Errors
    /// Whatever reading the tensors gives.
    fn residual(&mut self, layer: usize, before: &Tensor, after: &Tensor) -> Result<(), EngineError> {
        let _ = (layer, before, after);
        Ok(())
    }

    /// A bias to add to the attention scores of a layer before the softmax, `[kv_heads, cached tokens]` f32
    /// (−∞ hides a token from a head), or none.
    fn bias(&self, layer: usize, cached: usize) -> Option<Vec<f32>> {
        let _ = (layer, cached);
        None
    }
}

/// Looks at nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}
