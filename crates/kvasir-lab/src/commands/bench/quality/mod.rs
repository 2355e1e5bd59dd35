//! `kvasir-lab bench quality`: size against quality.

mod tables;
mod texts;

use std::{path::PathBuf, sync::Arc};

use crate::{
    BenchError,
    quality::{
        CODECS, Crossing, Options, QualityRow, Suite, SuiteOptions, Verdict, crossings, csv, join, measure,
        verdicts,
    },
};
use clap::Args;
use kvasir_codec::{KvBuffer, Profile};
use kvasir_engine::{Model, TINY_PROFILE};
use kvasir_train::TrainingContext;

use kvasir_types::SPAN_TOKENS;
use serde::Serialize;

pub(super) use self::tables::{label, ratio, row_table, verdict_table};
use self::{
    tables::text,
    texts::{Texts, pieces, texts},
};
use super::page;
use crate::commands::{model::model, report::write_report};
use kvasir_cli::{
    error::{CliError, CliResult, Exit},
    inputs::profile,
    output::{print, print_json},
    progress::Step,
    shipped::engine_error,
};

/// Share of a model's weights that a profile within the budget may have.
const BUDGET_SHARE: f64 = 0.10;

/// Arguments of `kvasir-lab bench quality`.
#[derive(Debug, Args)]
pub(crate) struct QualityArguments {
    /// `kvasir-tiny`, or a folder with a Hugging Face Llama model.
    #[arg(long, value_name = "NAME|DIR", default_value = "kvasir-tiny")]
    model: String,
    /// Text to measure on; the first is the profiles' own domain, on others only our profiles run. Without it: a built-in tale, too short for figures.
    #[arg(long, value_name = "FILE")]
    text: Vec<PathBuf>,
    /// Text to calibrate the peers and the direct profile on.
    #[arg(long, value_name = "FILE", requires = "text")]
    train_text: Vec<PathBuf>,
    /// Contexts that the shipped model writes itself, to calibrate on beside the texts.
    #[arg(long, value_name = "N", default_value_t = 0)]
    own_texts: usize,
    /// Seed of those.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Profiles of ours to compare; without it the one that ships with kvasir-tiny.
    #[arg(long, value_name = "FILE")]
    profile: Vec<PathBuf>,
    /// Windows of the first text: 80 of 256 judging tokens are the 20,480 that figures need.
    #[arg(long, value_name = "N", default_value_t = 80)]
    windows: usize,
    /// Windows of every other text.
    #[arg(long, value_name = "N", default_value_t = 20)]
    other_windows: usize,
    /// Windows of every calibration text.
    #[arg(long, value_name = "N", default_value_t = 6)]
    train_windows: usize,
    /// Tokens of a window that go through the codecs.
    #[arg(long, value_name = "N", default_value_t = 768)]
    prefix: usize,
    /// Tokens behind them that judge.
    #[arg(long, value_name = "N", default_value_t = 256)]
    suffix: usize,
    /// Chunk lengths, multiples of 256, separated by commas [default: 256 and the whole prefix].
    #[arg(long, value_name = "N", value_delimiter = ',')]
    chunk_tokens: Vec<usize>,
    /// Codecs to run, separated by commas; all where it is not given.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = CODECS)]
    codecs: Vec<String>,
    /// First window to measure of each text, so that a long run can be made in pieces.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from_window: usize,
    /// Window to stop before.
    #[arg(long, value_name = "N")]
    to_window: Option<usize>,
    /// The JSON of a piece: other codecs on the same windows, or other windows of the same spread. Its rows join this run's; without --text nothing is measured anew.
    #[arg(long, value_name = "FILE")]
    rows: Vec<PathBuf>,
    /// One short window, to see that everything runs.
    #[arg(long)]
    quick: bool,
    /// Folder for quality.csv, quality.svg, quality.json and the report quality.html.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result as one JSON document.
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
pub(crate) struct QualityReport {
    /// The model.
    pub(crate) model: String,
    /// Tokens that went through the codecs, of every window.
    pub(crate) prefix: usize,
    /// Tokens that judged.
    pub(crate) suffix: usize,
    /// Largest profile within the budget.
    pub(crate) budget_bytes: u64,
    /// Every codec, level, chunk length and text.
    pub(crate) rows: Vec<QualityRow>,
    /// Sizes at equal quality.
    pub(crate) crossings: Vec<Crossing>,
    /// Targets.
    pub(crate) verdicts: Vec<Verdict>,
}

/// Runs the command.
pub(crate) fn run(arguments: &QualityArguments) -> CliResult {
    let model = model(&arguments.model)?;
    let report = report(&model, arguments)?;
    if let Some(folder) = &arguments.out {
        write_report(
            folder,
            "quality",
            &report,
            &[
                ("csv", csv(&report.rows)),
                ("svg", page::size_against_quality(&report).to_file()),
                ("html", page::render(&report)),
            ],
        )?;
    }
    if arguments.json { print_json(&report) } else { print(&text(&report)) }
}

/// Sorted by whose fault it is.
pub(super) fn bench_error(error: BenchError) -> CliError {
    match error {
        BenchError::Engine(error) => engine_error(error),
        BenchError::TooShort { .. }
        | BenchError::Window { .. }
        | BenchError::Profile(_)
        | BenchError::Train(_)
        | BenchError::Unsupported { .. } => CliError::new(Exit::Data, error, ""),
        other => CliError::internal(other),
    }
}

fn report(model: &Model, arguments: &QualityArguments) -> CliResult<QualityReport> {
    let (prefix, suffix) =
        if arguments.quick { (2 * SPAN_TOKENS, 64) } else { (arguments.prefix, arguments.suffix) };
    let chunk_tokens = match &arguments.chunk_tokens[..] {
        [] if prefix > SPAN_TOKENS => vec![SPAN_TOKENS, prefix],
        [] => vec![prefix],
        given if given.iter().all(|n| *n > 0 && n.is_multiple_of(SPAN_TOKENS)) => given.to_vec(),
        _ => {
            let message = format!("--chunk-tokens are multiples of {SPAN_TOKENS}");
            return Err(CliError::new(Exit::Data, message, ""));
        }
    };
    let budget_bytes = (BUDGET_SHARE * model_bytes(model) as f64) as u64;
    let mut rows = pieces(arguments, prefix, suffix)?;
    if arguments.rows.is_empty() || !arguments.text.is_empty() {
        let texts = texts(model, arguments, prefix + suffix)?;
        let options = Options { prefix, chunk_tokens };
        rows.extend(measured(model, arguments, &texts, budget_bytes, &options)?);
    }
    let rows = join(rows).map_err(|error| {
        CliError::new(Exit::Data, error, "--rows joins pieces with the same --windows and the same texts.")
    })?;
    let crossings = crossings(&rows);
    let domains = in_order(rows.iter().map(|row| row.domain.clone()));
    let verdicts = verdicts(&crossings, &domains, &in_order(rows.iter().map(|row| row.chunk_tokens)));
    let model = arguments.model.clone();
    Ok(QualityReport { model, prefix, suffix, budget_bytes, rows, crossings, verdicts })
}

/// Every value once, as they come.
fn in_order<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut seen, value| {
        if !seen.contains(&value) {
            seen.push(value);
        }
        seen
    })
}

