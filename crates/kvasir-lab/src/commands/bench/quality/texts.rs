//! The input of `kvasir-lab bench quality`: texts, and the results of other runs.

use std::path::Path;

use crate::quality::{QualityRow, RECORDS, Text};
use kvasir_engine::Model;
use serde::Deserialize;

use super::{QualityArguments, bench_error};
use kvasir_cli::{
    error::{CliError, CliResult, Exit, read_file},
    progress::Step,
    shipped::engine_error,
};

/// The text inside the program.
const BUILT_IN: &str = kvasir_cli::demo::TALE;

/// Calibration and measurement texts.
pub(super) struct Texts {
    pub(super) calibration: Vec<Vec<u32>>,
    pub(super) measured: Vec<Text>,
}

/// Reads and generates them, in windows of `prefix` and `suffix` tokens.
pub(super) fn texts(
    model: &Model,
    arguments: &QualityArguments,
    (prefix, suffix): (usize, usize),
) -> CliResult<Texts> {
    let windows = |domain: &str, text: &str, count| {
        Text::new(model, domain, text, count, prefix + suffix).map_err(bench_error)
    };
    let records = |count, seed| Text::records(model, count, (prefix, suffix), seed).map_err(bench_error);
    let read = |path: &Path| {
        String::from_utf8(read_file(path)?)
            .map_err(|_| CliError::data(path, "the text is not UTF-8; convert it first"))
    };
    let mut measured = Vec::new();
    for (index, path) in arguments.text.iter().enumerate() {
        let domain = path.file_stem().unwrap_or_default().to_string_lossy();
        if domain == RECORDS {
            return Err(CliError::data(path, "generated records have this name; rename the text"));
        }
        let count = match (arguments.quick, index) {
            (true, _) => 1,
            (false, 0) => arguments.windows,
            (false, _) => arguments.other_windows,
        };
        measured.push(part(windows(&domain, &read(path)?, count)?, arguments)?);
    }
    if arguments.records > 0 {
        let count = if arguments.quick { 1 } else { arguments.records };
        measured.push(part(records(count, arguments.seed)?, arguments)?);
    }
    let mut calibration = Vec::new();
    for path in &arguments.train_text {
        let text = windows("a calibration text", &read(path)?, arguments.train_windows)?;
        calibration.extend(text.into_tokens());
    }
    if arguments.records > 0 && arguments.train_text.is_empty() {
        // Other seeds than those of the judged windows.
        calibration.extend(records(arguments.train_windows, !arguments.seed)?.into_tokens());
    }
    let step = Step::start("calibration texts");
    let mut tell = |at| step.at("", at);
    let own = model.sample_texts(arguments.own_texts, prefix + suffix, arguments.seed, &mut tell);
    calibration.extend(own.map_err(engine_error)?);
    step.done("");
    if measured.is_empty() {
        // Half of the built-in text judges, the other half calibrates.
        let mut tale = windows("the-storekeeper", BUILT_IN, usize::MAX)?;
        let judged = tale.windows.split_off(tale.windows.len().div_ceil(2));
        let other = std::mem::replace(&mut tale.windows, judged);
        tale.windows.truncate(if arguments.quick { 1 } else { arguments.windows });
        tale.spread = tale.windows.len();
        measured.push(tale);
        if calibration.is_empty() {
            calibration.extend(other.into_iter().map(|window| window.tokens));
        }
    } else if calibration.is_empty() {
        let text = windows("the built-in text", BUILT_IN, arguments.train_windows)?;
        calibration.extend(text.into_tokens());
    }
    Ok(Texts { calibration, measured })
}

/// The windows of a text that this run measures.
fn part(text: Text, arguments: &QualityArguments) -> CliResult<Text> {
    let text = text.part(arguments.from_window..arguments.to_window.unwrap_or(usize::MAX));
    if text.windows.is_empty() {
        let (domain, count) = (&text.domain, text.spread);
        let why = format!("{domain}: --from-window and --to-window leave none of its {count} windows");
        return Err(CliError::new(Exit::Data, why, ""));
    }
    Ok(text)
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
