//! The table: measurements, predictions and targets. Each row is kept in a file and printed as soon as it is measured, so that a
//! run that is ended leaves what it has.

use std::{
    error::Error,
    fs::{self, File},
    io::{self, Write},
    path::Path,
    time::{Duration, Instant},
};

/// Columns and their widths.
const COLUMNS: [(&str, usize); 9] = [
    ("what", 42),
    ("operation", 29),
    ("kernels ms", 10),
    ("GB/s bf16", 9),
    ("SM-s/GB", 7),
    ("wall ms", 9),
    ("wall GB/s", 9),
    ("at s", 4),
    ("predicted, to reach (H200)", 0),
];
/// The fake driver's device. It measures nothing.
const EMULATOR: &str = "Kvasir emulator";
/// The step that trains for minutes: on a GPU it runs only if it is named.
const ON_REQUEST: &str = "bases";

/// What is measured, and until when.
#[derive(Default)]
pub(crate) struct Plan {
    /// Tiny shapes and no figures.
    pub(crate) small: bool,
    /// Names of steps; empty for all.
    pub(crate) only: Vec<String>,
    /// No row begins later.
    pub(crate) time: Option<Duration>,
}

/// The rows of a run, and those that its time did not suffice for.
pub(crate) struct Report {
    plan: Plan,
    began: Instant,
    multiprocessors: usize,
    has_figures: bool,
    results: File,
    step: &'static str,
    left_out: Vec<(&'static str, String)>,
}

/// One measurement.
pub(crate) struct Row {
    /// Model, tokens, chunks.
    pub(crate) what: String,
    pub(crate) operation: &'static str,
    /// bf16 bytes on the cache side.
    pub(crate) bytes: usize,
    /// The prediction for an H200 by the model of the design and the README, and the target.
    pub(crate) predicted: &'static str,
}

/// Milliseconds of the kernels, and from the call to the rows; `None` where they are not timed.
pub(crate) type Times = (Option<f64>, Option<f64>);

impl Report {
    /// An empty table for a device. Rows are appended to a file of `folder`.
    pub(crate) fn new(
        plan: Plan,
        (device, multiprocessors): (&str, usize),
        folder: &Path,
    ) -> io::Result<Self> {
        let has_figures = !plan.small && device != EMULATOR;
        let name = if has_figures { "results.txt" } else { "rehearsal.txt" };
        fs::create_dir_all(folder)?;
        let results = File::options().create(true).append(true).open(folder.join(name))?;
        let (began, step, left_out) = (Instant::now(), "", Vec::new());
        let mut report = Self { plan, began, multiprocessors, has_figures, results, step, left_out };
        report.say(&format!("{device}, {multiprocessors} SMs"))?;
        if !has_figures {
            report.say("a rehearsal, by its shapes or its device: no figure is printed")?;
        }
        report.say(&line(&COLUMNS.map(|(name, _)| name.to_owned())))?;
        Ok(report)
    }

    /// Keeps and prints a line.
    pub(crate) fn say(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.results, "{line}")?;
        println!("{line}");
        Ok(())
    }

    /// Whether a step is to run. Its rows come next.
    pub(crate) fn begins(&mut self, step: &'static str) -> bool {
        let Plan { small, only, .. } = &self.plan;
        let is_default = only.is_empty() && (*small || step != ON_REQUEST);
        if !is_default && !only.iter().any(|name| name == step) {
            return false;
        }
        self.step = step;
        let is_over = self.is_over();
        if is_over {
            self.left_out.push((step, "all of it".to_owned()));
        }
        !is_over
    }

    fn is_over(&self) -> bool {
        self.plan.time.is_some_and(|time| self.began.elapsed() >= time)
    }

    /// Measures a row and prints it, unless the time is up. A rehearsal prints no figure.
    pub(crate) fn row(
        &mut self,
        row: &Row,
        measure: impl FnOnce() -> Result<Times, Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        if self.is_over() {
            self.left_out.push((self.step, format!("{}, {}", row.what, row.operation)));
            return Ok(());
        }
        let (kernels_ms, wall_ms) = measure()?;
        let figure = |value: Option<f64>, digits: usize| match value {
            Some(value) if self.has_figures => format!("{value:.digits$}"),
            _ => "-".into(),
        };
        let gigabytes = row.bytes as f64 / 1e9;
        let rate = |ms: Option<f64>| ms.map(|ms| gigabytes / ms * 1e3);
        let cost = kernels_ms.map(|ms| ms / 1e3 * self.multiprocessors as f64 / gigabytes.max(1e-12));
        let cells = [
            row.what.clone(),
            row.operation.into(),
            figure(kernels_ms, 3),
            figure(rate(kernels_ms), 1),
            figure(cost, 3),
            figure(wall_ms, 3),
            figure(rate(wall_ms), 1),
            figure(Some(self.began.elapsed().as_secs_f64()), 0),
            row.predicted.into(),
        ];
        self.say(&line(&cells))?;
        Ok(())
    }

    /// Names what was left out.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        let left_out = std::mem::take(&mut self.left_out);
        for (step, rows) in &left_out {
            self.say(&format!("not run, the time was up: {step}: {rows}"))?;
        }
        let mut steps: Vec<&str> = left_out.iter().map(|(step, _)| *step).collect();
        steps.dedup();
        if !steps.is_empty() {
            self.say(&format!("the rest: --only {}", steps.join(",")))?;
        }
        Ok(())
    }
}

fn line(cells: &[String; COLUMNS.len()]) -> String {
    let padded: Vec<String> =
        cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:<width$}")).collect();
    padded.join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_begins_when_the_time_is_up_and_the_end_names_those_that_did_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let row = |operation| Row { what: "a model".into(), operation, bytes: 2_000_000_000, predicted: "-" };
        let mut report = Report::new(Plan::default(), ("a GPU", 4), folder.path()).expect("writable");
        assert!(report.begins("decode") && !report.begins(ON_REQUEST));
        report.row(&row("in time"), || Ok((Some(2.0), Some(4.0)))).expect("is measured");
        report.plan.time = Some(Duration::ZERO);
        report.row(&row("too late"), || panic!("is not measured")).expect("is left out");
        assert!(!report.begins("encode"));
        let kept = || fs::read_to_string(folder.path().join("results.txt")).expect("is there");
        let before = kept();
        let cells: Vec<&str> = before.lines().last().expect("a row").split_whitespace().collect();
        assert_eq!(cells[2..9], ["in", "time", "2.000", "1000.0", "0.004", "4.000", "500.0"]);
        report.end().expect("writable");
        let end = kept().split_off(before.len());
        assert!(end.contains("decode: a model, too late") && end.contains("encode: all of it"), "{end}");
        assert!(end.ends_with("--only decode,encode\n"), "{end}");
    }
}
