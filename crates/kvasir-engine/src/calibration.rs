//! Measures how long prefills take on this machine.

use std::time::Instant;

use kvasir_client::tuning::RecomputeModel;
use kvasir_types::TokenRange;

use crate::{error::EngineError, model::Model};

/// Fits a model of the engine's prefill times from two short prefills of `tokens` (a few hundred). Loads are
/// weighed against it.
///
/// # Errors
/// As [`Model::calculate_kv`].
pub fn calibrate(model: &Model, tokens: &[u32]) -> Result<RecomputeModel, EngineError> {
    let c = model.config();
    let mut recompute = RecomputeModel::from_flops(c.parameters() as f64, c.layers, c.hidden, 2e10);
    for share in [4, 1] {
        let part = &tokens[..tokens.len() / share];
        let started = Instant::now();
        model.calculate_kv(part)?;
        recompute.observe(TokenRange { start: 0, end: part.len() as u64 }, started.elapsed());
    }
    Ok(recompute)
}
