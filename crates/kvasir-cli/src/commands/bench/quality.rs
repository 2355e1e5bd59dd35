//! `kvasir bench quality`: size against quality.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use kvasir_bench::{
    BenchError,
    quality::{
        Crossing, Options, Row, Suite, SuiteOptions, Text, Turn, TurnOptions, Verdict, crossings, csv,
        measure, turns, verdicts,
    },
};
use kvasir_codec::{KvBuffer, Profile, train::TrainingContext};
use kvasir_engine::{Model, TINY_PROFILE};
use kvasir_types::{Level, SPAN_TOKENS};
use serde::Serialize;

use super::{model, page, write_report};
use crate::{
    error::{CliError, CliResult, Exit, read_file},
    inputs::{self, engine_error},
    output::{columns, print, print_json},
    progress::Step,
};

/// The text inside the program: half of its windows calibrate, the other half judge.
const BUILT_IN: &str = include_str!("../../../assets/the-storekeeper.txt");
/// Share of a model's weights that a profile within the budget may have.
const BUDGET_SHARE: f64 = 0.10;

/// Arguments of `kvasir bench quality`.
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
    /// Leave out what loses nothing, and the ten turns: zstd takes a third of the time.
    #[arg(long)]
    lossy_only: bool,
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
    pub(crate) rows: Vec<Row>,
    /// Sizes at equal quality.
    pub(crate) crossings: Vec<Crossing>,
    /// Targets.
    pub(crate) verdicts: Vec<Verdict>,
    /// Ten turns of load, extend, store.
    pub(crate) turns: Vec<Turn>,
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

/// What is calibrated on, and what is measured on.
struct Texts {
    calibration: Vec<Vec<u32>>,
    measured: Vec<Text>,
}

fn texts(model: &Model, arguments: &QualityArguments, tokens: usize) -> CliResult<Texts> {
    let windows =
        |domain: &str, text: &str, count| Text::new(model, domain, text, count, tokens).map_err(bench_error);
    let read = |path: &Path| {
        String::from_utf8(read_file(path)?)
            .map_err(|_| CliError::data(path, "the text is not UTF-8; convert it first"))
    };
    if arguments.text.is_empty() {
        let all = windows("the-storekeeper", BUILT_IN, usize::MAX)?.windows;
        let (calibration, mut judged) = all.split_at(all.len().div_ceil(2));
        judged = &judged[..judged.len().min(if arguments.quick { 1 } else { arguments.windows })];
        let text = Text { domain: "the-storekeeper".to_owned(), windows: judged.to_vec() };
        return Ok(Texts { calibration: calibration.to_vec(), measured: vec![text] });
    }
    let mut measured = Vec::new();
    for (index, path) in arguments.text.iter().enumerate() {
        let domain = path.file_stem().unwrap_or_default().to_string_lossy();
        let count = match (arguments.quick, index) {
            (true, _) => 1,
            (false, 0) => arguments.windows,
            (false, _) => arguments.other_windows,
        };
        measured.push(windows(&domain, &read(path)?, count)?);
    }
    let mut calibration = Vec::new();
    for path in &arguments.train_text {
        calibration.extend(windows("a calibration text", &read(path)?, arguments.train_windows)?.windows);
    }
    if calibration.is_empty() {
        calibration = windows("the built-in text", BUILT_IN, arguments.train_windows)?.windows;
    }
    Ok(Texts { calibration, measured })
}

fn report(model: &Model, arguments: &QualityArguments) -> CliResult<QualityReport> {
    let (prefix, suffix) =
        if arguments.quick { (2 * SPAN_TOKENS, 64) } else { (arguments.prefix, arguments.suffix) };
    let texts = texts(model, arguments, prefix + suffix)?;
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
    let step = Step::start("profiles");
    let contexts: Vec<_> = texts.calibration.iter().map(|t| training(model, t)).collect::<CliResult<_>>()?;
    let profiles = profiles(model, arguments)?;
    let options = SuiteOptions { profiles: profiles.clone(), budget_bytes, lossless: !arguments.lossy_only };
    let suite = Suite::new(model.spec(), &contexts, &options, &mut |what, at| step.at(what, at));
    let suite = suite.map_err(bench_error)?;
    step.done(&format!("calibrated on {} windows", contexts.len()));
    let options = Options { prefix, chunk_tokens: chunk_tokens.clone() };
    let mut rows = Vec::new();
    for (index, text) in texts.measured.iter().enumerate() {
        let step = Step::start(text.domain.clone());
        let found = suite.with_codecs(index > 0, |codecs| {
            measure(model, codecs, text, &options, &mut |at| step.at("", at))
        });
        rows.extend(found.map_err(bench_error)?);
        step.done(&format!("{} windows", text.windows.len()));
    }
    let crossings = crossings(&rows);
    let domains: Vec<String> = texts.measured.iter().map(|text| text.domain.clone()).collect();
    let verdicts = verdicts(&crossings, &domains, &chunk_tokens);
    let turns = if arguments.quick || arguments.lossy_only {
        Vec::new()
    } else {
        ten_turns(model, &profiles, &texts.measured[0])?
    };
    let model = arguments.model.clone();
    Ok(QualityReport { model, prefix, suffix, budget_bytes, rows, crossings, verdicts, turns })
}

