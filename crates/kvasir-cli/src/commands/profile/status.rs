//! `kvasir profile status`: a model's profiles at a service.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use kvasir_api::{ErrorCode, ReportedTraining, SampleQuery};
use kvasir_client::{
    limits::PROFILE_ANNOUNCED,
    rest::Client,
    tuning::{ProfileState, StoredProfile, stored_profiles},
};
use kvasir_codec::Profile;
use kvasir_container::ProfileOrigin;
use kvasir_types::{ModelId, ProfileHash};
use serde::Serialize;

use super::retrain::TOKENS_MIN;
use crate::{
    error::CliResult,
    output::{bytes, columns, print, print_json},
    service::{AddressArguments, client, client_error, runtime},
};

/// Arguments of `kvasir profile status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// The model, by its id: 64 hex digits, as `kvasir model spec` prints it.
    #[arg(long, value_name = "ID")]
    model_id: ModelId,
    /// The service. With the role `admin`, the command also shows how much data there is for training.
    #[command(flatten)]
    service: AddressArguments,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct StatusView {
    model_id: ModelId,
    /// The profile of new caches, for clients that are given none.
    in_force: Option<ProfileHash>,
    /// The profile in force comes first.
    profiles: Vec<ProfileView>,
    /// Stored chunks that `profile retrain` may sample, at most 1,024. Absent without the role `admin`.
    sample_chunks: Option<usize>,
    /// The latest trainings that were reported to the replica that answered, newest first.
    trainings: Vec<ReportedTraining>,
    /// The condition for the next profile to come into force.
    next: String,
}

#[derive(Debug, Serialize)]
struct ProfileView {
    profile_hash: ProfileHash,
    state: &'static str,
    bytes: u64,
    /// Time of storage by the store's clock, in milliseconds since 1970.
    stored_at_ms: Option<u64>,
    /// The profile's contents. Absent if this program cannot read it.
    #[serde(flatten)]
    made: Option<MadeView>,
}

/// A profile's own description.
#[derive(Debug, Serialize)]
struct MadeView {
    made: &'static str,
    recipe: String,
    trained_tokens: u64,
    held_out_tokens: u64,
    /// Bits per element of the finest lossy level, as measured when the profile was made.
    bits_per_element: Option<f32>,
    /// Error power of that level relative to the power of the cache.
    nmse: Option<f32>,
    /// Bits per element at quality `transparent`, if the profile was made for that.
    transparent_bits: Option<f32>,
}

