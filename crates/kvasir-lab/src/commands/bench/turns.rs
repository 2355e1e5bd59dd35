//! `kvasir-lab bench turns`: ten turns of load, extend, store.

use std::{collections::BTreeMap, path::PathBuf};

use crate::quality::{Text, Turn, TurnOptions, turns};
use clap::Args;
use kvasir_types::Level;
use serde::Serialize;

use super::{
    page::table,
    quality::{bench_error, profiles},
};
use crate::commands::{model::model, report::write_report};
use kvasir_cli::{
    error::{CliError, CliResult, Exit, read_file},
    output::{columns, print, print_json},
    progress::Step,
};
use kvasir_plot::{Axis, Mark, Page, Plot, Series, Side};

/// Tokens of the first turn.
const FIRST_TOKENS: usize = 128;
/// Tokens after a turn that measure its quality.
const SUFFIX: usize = 96;

/// Arguments of `kvasir-lab bench turns`.
#[derive(Debug, Args)]
pub(crate) struct TurnArguments {
    /// `kvasir-tiny`, or a folder with a Hugging Face Llama model.
    #[arg(long, value_name = "NAME|DIR", default_value = "kvasir-tiny")]
    model: String,
    /// The text that the conversations are cut from.
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Profile; without it the one that ships with kvasir-tiny.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Conversations; each is one window of the model's context.
    #[arg(long, value_name = "N", default_value_t = 8)]
    windows: usize,
    /// Turns of each conversation.
    #[arg(long, value_name = "N", default_value_t = 10)]
    turns: usize,
    /// Levels at which to load, separated by commas [default: 1 and the finest].
    #[arg(long, value_name = "N", value_delimiter = ',')]
    levels: Vec<u8>,
    /// Folder for turns.json and the report turns.html.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result as one JSON document.
    #[arg(long)]
    json: bool,
}

/// The result.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    windows: usize,
    first_tokens: usize,
    turn_tokens: usize,
    suffix: usize,
    turns: Vec<Turn>,
}

/// Runs the command.
pub(crate) fn run(arguments: &TurnArguments) -> CliResult {
    let report = report(arguments)?;
    if let Some(folder) = &arguments.out {
        write_report(folder, "turns", &report, &[("html", render(&report))])?;
    }
    if arguments.json { print_json(&report) } else { print(&columns(&rows(&report))) }
}

fn report(arguments: &TurnArguments) -> CliResult<Report> {
    let model = model(&arguments.model)?;
    let profiles = profiles(&model, arguments.profile.as_slice())?;
    let Some(profile) = profiles.first() else {
        return Err(CliError::new(
            Exit::Data,
            "there is no profile for this model",
            "Give one with --profile.",
        ));
    };
    let window = model.config().context;
    let turn_tokens = window.saturating_sub(FIRST_TOKENS + SUFFIX) / arguments.turns.max(1);
    if turn_tokens == 0 {
        let message = format!("{} turns do not fit a context of {window} tokens", arguments.turns);
        return Err(CliError::new(Exit::Data, message, ""));
    }
    let levels = match &arguments.levels[..] {
        [] => vec![1.min(profile.top_level().0), profile.top_level().0],
        given if given.iter().all(|level| *level <= profile.top_level().0) => given.to_vec(),
        _ => {
            let message = format!("the profile has levels 0 to {}", profile.top_level().0);
            return Err(CliError::new(Exit::Data, message, ""));
        }
    };
    let read = String::from_utf8(read_file(&arguments.text)?)
        .map_err(|_| CliError::data(&arguments.text, "the text is not UTF-8; convert it first"))?;
    let domain = arguments.text.file_stem().unwrap_or_default().to_string_lossy();
    let text = Text::new(&model, &domain, &read, arguments.windows, window).map_err(bench_error)?;
    let step = Step::start("turns");
    let mut out = Vec::new();
    for (number, level) in levels.iter().enumerate() {
        for rule in [false, true] {
            let at = (2 * number + usize::from(rule)) as f32 / (2 * levels.len()) as f32;
            step.at(&format!("level {level}"), at);
            let options = TurnOptions {
                first_tokens: FIRST_TOKENS,
                turn_tokens,
                turns: arguments.turns,
                suffix: SUFFIX,
                level: Level(*level),
                rule,
            };
            out.extend(turns(&model, profile, &text, &options).map_err(bench_error)?);
        }
    }
    step.done(&format!("{} windows", text.windows.len()));
    Ok(Report {
        model: arguments.model.clone(),
        windows: text.windows.len(),
        first_tokens: FIRST_TOKENS,
        turn_tokens,
        suffix: SUFFIX,
        turns: out,
    })
}

fn rows(report: &Report) -> Vec<Vec<String>> {
    let mut rows =
        vec![["level", "rule", "turn", "KL (95 %)", "retrieval", "loaded"].map(str::to_owned).to_vec()];
    rows.extend(report.turns.iter().map(|turn| {
        vec![
            turn.level.to_string(),
            if turn.rule { "on" } else { "off" }.to_owned(),
            turn.turn.to_string(),
            format!("{:.2e} ({:.1e}–{:.1e})", turn.kl, turn.kl_low, turn.kl_high),
            format!("{:.3}", turn.retrieval),
            format!("{:.0} %", turn.loaded * 100.0),
        ]
    }));
    rows
}

fn turn_plot(turns: &[Turn], what: &str, value: Value) -> Plot {
    let mut series = BTreeMap::<(u8, bool), Vec<_>>::new();
    for turn in turns {
        series.entry((turn.level, turn.rule)).or_default().push((turn.turn as f64, value(turn)).into());
    }
    let named = series.into_iter().map(|((level, rule), points)| Series {
        name: format!("level {level}, rule {}", if rule { "on" } else { "off" }),
        mark: Mark::Joined,
        side: Side::Left,
        points,
    });
    Plot {
        description: format!("{what} by turn"),
        x: Axis::from_zero("turn"),
        left: Axis::from_zero(what),
        right: None,
        series: named.collect(),
        guides: Vec::new(),
    }
}

/// One figure of a turn.
type Value = fn(&Turn) -> f64;

fn render(report: &Report) -> String {
    let lede = format!(
        "{}, {} conversations: {} tokens, then turns of {} over the loaded cache; {} tokens measure the quality of every turn.",
        report.model, report.windows, report.first_tokens, report.turn_tokens, report.suffix
    );
    let mut page = Page::new("Turns of load, extend, store", &lede);
    page.paragraph("The rule: KV that was computed over a prefix with too much predicted loss is not stored; the next turn computes it again.");
    let plots: [(&str, &str, Value); 3] = [
        ("KL, nats per token", "Loss of the loaded and extended cache.", |t| t.kl),
        ("retrieval", "Share of a repeated passage that is predicted right.", |t| t.retrieval),
        ("share loaded", "Share of the context loaded from the store.", |t| t.loaded),
    ];
    for (what, caption, value) in plots {
        page.drawing(&turn_plot(&report.turns, what, value).to_svg(), caption);
    }
    page.table(&table(rows(report)));
    page.finish("Made by `kvasir-lab bench turns`.")
}
