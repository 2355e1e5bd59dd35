//! Rotary embeddings: resolved frequencies, and the formulas that generate them.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

use super::precise::{ln, pow};
use crate::limits::ROTARY_DIMS_MAX;

/// Layout of rotary pairs in a head.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// Element `i` pairs with `i + rotary_dims / 2` (Hugging Face Llama).
    Half,
    /// Element `2 i` pairs with `2 i + 1` (original Llama, GPT-J).
    Interleaved,
}

/// A *resolved* rotary embedding: no formula remains that other code could evaluate differently.
///
/// The phase of pair `i` at position `p` is `p × freqs[i] mod 2^64`, in units of `2^-64` turn: exact
/// integers.
///
/// Two ropes are equal if their frequencies are, however they are written.
#[derive(Debug, Clone)]
pub struct Rope {
    /// Layout of pairs in a head.
    pub pairing: Pairing,
    /// First rotated element of a head.
    pub offset: u32,
    /// Frequencies as fractions of a turn, one per pair; `rotary_dims = 2 × freqs.len()`.
    pub freqs: Vec<u64>,
    /// Factor on rotated keys (YaRN's attention factor), positive and finite; 1 if there is none.
    pub attention_factor: f32,
    /// The formula of the frequencies, if known: JSON contains it instead of them if it yields exactly them.
    /// Not part of the model's identity.
    pub formula: Option<RopeFormula>,
}

impl PartialEq for Rope {
    fn eq(&self, other: &Self) -> bool {
        let fields = |r: &Self| (r.pairing, r.offset, r.attention_factor);
        fields(self) == fields(other) && self.freqs == other.freqs
    }
}

/// `freq_i = theta^(-2 i / rotary_dims)` radians per position, scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeFormula {
    /// Rotated elements of a head, even, 2 to [`ROTARY_DIMS_MAX`].
    pub rotary_dims: u32,
    /// Base, above 1.
    pub theta: f64,
    /// Scaling to longer contexts.
    pub scaling: Option<RopeScaling>,
}

/// How frequencies are lowered for contexts longer than in training, with the field names of Hugging Face
/// configurations. Scalings that depend on the length of each request (dynamic NTK) are not included.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum RopeScaling {
    /// All frequencies divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3.1: wavelengths above `original / low_freq_factor` divided by `factor`, those below
    /// `original / high_freq_factor` kept, the others interpolated.
    Llama3 {
        /// Divisor of the lowest frequencies.
        factor: f64,
        /// Wavelengths of the original context above which frequencies are divided.
        low_freq_factor: f64,
        /// Wavelengths of the original context below which frequencies are kept.
        high_freq_factor: f64,
        /// Tokens of a training context.
        original_max_position_embeddings: u64,
    },
    /// YaRN (arXiv 2309.00071): as `Linear` below `beta_slow` turns per training context, unchanged above
    /// `beta_fast`, and a ramp over the pairs in between.
    Yarn {
        /// Divisor of the lowest frequencies.
        factor: f64,
        /// Tokens of a training context.
        original_max_position_embeddings: u64,
        /// Turns above which frequencies are unchanged.
        #[serde(default = "beta_fast", skip_serializing_if = "is_beta_fast")]
        beta_fast: f64,
        /// Turns below which frequencies are divided in full.
        #[serde(default = "beta_slow", skip_serializing_if = "is_beta_slow")]
        beta_slow: f64,
        /// Whether the ramp's ends are whole pairs.
        #[serde(default = "yes", skip_serializing_if = "is_yes")]
        truncate: bool,
    },
    /// LongRoPE (arXiv 2402.13753): a separate factor for each pair. A model has a short and a long list;
    /// this is one of them.
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

/// A formula that does not yield valid frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RopeError {
    /// An odd or too large number of rotated elements.
    #[error("rotary_dims must be even and 2 to {ROTARY_DIMS_MAX}, found {0}")]
    Dims(u32),
    /// A base that does not yield falling frequencies.
    #[error("theta must be above 1 and finite")]
    Theta,
    /// LongRoPE's list does not have one entry per pair.
    #[error("scaling.factors must have one entry for each of {pairs} pairs, found {found}")]
    Factors {
        /// Pairs.
        pairs: usize,
        /// Entries found.
        found: usize,
    },
    /// Parameters that yield an invalid frequency.
    #[error("scaling gives pair {pair} a frequency outside 0 to below one turn per position")]
    Frequency {
        /// The pair.
        pair: usize,
    },
}

impl RopeFormula {
    /// The frequencies, in units of `2^-64` turn per position, equal on every machine.
    ///
    /// # Errors
    /// [`RopeError`] if the parameters do not yield valid ones.
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

    /// Radians per position.
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
                // The pair, as a fraction, that makes this many turns in a training context.
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
                for (pair, (freq, factor)) in plain.iter_mut().zip(factors).enumerate() {
                    // JSON has no number for a factor beyond f32: the rope, once stored, could not be read again.
                    if !factor.is_finite() {
                        return Err(RopeError::Frequency { pair });
                    }
                    *freq /= f64::from(*factor);
                }
            }
        }
        Ok(plain)
    }

    /// The default factor on keys for the scaling: YaRN's `0.1 ln(factor) + 1`, otherwise 1.
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
    /// The plain embedding of base `theta`: `freq_i = theta^(-2 i / rotary_dims)` radians per position.
    ///
    /// # Panics
    /// If `rotary_dims` is odd or not 2 to [`ROTARY_DIMS_MAX`], or `theta` is not above 1.
    pub fn plain(pairing: Pairing, rotary_dims: usize, theta: f64) -> Self {
        let formula = RopeFormula { rotary_dims: rotary_dims as u32, theta, scaling: None };
        Self::of(pairing, formula).expect("the caller's numbers are those of a rotary embedding")
    }

    /// The embedding of a formula, from a head's first element.
    ///
    /// # Errors
    /// [`RopeError`] if the parameters do not yield valid frequencies.
    pub fn of(pairing: Pairing, formula: RopeFormula) -> Result<Self, RopeError> {
        let (freqs, attention_factor) = (formula.freqs()?, formula.attention_factor());
        Ok(Self { pairing, offset: 0, freqs, attention_factor, formula: Some(formula) })
    }

    /// Number of rotated elements of a head.
    pub fn rotary_dims(&self) -> usize {
        2 * self.freqs.len()
    }
}