fn training(model: &Model, tokens: &[u32]) -> CliResult<TrainingContext> {
    let kv = model.calculate_kv(tokens).map_err(engine_error)?;
    let kv = KvBuffer::from_source(model.spec(), tokens.len(), &kv);
    Ok(TrainingContext { tokens: tokens.to_vec(), kv })
}

fn profiles(model: &Model, arguments: &QualityArguments) -> CliResult<Vec<Arc<Profile>>> {
    let shipped = Model::kvasir_tiny().map_err(engine_error)?;
    if arguments.profile.is_empty() && shipped.spec().model_id() == model.spec().model_id() {
        return Ok(vec![Arc::new(Profile::from_bytes(TINY_PROFILE).map_err(CliError::internal)?)]);
    }
    arguments.profile.iter().map(|path| inputs::profile(path)).collect()
}

/// Bytes of the weights in 16 bits: the layers' matrices and the embeddings.
fn model_bytes(model: &Model) -> u64 {
    2 * model.config().parameters()
}

/// Windows of the ten turns: the figures are means, and every window is twenty prefills.
const TURN_WINDOWS: usize = 4;

fn ten_turns(model: &Model, profiles: &[Arc<Profile>], text: &Text) -> CliResult<Vec<Turn>> {
    let Some(profile) = profiles.iter().find(|profile| !profile.is_direct()) else { return Ok(Vec::new()) };
    let Some(window) = text.windows.first().map(Vec::len) else { return Ok(Vec::new()) };
    let (turn_count, suffix) = (10, 96);
    let turn_tokens = window.saturating_sub(128 + suffix) / turn_count;
    if turn_tokens == 0 {
        return Ok(Vec::new());
    }
    let first_tokens = window - suffix - turn_count * turn_tokens;
    let windows = text.windows.iter().take(TURN_WINDOWS).cloned().collect();
    let text = Text { domain: text.domain.clone(), windows };
    let step = Step::start("ten turns");
    let mut out = Vec::new();
    let levels = [1, profile.level_count() - 1];
    for (number, level) in levels.into_iter().enumerate() {
        for rule in [false, true] {
            step.at(&format!("level {level}"), (2 * number + usize::from(rule)) as f32 / 4.0);
            let level = Level(level as u8);
            let options = TurnOptions { first_tokens, turn_tokens, turns: turn_count, suffix, level, rule };
            out.extend(turns(model, profile, &text, &options).map_err(bench_error)?);
        }
    }
    step.done(&format!("{} windows", text.windows.len()));
    Ok(out)
}

/// A share as it is shown.
pub(super) fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"))
}

/// Name and variant of a codec.
pub(super) fn label(codec: &str, variant: &str) -> String {
    if variant.is_empty() { codec.to_owned() } else { format!("{codec} {variant}") }
}

/// Head and lines of the table of targets.
pub(super) fn verdict_table(report: &QualityReport) -> Vec<Vec<String>> {
    let mut rows = vec![["target", "chunk", "KL", "ratio", "at most", ""].map(str::to_owned).to_vec()];
    rows.extend(report.verdicts.iter().map(|verdict| {
        vec![
            verdict.target.clone(),
            verdict.chunk_tokens.to_string(),
            verdict.kl.to_string(),
            ratio(verdict.ratio),
            ratio(Some(verdict.at_most)),
            match verdict.pass {
                Some(true) => "pass".to_owned(),
                Some(false) => "MISS".to_owned(),
                None => verdict.note.clone(),
            },
        ]
    }));
    rows
}

/// Head and lines of the table of measurements.
pub(super) fn row_table(report: &QualityReport) -> Vec<Vec<String>> {
    let head =
        ["codec", "level", "chunk", "text", "bits/element", "KL (95 %)", "top-1", "perplexity", "retrieval"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(report.rows.iter().map(|row| {
        vec![
            label(&row.codec, &row.variant),
            row.level.to_string(),
            row.chunk_tokens.to_string(),
            row.domain.clone(),
            format!("{:.3}", row.bits_per_element),
            format!("{:.2e} ({:.1e}–{:.1e})", row.kl, row.kl_low, row.kl_high),
            format!("{:.1} %", row.top1 * 100.0),
            format!("{:.3}", row.perplexity),
            format!("{:.3}", row.retrieval),
        ]
    }));
    rows
}

fn text(report: &QualityReport) -> String {
    format!("{}\n\n{}", columns(&row_table(report)), columns(&verdict_table(report)))
}
