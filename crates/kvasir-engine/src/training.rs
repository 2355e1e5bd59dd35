//! Training data for profiles of this engine's models: texts as KV, and an oracle.

use kvasir_codec::KvBuffer;
use kvasir_train::TrainingContext;

use crate::{error::EngineError, model::Model, quality::KlOracle};

/// Texts that judge for every one that trains; at least one.
const JUDGES_SHARE: usize = 8;
/// Share of an evaluation text that passes through the codec: two thirds. The rest is read over it.
const PREFIX_SHARE: (usize, usize) = (2, 3);
/// Longest judging text: each is read about forty times.
const JUDGE_TOKENS_MAX: usize = 768;

/// Contexts to train on, and a judge of texts that are not among them.
#[derive(Debug)]
pub struct TrainingSet<'a> {
    /// To train on.
    pub contexts: Vec<TrainingContext>,
    /// The judge.
    pub oracle: KlOracle<'a>,
}

impl<'a> TrainingSet<'a> {
    /// Divides texts of a model into contexts and a judge: every ninth text judges.
    ///
    /// `progress` is told the share done, 0 to 1.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`] for fewer than two texts or one of fewer than three tokens, and as
    /// [`Model::calculate_kv`].
    pub fn of_texts(
        model: &'a Model,
        texts: Vec<Vec<u32>>,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, EngineError> {
        let (mut contexts, mut judges, count) = (Vec::new(), Vec::new(), texts.len());
        let shortest = texts.iter().map(Vec::len).min().unwrap_or(0).min(JUDGE_TOKENS_MAX);
        let prefix = shortest * PREFIX_SHARE.0 / PREFIX_SHARE.1;
        for (index, mut tokens) in texts.into_iter().enumerate() {
            if index % (JUDGES_SHARE + 1) == 0 {
                tokens.truncate(JUDGE_TOKENS_MAX);
                judges.push(tokens);
                continue;
            }
            let kv = KvBuffer::from_source(model.spec(), tokens.len(), &model.calculate_kv(&tokens)?);
            contexts.push(TrainingContext { first_position: 0, tokens, kv });
            progress((index + 1) as f32 / count as f32);
        }
        if contexts.is_empty() || prefix == 0 || prefix == shortest {
            return Err(EngineError::EmptyPrompt);
        }
        Ok(Self { contexts, oracle: KlOracle::new(model, judges, prefix) })
    }
}
