//! Rotary embeddings: resolved frequencies, and the formulas that give them.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

use super::precise::{ln, pow};
use crate::limits::ROTARY_DIMS_MAX;

/// How rotary pairs lie in a head.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// Element `i` pairs with `i + rotary_dims / 2` (Hugging Face Llama).
    Half,
    /// Element `2 i` pairs with `2 i + 1` (original Llama, GPT-J).
    Interleaved,
}

/// A *resolved* rotary embedding: no formula is left to be re-derived differently elsewhere.
///
/// Phase of pair `i` at position `p` is `p × freqs[i] mod 2^64`, in units of `2^-64` turn: exact integers.
///
/// Two ropes are equal where their frequencies are, however those are written.
#[derive(Debug, Clone)]
pub struct Rope {
    /// How pairs lie in a head.
    pub pairing: Pairing,
    /// First rotated element of a head.
    pub offset: u32,
    /// Frequencies as fractions of a turn, one per pair; `rotary_dims = 2 × freqs.len()`.
    pub freqs: Vec<u64>,
    /// Factor on rotated keys (YaRN's attention factor), positive and finite; 1 where there is none.
    pub attention_factor: f32,
    /// What gave the frequencies, if known: JSON has it instead of them while it gives exactly them. No part of
    /// the model's identity.
    pub formula: Option<RopeFormula>,
}

impl PartialEq for Rope {
    fn eq(&self, other: &Self) -> bool {
        let fields = |r: &Self| (r.pairing, r.offset, r.attention_factor);
        fields(self) == fields(other) && self.freqs == other.freqs
    }
}

/// `freq_i = theta^(-2 i / rotary_dims)` radians a position, scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeFormula {
    /// Rotated elements of a head, even, 2 to [`ROTARY_DIMS_MAX`].
    pub rotary_dims: u32,
    /// Base, above 1.
    pub theta: f64,
    /// What stretches it to longer contexts.
    pub scaling: Option<RopeScaling>,
}

/// How frequencies are lowered for contexts longer than those of training, with the fields' names in Hugging Face
/// configurations. Those that depend on the length of each request (dynamic NTK) are none of them.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// All divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3.1: wavelengths above `original / low_freq_factor` divided by `factor`, those below
    /// `original / high_freq_factor` kept, between them interpolated.
    Llama3 {
        /// Divisor of the lowest frequencies.
        factor: f64,
        /// Wavelengths of the original context above which all is divided.
        low_freq_factor: f64,
        /// Wavelengths of the original context below which nothing is.
        high_freq_factor: f64,
        /// Tokens of a training context.
        original_max_position_embeddings: u64,
    },
    /// YaRN (arXiv 2309.00071): as `Linear` below `beta_slow` turns a training context, as they are above
    /// `beta_fast`, between them a ramp over the pairs.
    Yarn {
        /// Divisor of the lowest frequencies.
        factor: f64,
        /// Tokens of a training context.
        original_max_position_embeddings: u64,
        /// Turns above which nothing is divided.
        #[serde(default = "beta_fast", skip_serializing_if = "is_beta_fast")]
        beta_fast: f64,
        /// Turns below which all is.
        #[serde(default = "beta_slow", skip_serializing_if = "is_beta_slow")]
        beta_slow: f64,
        /// Whether the ramp's ends are whole pairs.
        #[serde(default = "yes", skip_serializing_if = "is_yes")]
        truncate: bool,
    },
    /// LongRoPE (arXiv 2402.13753): each pair divided by a factor of its own, of which a model has a short and a
    /// long list; these are one of them.
    Longrope {
        /// Divisors, one per pair.
        factors: Vec<f32>,
    },
}

fn beta_fast() -> f64 {
    32.0
}

fn beta_slow() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}

fn is_beta_fast(beta: &f64) -> bool {
    *beta == beta_fast()
}

fn is_beta_slow(beta: &f64) -> bool {
    *beta == beta_slow()
}

fn is_yes(flag: &bool) -> bool {
    *flag
}

/// A formula that gives no frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RopeError {
    /// An odd or absurd number of rotated elements.
    #[error("rotary_dims must be even and 2 to {ROTARY_DIMS_MAX}, found {0}")]
    Dims(u32),
    /// A base that gives no falling frequencies.
    #[error("theta must be above 1 and finite")]
    Theta,
    /// LongRoPE's list is not as long as there are pairs.
    #[error("scaling.factors must have one entry for each of {pairs} pairs, found {found}")]
    Factors {
        /// Pairs.
        pairs: usize,
        /// Entries found.
        found: usize,
    },
    /// Numbers that give a frequency which is none.
    #[error("scaling gives pair {pair} no frequency from 0 to below a turn a position")]
    Frequency {
        /// The pair.
        pair: usize,
    },
}

