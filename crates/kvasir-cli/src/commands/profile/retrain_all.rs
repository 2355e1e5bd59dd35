//! `kvasir profile retrain --all`: trains for each model of a tenant that has stored enough since the last time.

use kvasir_api::{ModelInfo, ProfileInfo, ReportedTraining, TrainingOutcome};
use kvasir_client::{Error, rest::Client};
use kvasir_types::ModelId;
use serde::Serialize;
use tokio::runtime::Runtime;

use super::retrain::{Comparison, RetrainArguments, retrain};
use crate::{
    error::{CliError, CliResult, Exit},
    output::{print, print_json},
    progress::note,
    service::{client, client_error},
};

/// Of a sample of which fewer than one chunk in this many are new, much the same would be trained again.
const NEW_ONE_IN: usize = 2;

#[derive(Debug, Serialize)]
struct AllView {
    models: Vec<ModelView>,
}

/// How it ended for a model.
#[derive(Debug, Serialize)]
struct ModelView {
    model_id: ModelId,
    model_name: String,
    outcome: Outcome,
    why: String,
    /// Absent if nothing was trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    comparison: Option<Comparison>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Published,
    NotPublished,
    Failed,
}

impl ModelView {
    fn new(model: ModelInfo, ended: CliResult<Comparison>) -> Self {
        let (outcome, why) = match &ended {
            Ok(Comparison { published: true, why, .. }) => (Outcome::Published, why.clone()),
            Ok(Comparison { why, .. }) => (Outcome::NotPublished, why.clone()),
            Err(error) if error.exit() == Exit::Nothing => {
                (Outcome::NotPublished, format!("not published: {}", error.message()))
            }
            Err(error) => (Outcome::Failed, format!("failed: {}", error.message())),
        };
        let ModelInfo { model_id, model_name, .. } = model;
        Self { model_id, model_name, outcome, why, comparison: ended.ok() }
    }

    /// One line: names are whatever was registered, and errors may quote answers of others.
    fn line(&self) -> String {
        let Self { model_id, model_name, why, .. } = self;
        format!("{model_id} ({model_name}): {why}").replace(char::is_control, " ")
    }
}

/// Trains for the models one after the other, and prints how it ended for each.
pub(super) fn run(arguments: &RetrainArguments, runtime: &Runtime) -> CliResult {
    let client = client(&arguments.service)?;
    let listed = runtime.block_on(client.list_models()).map_err(client_error)?.models;
    let count = listed.len();
    if count == 0 && !arguments.json {
        return print("the tenant has no models");
    }
    let (mut models, mut failures) = (Vec::with_capacity(count), Vec::new());
    for model in listed {
        note(&format!("model {}", model.model_id));
        let ended = retrain_if_new(arguments, runtime, &client, &model.model_id);
        let failure = ended.as_ref().err().map(CliError::exit).filter(|exit| *exit != Exit::Nothing);
        failures.extend(failure);
        let view = ModelView::new(model, ended);
        if !arguments.json {
            print(&view.line())?;
        }
        models.push(view);
        // Where the service is away, all others would fail, each after its retries.
        if failure == Some(Exit::Unavailable) && runtime.block_on(client.list_models()).is_err() {
            break;
        }
    }
    let tried = models.len();
    if arguments.json {
        print_json(&AllView { models })?;
    }
    verdict(&failures, tried, count)
}

/// The first failure decides the exit code; that a training is not worth it is no failure.
fn verdict(failures: &[Exit], tried: usize, models: usize) -> CliResult {
    let Some(exit) = failures.first() else { return Ok(()) };
    let mut message = format!("{} of {tried} models failed", failures.len());
    if tried < models {
        message += &format!(", and {} were not tried: the service is away", models - tried);
    }
    let advice = "Their lines say why. `kvasir profile retrain --model-id ID` tries one of them again.";
    Err(CliError::new(*exit, message, advice))
}

/// Trains for a model, unless too little was stored since the last time: [`Exit::Nothing`].
fn retrain_if_new(
    arguments: &RetrainArguments,
    runtime: &Runtime,
    client: &Client,
    model_id: &ModelId,
) -> CliResult<Comparison> {
    let little = runtime.block_on(little_new(client, model_id, arguments.chunks.into()));
    match little.map_err(client_error)? {
        Some(why) => Err(CliError::new(Exit::Nothing, why, "")),
        None => retrain(arguments, runtime, model_id),
    }
}

