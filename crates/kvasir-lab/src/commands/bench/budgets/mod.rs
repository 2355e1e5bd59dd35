//! `kvasir-lab bench budgets`: token and layer budgets, alone and beneath the codec, and CacheGen's insights.

mod case;
mod compose;
mod page;
mod sweep;
mod tasks;

use std::path::PathBuf;

use crate::insights::{
    DeltaVariance, GroupedEntropy, LayerSensitivity, delta_variances, grouped_entropy, layer_sensitivity,
};
use crate::quality::Text;
use clap::Args;
use kvasir_codec::KvBuffer;
use kvasir_engine::Model;
use serde::Serialize;

use self::case::{BudgetRow, Case};
use super::quality::bench_error;
use crate::commands::report::write_report;
use kvasir_cli::{
    error::{CliError, CliResult, Exit, read_file},
    output::{columns, print, print_json},
    progress::Step,
    service::runtime,
    shipped::{self, engine_error},
};

/// The text inside the program.
const BUILT_IN: &str = kvasir_cli::demo::TALE;
/// Step of Fig. 4's rounding, in standard deviations of a plane.
const SENSITIVITY_STEP: f64 = 1.0;
/// Step of Fig. 5's rounding, absolute.
const ENTROPY_STEP: f32 = 0.5;

/// Arguments of `kvasir-lab bench budgets`.
#[derive(Debug, Args)]
pub(crate) struct BudgetArguments {
    /// Text to measure on. Without it: a built-in tale, too short for reliable figures.
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Text to train the profiles of thinned caches on; without it, other windows of the first text.
    #[arg(long, value_name = "FILE", requires = "text")]
    train_text: Option<PathBuf>,
    /// Windows to measure the quality on.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    windows: u16,
    /// Windows that profiles of thinned caches are trained on.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..))]
    train_windows: u16,
    /// Tokens of a window that are thinned.
    #[arg(long, value_name = "N", default_value_t = 768)]
    prefix: usize,
    /// Tokens after them that measure the quality.
    #[arg(long, value_name = "N", default_value_t = 256)]
    suffix: usize,
    /// Share of the tokens that the table of compositions keeps, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    share: f64,
    /// One short window and few settings, to see that everything runs.
    #[arg(long)]
    quick: bool,
    /// Folder for budgets.csv, budgets.json and the report budgets.html.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result as one JSON document.
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct BudgetReport {
    /// Tokens of a window whose cache is thinned and coded.
    pub(super) prefix: usize,
    /// Judging tokens of a window.
    pub(super) suffix: usize,
    /// Windows judged.
    pub(super) windows: usize,
    /// Share kept in `compositions`.
    pub(super) share: f64,
    /// The paper's table: methods alone at 8 bits, and the codec on each, through a service.
    pub(super) compositions: Vec<BudgetRow>,
    /// Quality over budgets, with and without SqueezeAttention.
    pub(super) budgets: Vec<BudgetRow>,
    /// SqueezeAttention over its p.
    pub(super) squeeze: Vec<BudgetRow>,
    /// Questions about contexts.
    pub(super) tasks: Vec<tasks::TaskRow>,
    /// CacheGen's observations, of every window.
    pub(super) insights: Vec<Insights>,
}

/// CacheGen's Figs. 3 to 5 on one window.
#[derive(Debug, Serialize)]
pub(super) struct Insights {
    /// Fig. 3.
    pub(super) variances: Vec<DeltaVariance>,
    /// Fig. 4: one layer at a time rounded to a standard deviation.
    pub(super) sensitivity: Vec<LayerSensitivity>,
    /// Fig. 5, bits per element.
    pub(super) entropy: GroupedEntropy,
}

/// Runs the command.
pub(crate) fn run(arguments: &BudgetArguments) -> CliResult {
    let report = measure(arguments)?;
    if let Some(folder) = &arguments.out {
        write_report(
            folder,
            "budgets",
            &report,
            &[("csv", page::csv(&report)), ("html", page::render(&report))],
        )?;
    }
    if arguments.json { print_json(&report) } else { print(&text(&report)) }
}

fn measure(arguments: &BudgetArguments) -> CliResult<BudgetReport> {
    let (prefix, suffix) = if arguments.quick { (256, 48) } else { (arguments.prefix, arguments.suffix) };
    if prefix < 32 || suffix < 2 || !(0.0..=1.0).contains(&arguments.share) {
        let message = "--prefix must be at least 32, --suffix at least 2, --share between 0 and 1";
        return Err(CliError::new(Exit::Data, message, ""));
    }
    let model = shipped::model()?;
    let (judged, training) = windows(&model, arguments, prefix + suffix)?;
    let step = Step::start("prefills, watched");
    let mut cases = Vec::new();
    for (index, window) in judged.iter().enumerate() {
        step.at("", index as f32 / judged.len() as f32);
        cases.push(Case::new(&model, window, prefix).map_err(engine_error)?);
    }
    step.done(&format!("{} windows", cases.len()));
    let runtime = runtime()?;
    let compositions = compose::compose(
        &runtime,
        &model,
        &cases,
        &compose::Settings { training: &training, prefix, share: arguments.share, quick: arguments.quick },
    )?;
    let step = Step::start("budgets");
    let budgets = sweep::budgets(&model, &cases, arguments.quick, &mut |at| step.at("", at))?;
    let squeeze = sweep::over_p(&model, &cases, arguments.quick)?;
    step.done(&format!("{} settings", budgets.len() + squeeze.len()));
    let step = Step::start("insights");
    let mut insights = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        step.at("", index as f32 / cases.len() as f32);
        insights.push(window_insights(&model, case)?);
    }
    step.done("delta variance, layer sensitivity, entropy by grouping");
    let step = Step::start("questions");
    let count = if arguments.quick { 1 } else { tasks::COUNT };
    let tasks = tasks::ask(&model, count, arguments.share, &mut |at| step.at("", at))?;
    step.done(&format!("{count} of each kind"));
    let windows = cases.len();
    Ok(BudgetReport {
        prefix,
        suffix,
        windows,
        share: arguments.share,
        compositions,
        budgets,
        squeeze,
        tasks,
        insights,
    })
}