impl MadeView {
    fn of(profile: &Profile) -> Self {
        let training = profile.training();
        let origin = ProfileOrigin::of(&training.recipe, &training.note);
        let finest = profile.levels()[..profile.lossy_levels()].last();
        let bits = finest.map(|level| level.bits_per_element);
        Self {
            made: origin.as_str(),
            recipe: training.recipe.clone(),
            trained_tokens: training.tokens,
            held_out_tokens: training.held_out_tokens,
            bits_per_element: bits,
            nmse: finest.map(|level| level.nmse),
            transparent_bits: bits.filter(|_| origin != ProfileOrigin::ByHand),
        }
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &StatusArguments) -> CliResult {
    let client = client(&arguments.service)?;
    let (profiles, sample_chunks, trainings) = runtime()?.block_on(asked(&client, &arguments.model_id))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let view = StatusView {
        model_id: arguments.model_id,
        in_force: profiles.iter().find(|of| of.state == ProfileState::InForce).map(|of| of.info.profile_hash),
        next: next(&profiles, sample_chunks, now),
        profiles: profiles.iter().map(profile_view).collect(),
        sample_chunks,
        trainings,
    };
    if arguments.json { print_json(&view) } else { print(&text(&view, now)) }
}

async fn asked(
    client: &Client,
    model: &ModelId,
) -> CliResult<(Vec<StoredProfile>, Option<usize>, Vec<ReportedTraining>)> {
    let spec = client.model(model).await.map_err(client_error)?;
    let profiles = stored_profiles(client, &spec).await.map_err(client_error)?;
    let sample = match client.sample_chunks(model, SampleQuery::CHUNKS_MAX).await {
        Ok(sample) => Some(sample.chunks.len()),
        Err(error) if error.code() == Some(ErrorCode::Forbidden) => None,
        Err(error) => return Err(client_error(error)),
    };
    let trainings = client.trainings(model).await.map_err(client_error)?.trainings;
    Ok((profiles, sample, trainings))
}

fn profile_view(of: &StoredProfile) -> ProfileView {
    ProfileView {
        profile_hash: of.info.profile_hash,
        state: match of.state {
            ProfileState::InForce => "in_force",
            ProfileState::Announced => "announced",
            ProfileState::Earlier => "earlier",
            ProfileState::PassedOver => "passed_over",
        },
        bytes: of.info.bytes,
        stored_at_ms: of.info.stored_at_ms,
        made: of.profile.as_ref().map(MadeView::of),
    }
}

/// The condition for the next profile to come into force.
fn next(profiles: &[StoredProfile], sample_chunks: Option<usize>, now: Duration) -> String {
    if let Some(of) = profiles.iter().find(|of| of.state == ProfileState::Announced) {
        let stored = Duration::from_millis(of.info.stored_at_ms.unwrap_or(0));
        let left = (stored + PROFILE_ANNOUNCED).saturating_sub(now).as_secs();
        return format!("the announced profile comes into force in {left} s");
    }
    if !profiles.iter().any(|of| of.state == ProfileState::InForce) {
        let next = match profiles.is_empty() {
            true => "the next save makes the model's first profile",
            false => {
                "no profile is in force: the next save of a client of another quality than `exact` makes one"
            }
        };
        return next.to_owned();
    }
    let there = match sample_chunks {
        Some(SampleQuery::CHUNKS_MAX) => format!("{} chunks or more are stored", SampleQuery::CHUNKS_MAX),
        Some(count) => format!("{count} chunks are stored"),
        None => "a credential with the role `admin` sees how much is stored".to_owned(),
    };
    format!("run `kvasir profile retrain`, which needs a sample of {TOKENS_MIN} tokens: {there}")
}

fn text(view: &StatusView, now: Duration) -> String {
    let header = ["profile", "state", "made", "trained on", "size", "stored", "bits/element", "error"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for of in &view.profiles {
        let said = |say: &dyn Fn(&MadeView) -> Option<String>| {
            of.made.as_ref().and_then(say).unwrap_or_else(|| "–".to_owned())
        };
        rows.push(vec![
            of.profile_hash.to_string()[..16].to_owned(),
            of.state.replace('_', " "),
            said(&|made| Some(made.made.replace('_', " "))),
            said(&|made| Some(format!("{} tokens", made.trained_tokens))),
            bytes(of.bytes),
            of.stored_at_ms.map_or_else(|| "–".to_owned(), |at| ago(Duration::from_millis(at), now)),
            said(&|made| Some(format!("{:.2}", made.bits_per_element?))),
            said(&|made| Some(format!("{:.1e}", made.nmse?))),
        ]);
    }
    let table = if view.profiles.is_empty() { String::new() } else { columns(&rows) + "\n" };
    let trainings: String = view.trainings.iter().map(|training| training_line(training, now)).collect();
    format!("model {}\n{table}{trainings}next: {}", view.model_id, view.next)
}

fn training_line(training: &ReportedTraining, now: Duration) -> String {
    let bits = match (training.in_force_bits, training.trained_bits) {
        (Some(before), Some(after)) => format!(", {after:.2} bits/element instead of {before:.2}"),
        _ => String::new(),
    };
    format!(
        "training {}: {}, {} tokens of {} chunks{bits}: {}\n",
        ago(Duration::from_millis(training.received_at_ms), now),
        training.outcome.as_str().replace('_', " "),
        training.sampled_tokens,
        training.sampled_chunks,
        training.reason,
    )
}

fn ago(at: Duration, now: Duration) -> String {
    match now.saturating_sub(at).as_secs() {
        seconds @ 0..120 => format!("{seconds} s ago"),
        seconds @ 120..7_200 => format!("{} min ago", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h ago", seconds / 3_600),
        seconds => format!("{} d ago", seconds / 86_400),
    }
}