/// Why another training would see little that the last one did not, if that is so.
async fn little_new(client: &Client, model_id: &ModelId, chunks: usize) -> Result<Option<String>, Error> {
    let profiles = client.list_profiles(model_id).await?.profiles;
    let trainings = client.trainings(model_id).await?.trainings;
    let Some(last) = last_training(&profiles, &trainings) else { return Ok(None) };
    Ok(little_since(last, &client.sample_chunks(model_id, chunks).await?.stored_at_ms))
}

/// When the newest profile was stored, or a later training ended without one, in milliseconds since 1970. A failure to
/// compare or to store what was trained does not count: it may not happen again. A first profile counts, and all
/// chunks are newer.
fn last_training(profiles: &[ProfileInfo], trainings: &[ReportedTraining]) -> Option<u64> {
    let stored = profiles.iter().filter_map(|profile| profile.stored_at_ms);
    let in_vain = trainings.iter().filter(|training| match training.outcome {
        TrainingOutcome::Refused => true,
        TrainingOutcome::Failed => training.trained.is_none(),
        TrainingOutcome::Published | TrainingOutcome::TooFewTokens => false,
    });
    stored.chain(in_vain.map(|training| training.received_at_ms)).max()
}

fn little_since(last: u64, stored_at_ms: &[u64]) -> Option<String> {
    let (new, all) = (stored_at_ms.iter().filter(|at| **at >= last).count(), stored_at_ms.len());
    (new * NEW_ONE_IN < all)
        .then(|| format!("only {new} of {all} sampled chunks were stored since the last training"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training(received_at_ms: u64, outcome: TrainingOutcome, is_trained: bool) -> ReportedTraining {
        let hash = [1; 32].into();
        ReportedTraining {
            received_at_ms,
            outcome,
            reason: String::new(),
            sampled_chunks: 4,
            sampled_tokens: 2_048,
            in_force: hash,
            trained: is_trained.then_some(hash),
            held_out_chunks: 0,
            in_force_bits: None,
            trained_bits: None,
        }
    }

    #[test]
    fn a_model_is_trained_again_once_half_of_its_sample_is_new() {
        let profile = |at| ProfileInfo { profile_hash: [1; 32].into(), bytes: 1, stored_at_ms: at };
        assert_eq!(last_training(&[], &[]), None);
        let profiles = [profile(Some(10)), profile(None), profile(Some(20))];
        assert_eq!(last_training(&profiles, &[]), Some(20));
        let refused = training(30, TrainingOutcome::Refused, true);
        let impossible = training(40, TrainingOutcome::Failed, false);
        // They are tried again.
        let not_stored = training(50, TrainingOutcome::Failed, true);
        let few = training(60, TrainingOutcome::TooFewTokens, false);
        assert_eq!(last_training(&profiles, &[few.clone(), not_stored, refused.clone()]), Some(30));
        assert_eq!(last_training(&profiles, &[few, impossible, refused]), Some(40));

        assert_eq!(little_since(20, &[20, 21, 5, 6]), None);
        assert!(little_since(20, &[20, 19, 5, 6]).is_some_and(|why| why.contains("only 1 of 4")));
        assert_eq!(little_since(20, &[]), None, "the service does not tell");
    }

    #[test]
    fn a_training_that_is_not_worth_it_is_no_failure() {
        let model = || ModelInfo {
            model_id: [2; 32].into(),
            model_name: "a\u{1b}b".to_owned(),
            revision: "1".to_owned(),
            lora_name: None,
        };
        let ended = |exit| ModelView::new(model(), Err(CliError::new(exit, "one\ntwo", "")));
        let little = ended(Exit::Nothing);
        assert_eq!(little.outcome, Outcome::NotPublished);
        assert!(little.line().ends_with(" (a b): not published: one two"), "{}", little.line());
        assert_eq!(ended(Exit::Unavailable).outcome, Outcome::Failed);
        assert!(verdict(&[], 2, 2).is_ok());
        let failed = verdict(&[Exit::Unavailable, Exit::Data], 3, 3).expect_err("two failed");
        assert_eq!((failed.exit(), failed.message()), (Exit::Unavailable, "2 of 3 models failed"));
        let away = verdict(&[Exit::Unavailable], 2, 9).expect_err("one failed");
        assert_eq!(away.message(), "1 of 2 models failed, and 7 were not tried: the service is away");
        let json = serde_json::to_value(&little).expect("serializes");
        assert!(json.get("comparison").is_none(), "{json}");
    }
}
