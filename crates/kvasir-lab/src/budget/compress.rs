//! Dropping tokens of the *text* before the model sees it.

use kvasir_engine::{EngineError, Model, logits::log_softmax};

/// Keeps the tokens that the model itself found hardest to predict: the token-level step of LLMLingua (arXiv
/// 2310.05736), with the served model as its own judge and no budget controller. The first token stays.
#[derive(Debug, Clone, Copy)]
pub struct SurprisalCompressor<'a> {
    /// The judge.
    pub model: &'a Model,
}

impl SurprisalCompressor<'_> {
    /// About `share` of `tokens`, in order: a shorter prompt, whose cache is an ordinary cache.
    ///
    /// # Errors
    /// Whatever judging the tokens gives.
    pub fn compress(&self, tokens: &[u32], share: f64) -> Result<Vec<u32>, EngineError> {
        let logits = self.model.logits(&mut self.model.new_kv()?, tokens)?;
        let rest = tokens.iter().enumerate().skip(1);
        let mut order: Vec<(usize, f64)> =
            rest.map(|(i, &token)| (i, -log_softmax(logits.row(i - 1))[token as usize])).collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let count = (tokens.len() as f64 * share).round() as usize;
        let mut kept: Vec<usize> = order.iter().take(count.saturating_sub(1)).map(|(i, _)| *i).collect();
        kept.sort_unstable();
        Ok(tokens.first().copied().into_iter().chain(kept.into_iter().map(|i| tokens[i])).collect())
    }
}
