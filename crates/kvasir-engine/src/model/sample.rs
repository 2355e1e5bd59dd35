//! Texts sampled from the model itself: training data for a profile when no other text may be used.

use super::{Model, StepItem, generate::Sampler, generate::Sampling};
use crate::error::EngineError;

/// Contexts that grow together.
const BATCH: usize = 16;

impl Model {
    /// Draws `count` texts of `tokens` tokens from the model at temperature 1; each starts with a different
    /// token. The same seed gives the same texts on the same kind of machine.
    ///
    /// `progress` is told the share done, 0 to 1.
    ///
    /// # Errors
    /// [`EngineError::ContextLength`] where `tokens` exceeds the model's context.
    pub fn sample_texts(
        &self,
        count: usize,
        tokens: usize,
        seed: u64,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Vec<Vec<u32>>, EngineError> {
        let mut texts = Vec::with_capacity(count);
        while texts.len() < count {
            let batch = BATCH.min(count - texts.len());
            let done = texts.len();
            let mut tell = |share: f32| progress((done as f32 + share * batch as f32) / count as f32);
            texts.extend(self.sample_batch(done, batch, tokens, seed, &mut tell)?);
        }
        Ok(texts)
    }

    fn sample_batch(
        &self,
        first: usize,
        count: usize,
        tokens: usize,
        seed: u64,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Vec<Vec<u32>>, EngineError> {
        let vocab = self.config().vocab;
        let own =
            |index: usize| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add((first + index) as u64);
        let sampling = |index| Sampling::TopK { temperature: 1.0, top_k: vocab, seed: own(index) };
        let mut samplers: Vec<Sampler> = (0..count).map(|index| Sampler::new(&sampling(index))).collect();
        // Flat logits: the first token is any.
        let mut texts: Vec<Vec<u32>> =
            samplers.iter_mut().map(|s| vec![s.choose(&vec![0.0; vocab])]).collect();
        let mut caches = (0..count).map(|_| self.new_kv()).collect::<Result<Vec<_>, _>>()?;
        for position in 1..tokens {
            let mut items: Vec<StepItem<'_>> = (caches.iter_mut().zip(&texts))
                .map(|(kv, text)| StepItem { kv, tokens: &text[position - 1..] })
                .collect();
            let logits = self.step(&mut items)?;
            for ((text, sampler), logits) in texts.iter_mut().zip(&mut samplers).zip(&logits) {
                text.push(sampler.choose(logits));
            }
            progress(position as f32 / tokens as f32);
        }
        Ok(texts)
    }
}
