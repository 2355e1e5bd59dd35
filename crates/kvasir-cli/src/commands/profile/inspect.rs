//! `kvasir profile inspect`: the contents of a profile, the size of its levels, the cost of decoding.

use std::path::PathBuf;

use clap::Args;

use kvasir_codec::{Profile, ScopeSummary};
use kvasir_types::Level;
use serde::Serialize;

use super::levels::levels_table;
use crate::{
    decode_speed::{self, LevelSpeed},
    error::CliResult,
    inputs,
    output::{bytes, columns, print, print_json},
};

/// Arguments of `kvasir profile inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// The profile. Default: the shipped one.
    file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &InspectArguments) -> CliResult {
    show(&*inputs::profile(arguments.file.as_deref())?, arguments.json)
}

fn show(profile: &Profile, json: bool) -> CliResult {
    // What cannot be decoded is shown all the same.
    let decoding = decode_speed::measure(profile);
    if json {
        print_json(&Inspection { profile: view(profile), decoding: decoding.ok() })
    } else {
        let decoding = decoding.map_or_else(|error| error.to_string(), |levels| decode_speed::table(&levels));
        print(&text(profile, &decoding))
    }
}

/// A profile, and its decoding on this machine.
#[derive(Debug, Serialize)]
struct Inspection {
    #[serde(flatten)]
    profile: ProfileView,
    /// `None` if it cannot be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    decoding: Option<Vec<LevelSpeed>>,
}

/// A profile in numbers.
#[derive(Debug, Serialize)]
pub(crate) struct ProfileView {
    profile_hash: String,
    model_id: String,
    bytes: u64,
    recipe: String,
    note: String,
    trained_tokens: u64,
    held_out_tokens: u64,
    exact_tokens: usize,
    stage_tables: usize,
    trit_tables: usize,
    decode_macs_per_token: u64,
    levels: Vec<LevelView>,
    scopes: Vec<ScopeView>,
}

#[derive(Debug, Serialize)]
struct LevelView {
    bits_per_element: f32,
    nmse: f32,
    /// Measured on the model, if it was.
    kl: Option<f32>,
    /// Predicted from the error by layer and that layer's sensitivity.
    kl_predicted: Option<f32>,
}

#[derive(Debug, Serialize)]
struct ScopeView {
    layers: (usize, usize),
    planes: &'static str,
    heads: usize,
    elements: usize,
    rank: usize,
    rank_by_level: Vec<usize>,
    basis: &'static str,
    predictor: &'static str,
    parameter_bytes: u64,
    decode_macs: u64,
    /// Number of basis rows by bits per entry, from 1.
    rows_by_bits: Vec<usize>,
    /// Loss by level caused by the scope's error.
    loss: Vec<f32>,
}

/// Summarises a profile in numbers.
pub(crate) fn view(profile: &Profile) -> ProfileView {
    let summary = profile.summary();
    let level = |(index, note): (usize, &kvasir_codec::LevelNote)| LevelView {
        bits_per_element: note.bits_per_element,
        nmse: note.nmse,
        kl: note.kl,
        kl_predicted: note.kl.map(|_| profile.loss_of_errors(Level(index as u8))),
    };
    ProfileView {
        profile_hash: summary.hash.to_string(),
        model_id: summary.model_id.to_string(),
        bytes: summary.profile_bytes,
        recipe: summary.training.recipe.clone(),
        note: summary.training.note.clone(),
        trained_tokens: summary.training.tokens,
        held_out_tokens: summary.training.held_out_tokens,
        exact_tokens: summary.exact_tokens,
        stage_tables: summary.stage_tables,
        trit_tables: summary.trit_tables,
        decode_macs_per_token: summary.scopes.iter().map(|scope| scope.decode_macs).sum(),
        levels: summary.levels.iter().enumerate().map(level).collect(),
        scopes: summary.scopes.into_iter().map(scope_view).collect(),
    }
}

fn scope_view(scope: ScopeSummary) -> ScopeView {
    ScopeView {
        layers: scope.layers,
        planes: scope.planes,
        heads: scope.heads,
        elements: scope.elements,
        rank: scope.rank,
        rank_by_level: scope.rank_by_level,
        basis: scope.basis,
        predictor: scope.predictor,
        parameter_bytes: scope.parameter_bytes,
        decode_macs: scope.decode_macs,
        rows_by_bits: scope.rows_by_bits,
        loss: scope.loss,
    }
}

fn text(profile: &Profile, decoding: &str) -> String {
    let view = view(profile);
    let header = [
        "scope",
        "layers",
        "planes",
        "heads",
        "elements",
        "rank",
        "by level",
        "basis",
        "bits of rows",
        "predictor",
        "bytes",
        "MACs/token",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (index, scope) in view.scopes.iter().enumerate() {
        let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join("/");
        rows.push(vec![
            index.to_string(),
            format!("{}–{}", scope.layers.0, scope.layers.1),
            scope.planes.to_owned(),
            scope.heads.to_string(),
            scope.elements.to_string(),
            scope.rank.to_string(),
            list(&scope.rank_by_level),
            scope.basis.to_owned(),
            if scope.rows_by_bits.is_empty() { "–".to_owned() } else { list(&scope.rows_by_bits) },
            scope.predictor.to_owned(),
            scope.parameter_bytes.to_string(),
            scope.decode_macs.to_string(),
        ]);
    }
    format!(
        "profile    {}\nmodel      {}\nsize       {}\nrecipe     {}, {} tokens, {} held out {}\ntables     {} stage, {} trit\nexact      first {} tokens of a context\nproduct    {} multiply-adds per token\n\n{}\n\n{}\n\n{}",
        view.profile_hash,
        view.model_id,
        bytes(view.bytes),
        view.recipe,
        view.trained_tokens,
        view.held_out_tokens,
        view.note,
        view.stage_tables,
        view.trit_tables,
        view.exact_tokens,
        view.decode_macs_per_token,
        levels_table(profile),
        decoding,
        columns(&rows),
    )
}
