//! `kvasir-lab bench ablation`: the value of every feature of a profile.

use std::path::PathBuf;

use crate::quality::{Ablation, Ground, Options, QUALITIES, Text, ablate, cases};
use clap::Args;
use kvasir_engine::{Model, training::TrainingSet};
use kvasir_train::BasisRecipe;

use serde::{Deserialize, Serialize};

use super::quality::bench_error;
use crate::commands::report::write_report;
use kvasir_cli::{
    error::{CliError, CliResult, read_file},
    output::{columns, print, print_json},
    progress::Step,
    shipped::{self, engine_error},
    training::{CONTEXTS_MAX, TextSource, training_texts},
};

/// Settings of the shipped profile: factors of the two tokens, their bits, shares of weights and
/// multiply-adds.
const FACTORS: ([usize; 2], u8) = ([128, 64], 4);
const BUDGETS: (f64, f64) = (0.10, 0.25);

/// Arguments of `kvasir-lab bench ablation`.
#[derive(Debug, Args)]
pub(crate) struct AblationArguments {
    /// Text to measure on.
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Texts to train on, in addition to the model's own.
    #[arg(long, value_name = "FILE")]
    train_text: Vec<PathBuf>,
    /// Maximum number of contexts to take from those texts.
    #[arg(long, value_name = "N", default_value_t = CONTEXTS_MAX)]
    contexts: usize,
    /// Contexts that the model writes itself to train on.
    #[arg(long, value_name = "N", default_value_t = 32)]
    own_texts: usize,
    /// Seed of those contexts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Windows to measure on: 768 tokens of each go through the codec, the next 256 measure the quality.
    #[arg(long, value_name = "N", default_value_t = 16)]
    windows: usize,
    /// Only features whose name contains this text; the base always runs.
    #[arg(long, value_name = "TEXT")]
    feature: Vec<String>,
    /// The JSON of an earlier run with the same settings: its rows join this run's.
    #[arg(long, value_name = "FILE")]
    rows: Vec<PathBuf>,
    /// Folder for ablation.json.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result as one JSON document.
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    windows: usize,
    positions: usize,
    ablations: Vec<Ablation>,
}

/// Runs the command.
pub(crate) fn run(arguments: &AblationArguments) -> CliResult {
    let mut report = measured(arguments)?;
    for path in &arguments.rows {
        let earlier: Report =
            serde_json::from_slice(&read_file(path)?).map_err(|error| CliError::data(path, error))?;
        for row in earlier.ablations {
            if report.ablations.iter().all(|known| known.name != row.name) {
                report.ablations.push(row);
            }
        }
    }
    if let Some(folder) = &arguments.out {
        write_report(folder, "ablation", &report, &[])?;
    }
    if arguments.json { print_json(&report) } else { print(&columns(&table(&report))) }
}

fn measured(arguments: &AblationArguments) -> CliResult<Report> {
    let model = shipped::model()?;
    let (prefix, suffix) = (768, 256);
    let read = String::from_utf8(read_file(&arguments.text)?)
        .map_err(|_| CliError::data(&arguments.text, "the text is not UTF-8; convert it first"))?;
    let domain = arguments.text.file_stem().unwrap_or_default().to_string_lossy();
    let text = Text::new(&model, &domain, &read, arguments.windows, prefix + suffix).map_err(bench_error)?;
    let step = Step::start("texts and their KV");
    let AblationArguments { train_text: files, contexts, own_texts: own, seed, .. } = arguments;
    let source = TextSource { files, contexts: *contexts, own: *own, seed: *seed };
    let texts = training_texts(&model, source, &step)?;
    let set = TrainingSet::of_texts(&model, texts, &mut |part| step.at("computing KV", part));
    let TrainingSet { contexts, mut oracle } = set.map_err(engine_error)?;
    step.done(&format!("{} contexts", contexts.len()));
    let mut cases = cases(&shipped_recipe(&model), model.config().layers);
    let wanted = |feature: &str| arguments.feature.iter().any(|part| feature.contains(part.as_str()));
    cases.retain(|case| arguments.feature.is_empty() || case.feature == "base" || wanted(case.feature));
    let step = Step::start("cases");
    let ground = Ground { model: &model, contexts: &contexts, text: &text };
    let options = Options { prefix, chunk_tokens: vec![prefix] };
    let report = |ablations: &[Ablation]| {
        let windows = text.windows.len();
        Report { windows, positions: suffix * windows, ablations: ablations.to_vec() }
    };
    let write = |ablations: &[Ablation]| match &arguments.out {
        Some(folder) => write_report(folder, "ablation", &report(ablations), &[]),
        None => Ok(()),
    };
    // Report a folder that is not writable before the hours of work, not after them.
    write(&[])?;
    let mut written = Ok(());
    let (mut tell, mut found) =
        (|what: &str, at: f32| step.at(what, at), |all: &[Ablation]| written = write(all));
    let ablations =
        ablate(&ground, &mut oracle, &cases, (3e-4, &options), &mut tell, &mut found).map_err(bench_error)?;
    written?;
    step.done(&format!("{} cases", ablations.len()));
    Ok(report(&ablations))
}

/// The recipe of the shipped profile, its budgets in proportion to a model.
pub(super) fn shipped_recipe(model: &Model) -> BasisRecipe {
    let parameters = model.parameters() as f64;
    BasisRecipe {
        token_factors: FACTORS.0,
        table_bits: FACTORS.1,
        exact_tokens: Some(0),
        budget_bytes: Some((BUDGETS.0 * parameters * 2.0) as usize),
        budget_macs: Some((BUDGETS.1 * parameters) as usize),
        ..BasisRecipe::default()
    }
}

fn table(report: &Report) -> Vec<Vec<String>> {
    let mut head =
        vec!["feature".to_owned(), "instead".to_owned(), "profile kB".to_owned(), "rank".to_owned()];
    head.extend(QUALITIES.iter().flat_map(|kl| [format!("bits at {kl}"), "over base".to_owned()]));
    head.extend(["finest bits", "finest KL"].map(str::to_owned));
    let mut rows = vec![head];
    let base = report.ablations.first();
    for case in &report.ablations {
        let mut row = vec![
            case.feature.clone(),
            case.name.clone(),
            (case.profile_bytes / 1000).to_string(),
            case.rank.to_string(),
        ];
        for (index, bits) in case.bits.iter().enumerate() {
            let of_base = base.and_then(|base| *base.bits.get(index)?);
            let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |v| format!("{v:.3}"));
            row.extend([number(*bits), number(bits.zip(of_base).map(|(a, b)| a / b))]);
        }
        row.extend([format!("{:.3}", case.finest_bits), format!("{:.2e}", case.finest_kl)]);
        rows.push(row);
    }
    rows
}
