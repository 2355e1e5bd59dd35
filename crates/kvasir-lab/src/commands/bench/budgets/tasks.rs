//! Questions about contexts, over exact, coded and thinned caches.

use std::sync::Arc;

use crate::budget::{H2o, Keep, PrefixStatistics, StreamingLlm, Thinned, TokenPolicy};
use crate::quality::tasks::{Task, TaskKind, exact_match, f1};
use kvasir_codec::Profile;
use kvasir_engine::{
    Model, TINY_PROFILE, Unobserved,
    quality::{Estimate, round_trip},
};
use serde::Serialize;

use super::case::HISTORY;
use kvasir_cli::{
    error::{CliError, CliResult},
    shipped::engine_error,
};

/// Questions of a kind.
pub(super) const COUNT: usize = 20;
/// Words of a context.
const WORDS: usize = 220;
/// First seed; the others follow.
const SEED: u64 = 1;

/// One kind of question over one kind of cache.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct TaskRow {
    /// Which cache.
    pub(super) cache: String,
    /// Which question.
    pub(super) kind: TaskKind,
    /// How many.
    pub(super) asked: usize,
    /// Share of right answers.
    pub(super) right: Estimate,
    /// Mean F1.
    pub(super) f1: Estimate,
}

/// Asks `count` questions of each kind over exact caches, ours at every level, StreamingLLM's and H2O's.
pub(super) fn ask(
    model: &Model,
    count: usize,
    share: f64,
    progress: &mut dyn FnMut(f32),
) -> CliResult<Vec<TaskRow>> {
    let profile = Arc::new(Profile::from_bytes(TINY_PROFILE).map_err(CliError::internal)?);
    let policies: [&dyn TokenPolicy; 2] = [&StreamingLlm { sinks: 4 }, &H2o { recent_share: 0.5 }];
    let mut rows = Vec::new();
    for (number, kind) in TaskKind::ALL.into_iter().enumerate() {
        let mut scores: Vec<(String, Vec<(bool, f64)>)> = Vec::new();
        for index in 0..count {
            let task = Task::new(kind, WORDS, SEED + index as u64);
            for (at, (cache, said)) in
                answers(model, &profile, &policies, &task, share)?.into_iter().enumerate()
            {
                if scores.len() == at {
                    scores.push((cache, Vec::new()));
                }
                scores[at].1.push((exact_match(&said, &task.answer), f1(&said, &task.answer)));
            }
            progress((number * count + index) as f32 / (3 * count) as f32);
        }
        rows.extend(scores.into_iter().map(|(cache, scores)| {
            let right = scores.iter().filter(|(right, _)| *right).count();
            let f1: Vec<f64> = scores.iter().map(|(_, f1)| *f1).collect();
            let right = Estimate::of_proportion(right, scores.len());
            TaskRow { cache, kind, asked: scores.len(), right, f1: Estimate::of_mean(&f1) }
        }));
    }
    Ok(rows)
}

/// The model's answers over every cache of a task's context.
fn answers(
    model: &Model,
    profile: &Arc<Profile>,
    policies: &[&dyn TokenPolicy],
    task: &Task,
    share: f64,
) -> CliResult<Vec<(String, String)>> {
    let context = model.tokenizer().encode(&task.context).map_err(engine_error)?;
    let mut kv = model.new_kv().map_err(engine_error)?;
    let statistics = PrefixStatistics::gather(model, &mut kv, &context, HISTORY).map_err(engine_error)?;
    let mut said = vec![("exact".to_owned(), task.ask(model, &kv, &mut Unobserved).map_err(engine_error)?)];
    for decoded in round_trip(model, profile, &context, &kv).map_err(CliError::internal)? {
        let answer = task.ask(model, &decoded.kv, &mut Unobserved).map_err(engine_error)?;
        said.push((format!("level {}", decoded.level.0), answer));
    }
    let budget = (context.len() as f64 * share).round() as usize;
    for policy in policies {
        let keep = Keep::choose(&statistics, *policy, &vec![budget; statistics.layers()]);
        let answer = task.ask(model, &kv, &mut Thinned(&keep)).map_err(engine_error)?;
        said.push((policy.name().to_owned(), answer));
    }
    Ok(said)
}
