//! The input of `kvasir-lab bench quality`: texts, and the results of other runs.

use std::path::Path;

use crate::quality::{QualityRow, Text};
use kvasir_engine::Model;
use serde::Deserialize;

use super::{QualityArguments, bench_error};
use kvasir_cli::{
    error::{CliError, CliResult, read_file},
    progress::Step,
    shipped::engine_error,
};

/// The text inside the program: half of its windows calibrate, the other half judge.
const BUILT_IN: &str = kvasir_cli::demo::TALE;

/// Calibration and measurement texts.
pub(super) struct Texts {
    pub(super) calibration: Vec<Vec<u32>>,
    pub(super) measured: Vec<Text>,
}

/// Reads them.
pub(super) fn texts(model: &Model, arguments: &QualityArguments, tokens: usize) -> CliResult<Texts> {
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
        let (windows, spread) = (judged.to_vec(), judged.len());
        let text = Text { domain: "the-storekeeper".to_owned(), windows, first: 0, spread };
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
        let part = arguments.from_window..arguments.to_window.unwrap_or(count);
        let text = windows(&domain, &read(path)?, count)?.part(part);
        if text.windows.is_empty() {
            let why = format!("--from-window and --to-window leave none of its {} windows", text.spread);
            return Err(CliError::data(path, why));
        }
        measured.push(text);
    }
    let mut calibration = Vec::new();
    for path in &arguments.train_text {
        calibration.extend(windows("a calibration text", &read(path)?, arguments.train_windows)?.windows);
    }
    let step = Step::start("calibration texts");
    let own = model.sample_texts(arguments.own_texts, tokens, arguments.seed, &mut |at| step.at("", at));
    calibration.extend(own.map_err(engine_error)?);
    step.done("");
    if calibration.is_empty() {
        calibration = windows("the built-in text", BUILT_IN, arguments.train_windows)?.windows;
    }
    Ok(Texts { calibration, measured })
}

/// The part of another run's result that is read.
#[derive(Debug, Deserialize)]
struct Piece {
    model: String,
    prefix: usize,
    suffix: usize,
    rows: Vec<QualityRow>,
}

/// Rows of other runs, which must have the same settings.
pub(super) fn pieces(
    arguments: &QualityArguments,
    prefix: usize,
    suffix: usize,
) -> CliResult<Vec<QualityRow>> {
    let mut rows: Vec<QualityRow> = Vec::new();
    for path in &arguments.rows {
        let found: Piece =
            serde_json::from_slice(&read_file(path)?).map_err(|error| CliError::data(path, error))?;
        if (found.prefix, found.suffix, &found.model) != (prefix, suffix, &arguments.model) {
            let why = format!(
                "it is of {} with {} + {} tokens a window, not of {} with {prefix} + {suffix}",
                found.model, found.prefix, found.suffix, arguments.model
            );
            return Err(CliError::data(path, why));
        }
        rows.extend(found.rows);
    }
    Ok(rows)
}
