//! The model as the trainer's oracle: the cost of a profile's levels, and the cost of an error by its
//! position.

use std::sync::Arc;

use kvasir_codec::{KvBuffer, KvSink, Profile};
use kvasir_train::QualityOracle;
use kvasir_types::Plane;

use super::{RoundTripError, Samples, measure_levels};
use crate::{error::EngineError, logits::Logits, model::Model, paged::PagedKv};

/// Measures for the profile trainer what its levels cost on held-out contexts of a real model.
#[derive(Debug)]
pub struct KlOracle<'a> {
    model: &'a Model,
    contexts: Vec<Vec<u32>>,
    prefix: usize,
    exact: Vec<ExactRun>,
    error: Option<RoundTripError>,
}

/// A context over its own cache.
#[derive(Debug)]
struct ExactRun {
    kv: KvBuffer,
    logits: Logits,
}

impl<'a> KlOracle<'a> {
    /// Judges on `contexts`, each longer than `prefix` tokens.
    pub fn new(model: &'a Model, contexts: Vec<Vec<u32>>, prefix: usize) -> Self {
        Self { model, contexts, prefix, exact: Vec::new(), error: None }
    }

    /// Why the last judgement was infinite, if it was.
    pub fn error(&self) -> Option<&RoundTripError> {
        self.error.as_ref()
    }

    fn noise_kl(&mut self, layer: usize, plane: Plane, nmse: f32) -> Result<f32, RoundTripError> {
        if self.exact.is_empty() {
            let runs = self.contexts.iter().map(|context| self.run_exactly(context));
            self.exact = runs.collect::<Result<_, _>>()?;
        }
        let mut samples = Samples::default();
        for (context, exact) in self.contexts.iter().zip(&self.exact) {
            let suffix = &context[self.prefix..];
            let mut noisy = exact.kv.clone();
            add_noise(&mut noisy, self.model, (layer, plane), nmse);
            let mut kv = self.paged(&noisy)?;
            samples.add(&exact.logits, &self.model.logits(&mut kv, suffix)?, suffix);
        }
        Ok(samples.summary().kl.mean as f32)
    }

    fn run_exactly(&self, context: &[u32]) -> Result<ExactRun, RoundTripError> {
        let (before, suffix) = context.split_at_checked(self.prefix).ok_or(EngineError::EmptyPrompt)?;
        let mut kv = self.model.calculate_kv(before)?;
        let held = KvBuffer::from_source(self.model.spec(), before.len(), &kv);
        Ok(ExactRun { kv: held, logits: self.model.logits(&mut kv, suffix)? })
    }

    fn paged(&self, kv: &KvBuffer) -> Result<PagedKv, EngineError> {
        let mut paged = self.model.new_kv()?;
        paged.reserve(kv.tokens())?;
        let mut sink = paged.sink(0)?;
        for layer in 0..self.model.spec().layers.len() {
            for plane in Plane::ALL {
                for head in 0..kv.heads(layer, plane) {
                    sink.write(layer, plane, head, 0, kv.rows(layer, plane, head));
                }
            }
        }
        sink.finish()?;
        paged.commit(kv.tokens())?;
        Ok(paged)
    }
}

/// Adds reproducible white noise of `nmse` times the power of a plane about its mean.
fn add_noise(kv: &mut KvBuffer, model: &Model, (layer, plane): (usize, Plane), nmse: f32) {
    let (heads, dim) = model.spec().layers[layer].layout.planes()[plane as usize];
    let (mut power, mut count) = (0f64, 0usize);
    for head in 0..heads {
        let rows = kv.rows(layer, plane, head);
        for element in 0..dim {
            let column = rows.iter().skip(element).step_by(dim).map(|x| f64::from(*x));
            let tokens = (rows.len() / dim).max(1);
            let mean = column.clone().sum::<f64>() / tokens as f64;
            power += column.map(|x| (x - mean).powi(2)).sum::<f64>();
            count += tokens;
        }
    }
    let sigma = (f64::from(nmse) * power / count.max(1) as f64).sqrt() as f32;
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ ((2 * layer + plane as usize) as u64) << 32;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    };
    for head in 0..heads {
        // Twelve uniform numbers have variance 1 and are nearly Gaussian.
        let rows = kv.rows_mut(layer, plane, head);
        rows.iter_mut().for_each(|x| *x += sigma * (0..12).map(|_| uniform()).sum::<f32>());
    }
}

impl QualityOracle for KlOracle<'_> {
    /// Infinite if the profile cannot be run at all, so that the trainer never chooses it.
    fn kl_by_level(&mut self, profile: &Profile) -> Vec<f32> {
        let contexts: Vec<&[u32]> = self.contexts.iter().map(Vec::as_slice).collect();
        match measure_levels(self.model, &Arc::new(profile.clone()), &contexts, self.prefix) {
            Ok(levels) => levels.iter().map(|level| level.quality.kl.mean as f32).collect(),
            Err(error) => {
                self.error = Some(error);
                vec![f32::INFINITY; profile.level_count()]
            }
        }
    }

    fn kl_of_noise(&mut self, layer: usize, plane: Plane, nmse: f32) -> Option<f32> {
        self.noise_kl(layer, plane, nmse).map_err(|error| self.error = Some(error)).ok()
    }
}