fn measured(
    model: &Model,
    arguments: &QualityArguments,
    texts: &Texts,
    budget_bytes: u64,
    options: &Options,
) -> CliResult<Vec<QualityRow>> {
    let step = Step::start("profiles");
    let contexts: Vec<_> = texts.calibration.iter().map(|t| training(model, t)).collect::<CliResult<_>>()?;
    let suite_options = SuiteOptions {
        profiles: profiles(model, &arguments.profile)?,
        budget_bytes,
        codecs: arguments.codecs.clone(),
    };
    let suite = Suite::new(model.spec(), &contexts, &suite_options, &mut |what, at| step.at(what, at));
    let suite = suite.map_err(bench_error)?;
    step.done(&format!("calibrated on {} windows", contexts.len()));
    let mut rows = Vec::new();
    for (index, text) in texts.measured.iter().enumerate() {
        let step = Step::start(text.domain.clone());
        let found = suite.with_codecs(index > 0, |codecs| {
            measure(model, codecs, text, options, &mut |at| step.at("", at))
        });
        rows.extend(found.map_err(bench_error)?);
        step.done(&format!("{} windows", text.windows.len()));
    }
    Ok(rows)
}

fn training(model: &Model, tokens: &[u32]) -> CliResult<TrainingContext> {
    let kv = model.calculate_kv(tokens).map_err(engine_error)?;
    let kv = KvBuffer::from_source(model.spec(), tokens.len(), &kv);
    Ok(TrainingContext { first_position: 0, tokens: tokens.to_vec(), kv })
}

/// The profiles of some files, or the one that ships with the model.
pub(super) fn profiles(model: &Model, files: &[PathBuf]) -> CliResult<Vec<Arc<Profile>>> {
    let shipped = Model::kvasir_tiny().map_err(engine_error)?;
    if files.is_empty() && shipped.spec().model_id() == model.spec().model_id() {
        return Ok(vec![Arc::new(Profile::from_bytes(TINY_PROFILE).map_err(CliError::internal)?)]);
    }
    files.iter().map(|path| profile(Some(path))).collect()
}

/// Bytes of the weights in 16 bits: the layers' matrices and the embeddings.
fn model_bytes(model: &Model) -> u64 {
    2 * model.config().parameters()
}
