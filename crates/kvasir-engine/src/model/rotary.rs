//! Rotary embedding from the resolved frequencies of a [`Rope`]: the phase of a pair is an exact integer.

use candle_core::{D, Device, Tensor};
use kvasir_types::Rope;

use crate::error::EngineError;

/// Cosines and sines of every position of the context, `[context, rotary_dims / 2]` each.
#[derive(Debug)]
pub(super) struct RotaryTable {
    cos: Tensor,
    sin: Tensor,
}

impl RotaryTable {
    /// Tabulates `rope` (half-split pairing over whole heads) for positions `0..context`.
    pub(super) fn new(rope: &Rope, context: usize, device: &Device) -> Result<Self, EngineError> {
        let pairs = rope.freqs.len();
        let angles = (0..context as u64).flat_map(|position| {
            rope.freqs.iter().map(move |&freq| {
                let phase = position.wrapping_mul(freq); // exact, in units of 2^-64 turn
                phase as f64 * (std::f64::consts::TAU / 2f64.powi(64))
            })
        });
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles.map(|a| (a.cos() as f32, a.sin() as f32)).unzip();
        Ok(Self {
            cos: Tensor::from_vec(cos, (context, 1, pairs), device)?,
            sin: Tensor::from_vec(sin, (context, 1, pairs), device)?,
        })
    }

    /// Rotates `x` `[tokens, heads, head_dim]`, whose first token stands at `position`.
    pub(super) fn rotate(&self, x: &Tensor, position: usize) -> Result<Tensor, EngineError> {
        let (tokens, _, head_dim) = x.dims3()?;
        let (cos, sin) = (self.cos.narrow(0, position, tokens)?, self.sin.narrow(0, position, tokens)?);
        let (a, b) =
            (x.narrow(D::Minus1, 0, head_dim / 2)?, x.narrow(D::Minus1, head_dim / 2, head_dim / 2)?);
        let rotated_a = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let rotated_b = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
        Ok(Tensor::cat(&[rotated_a, rotated_b], D::Minus1)?)
    }
}
