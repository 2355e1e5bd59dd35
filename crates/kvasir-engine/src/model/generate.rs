//! Generation on a cache that may already hold a prefix of the prompt.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use super::{Model, observe::Unobserved};
use crate::{
    error::EngineError,
    logits::{self, softmax},
    paged::PagedKv,
};

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Sampling {
    /// The most probable one; ties go to the smaller id.
    #[default]
    Greedy,
    /// Drawn from the softmax at a temperature, from the `top_k` most probable. Same seed, same text.
    TopK {
        /// Divides the logits; above 0.
        temperature: f32,
        /// Tokens to draw from, at least 1.
        top_k: usize,
        /// Seed of the generator.
        seed: u64,
    },
}

impl Model {
    /// Generates up to `count` tokens after `prompt` (CacheGen's `generate_with_kv`).
    ///
    /// `kv` holds the KV of some prefix of `prompt`, computed here or loaded. The last prompt token is always
    /// recomputed, so a full prefix serves too: the first new token needs its logits, which no cache holds.
    /// Afterwards `kv` holds prompt and answer but for the last new token. Stops early at the context's end.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`], and as [`extend_kv`](Self::extend_kv).
    pub fn generate_with_kv(
        &self,
        kv: &mut PagedKv,
        prompt: &[u32],
        count: usize,
        sampling: &Sampling,
    ) -> Result<Vec<u32>, EngineError> {
        let (last, before) = prompt.split_last().ok_or(EngineError::EmptyPrompt)?;
        kv.truncate(before.len());
        self.extend_kv(kv, &before[kv.len()..])?;
        let mut sampler = Sampler::new(sampling);
        let mut generated = Vec::with_capacity(count);
        let mut next = *last;
        while generated.len() < count && kv.len() < self.config.context {
            let hidden = self.forward(kv, &[next], &mut Unobserved)?;
            next = sampler.choose(hidden.linear(self.weights.head()).values());
            generated.push(next);
        }
        Ok(generated)
    }
}

/// A sampling's state.
#[derive(Debug)]
pub(crate) enum Sampler {
    /// The most probable token.
    Greedy,
    /// Drawn.
    TopK { temperature: f32, top_k: usize, rng: Box<ChaCha8Rng> },
}

impl Sampler {
    pub(crate) fn new(sampling: &Sampling) -> Self {
        match *sampling {
            Sampling::Greedy => Self::Greedy,
            Sampling::TopK { temperature, top_k, seed } => Self::TopK {
                temperature,
                top_k: top_k.max(1),
                rng: Box::new(ChaCha8Rng::seed_from_u64(seed)),
            },
        }
    }

    /// The next token.
    pub(crate) fn choose(&mut self, logits: &[f32]) -> u32 {
        match self {
            Self::Greedy => logits::top1(logits) as u32,
            Self::TopK { temperature, top_k, rng } => {
                let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
                ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
                ids.truncate(*top_k);
                let scaled: Vec<f32> = ids.iter().map(|&id| logits[id as usize] / *temperature).collect();
                let mut left = f64::from(rng.next_u32()) / 2f64.powi(32);
                for (&id, p) in ids.iter().zip(softmax(&scaled)) {
                    left -= p;
                    if left < 0.0 {
                        return id;
                    }
                }
                ids[ids.len() - 1] // rounding left a sliver of probability
            }
        }
    }
}