/// Token windows of equal length.
type Windows = Vec<Vec<u32>>;

/// Windows that judge, and windows to train on.
fn windows(model: &Model, arguments: &BudgetArguments, tokens: usize) -> CliResult<(Windows, Windows)> {
    let read = |path: &PathBuf| {
        String::from_utf8(read_file(path)?)
            .map_err(|_| CliError::data(path, "the text is not UTF-8; convert it first"))
    };
    let cut = |name: &str, text: &str, count: usize| {
        Text::new(model, name, text, count, tokens).map(Text::into_tokens).map_err(bench_error)
    };
    let (judge, train) =
        if arguments.quick { (1, 1) } else { (arguments.windows.into(), arguments.train_windows.into()) };
    let (first, other) = match (&arguments.text, &arguments.train_text) {
        (Some(text), Some(other)) => (read(text)?, Some(read(other)?)),
        (Some(text), None) => (read(text)?, None),
        (None, _) => (BUILT_IN.to_owned(), None),
    };
    if let Some(other) = other {
        return Ok((cut("the text", &first, judge)?, cut("the training text", &other, train)?));
    }
    // Every window is one or the other.
    let mut all = cut("the text", &first, judge + train)?;
    let judged = all.split_off(train.min(all.len() / 2));
    Ok((judged, all))
}

fn window_insights(model: &Model, case: &Case<'_>) -> CliResult<Insights> {
    let dense = KvBuffer::from_source(model.spec(), case.kv.len(), &case.kv);
    let sensitivity =
        layer_sensitivity(model, &case.kv, case.suffix, 1, SENSITIVITY_STEP).map_err(engine_error)?;
    Ok(Insights {
        variances: delta_variances(model.spec(), &dense),
        sensitivity,
        entropy: grouped_entropy(model.spec(), &dense, ENTROPY_STEP),
    })
}

fn text(report: &BudgetReport) -> String {
    let tables =
        [&report.compositions, &report.budgets, &report.squeeze].map(|rows| columns(&page::table(rows)));
    format!(
        "{}\n\n{}\n\n{}\n\n{}\n\n{}",
        columns(&page::task_table(&report.tasks)),
        tables[0],
        tables[1],
        tables[2],
        columns(&page::insight_table(&report.insights))
    )
}