impl RopeFormula {
    /// The frequencies, in units of `2^-64` turn a position, alike on every machine.
    ///
    /// # Errors
    /// [`RopeError`] where the numbers give none.
    pub fn freqs(&self) -> Result<Vec<u64>, RopeError> {
        if !self.rotary_dims.is_multiple_of(2) || !(2..=ROTARY_DIMS_MAX).contains(&self.rotary_dims) {
            return Err(RopeError::Dims(self.rotary_dims));
        }
        if !(self.theta > 1.0 && self.theta.is_finite()) {
            return Err(RopeError::Theta);
        }
        let dims = f64::from(self.rotary_dims);
        let plain = (0..self.rotary_dims / 2).map(|i| pow(self.theta, -2.0 * f64::from(i) / dims)).collect();
        let turn = 2f64.powi(64) / TAU;
        let units = |(pair, radians): (usize, f64)| {
            if (0.0..TAU).contains(&radians) {
                Ok((radians * turn) as u64)
            } else {
                Err(RopeError::Frequency { pair })
            }
        };
        self.scaled(plain)?.into_iter().enumerate().map(units).collect()
    }

    /// Radians a position.
    fn scaled(&self, mut plain: Vec<f64>) -> Result<Vec<f64>, RopeError> {
        match &self.scaling {
            None => {}
            Some(RopeScaling::Linear { factor }) => plain.iter_mut().for_each(|f| *f /= factor),
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings,
            }) => {
                let original = *original_max_position_embeddings as f64;
                for freq in &mut plain {
                    let waves = original * *freq / TAU; // wavelengths in a training context
                    *freq = if waves < *low {
                        *freq / factor
                    } else if waves > *high {
                        *freq
                    } else {
                        let smooth = (waves - low) / (high - low);
                        (1.0 - smooth) * *freq / factor + smooth * *freq
                    };
                }
            }
            Some(RopeScaling::Yarn {
                factor,
                original_max_position_embeddings,
                beta_fast,
                beta_slow,
                truncate,
            }) => {
                let dims = f64::from(self.rotary_dims);
                let original = *original_max_position_embeddings as f64;
                // The pair, a fraction, that makes so many turns in a training context.
                let pair = |turns: f64| dims * ln(original / (turns * TAU)) / (2.0 * ln(self.theta));
                let (first, last) = (pair(*beta_fast), pair(*beta_slow));
                let (first, last) = if *truncate { (first.floor(), last.ceil()) } else { (first, last) };
                let (first, last) = (first.max(0.0), last.min(dims - 1.0));
                let width = if first == last { 0.001 } else { last - first };
                for (i, freq) in plain.iter_mut().enumerate() {
                    let interpolated = ((i as f64 - first) / width).clamp(0.0, 1.0);
                    *freq = *freq / factor * interpolated + *freq * (1.0 - interpolated);
                }
            }
            Some(RopeScaling::Longrope { factors }) => {
                if factors.len() != plain.len() {
                    return Err(RopeError::Factors { pairs: plain.len(), found: factors.len() });
                }
                plain.iter_mut().zip(factors).for_each(|(freq, factor)| *freq /= f64::from(*factor));
            }
        }
        Ok(plain)
    }

    /// The factor on keys that goes with the scaling where nothing else is said: YaRN's `0.1 ln(factor) + 1`, else 1.
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            Some(RopeScaling::Yarn { factor, .. }) => yarn_magnitude(factor, 1.0) as f32,
            _ => 1.0,
        }
    }
}

/// YaRN's `0.1 × weight × ln(factor) + 1`.
pub(super) fn yarn_magnitude(factor: f64, weight: f64) -> f64 {
    if factor > 1.0 && factor.is_finite() { 0.1 * weight * ln(factor) + 1.0 } else { 1.0 }
}

impl Rope {
    /// The plain embedding of base `theta`: `freq_i = theta^(-2 i / rotary_dims)` radians a position.
    ///
    /// # Panics
    /// Where `rotary_dims` is odd or not 2 to [`ROTARY_DIMS_MAX`], or `theta` not above 1.
    pub fn plain(pairing: Pairing, rotary_dims: usize, theta: f64) -> Self {
        let formula = RopeFormula { rotary_dims: rotary_dims as u32, theta, scaling: None };
        Self::of(pairing, formula).expect("the caller's numbers are those of a rotary embedding")
    }

    /// The embedding of a formula, from a head's first element on.
    ///
    /// # Errors
    /// [`RopeError`] where the numbers give no frequencies.
    pub fn of(pairing: Pairing, formula: RopeFormula) -> Result<Self, RopeError> {
        let (freqs, attention_factor) = (formula.freqs()?, formula.attention_factor());
        Ok(Self { pairing, offset: 0, freqs, attention_factor, formula: Some(formula) })
    }

    /// Number of rotated elements of a head.
    pub fn rotary_dims(&self) -> usize {
        2 * self.freqs.len()
    }
}
