//! Common parts of reports: result files, sections of pages, and figures that JSON cannot represent.

use std::{collections::BTreeMap, path::Path};

use anyhow::Result;
use kvasir_plot::{Axis, Guide, Mark, Page, Plot, Series, Side, Table};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{process::usage::Machine, traffic::record::Summary};

/// The last line of every page.
pub(crate) const FOOTER: &str = "Drawn by kvasir-load from the result's JSON document.";

/// Writes `NAME.json` and `NAME.html`, each as a whole: a process that is killed meanwhile leaves the former one.
pub(crate) fn write(out: &Path, name: &str, json: &impl Serialize, html: &str) -> Result<()> {
    std::fs::create_dir_all(out)?;
    replace(&out.join(format!("{name}.json")), &(serde_json::to_string_pretty(json)? + "\n"))?;
    replace(&out.join(format!("{name}.html")), html)
}

fn replace(path: &Path, text: &str) -> Result<()> {
    let aside = path.with_added_extension("new");
    std::fs::write(&aside, text)?;
    Ok(std::fs::rename(&aside, path)?)
}

/// A table with these columns.
pub(crate) fn table(columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    Table {
        head: columns.iter().map(|&column| column.to_owned()).collect(),
        rows: rows.into_iter().collect(),
    }
}

/// The machine of a result, in one line.
pub(crate) fn machine(machine: &Machine) -> String {
    format!("Machine: {machine}.")
}

/// The skipped measurements, with reasons.
pub(crate) fn skipped(page: &mut Page, skipped: &BTreeMap<String, String>) {
    skipped.iter().for_each(|(name, reason)| page.paragraph(&format!("Skipped {name}: {reason}")));
}

/// A series on the left axis.
pub(crate) fn line(name: &str, mark: Mark, points: impl Iterator<Item = (f64, f64)>) -> Series {
    Series { name: name.to_owned(), mark, side: Side::Left, points: points.map(Into::into).collect() }
}

/// The 99th percentile of every second, by load. A second in which no request succeeded has none.
pub(crate) fn p99_plot(loads: &[(&str, &Summary)], guides: Vec<Guide>) -> Plot {
    let series = |(name, load): &(&str, &Summary)| {
        let seconds = load.seconds.iter().enumerate();
        let p99 = |p99_ms: f64| if p99_ms > 0.0 { p99_ms } else { f64::NAN };
        line(name, Mark::Line, seconds.map(|(at, second)| (at as f64, p99(second.p99_ms))))
    };
    Plot {
        description: "99th percentile of the latency of each second".to_owned(),
        x: Axis::from_zero("seconds"),
        left: Axis::log("p99, ms"),
        right: None,
        series: loads.iter().map(series).collect(),
        guides,
    }
}

/// Reads a figure; JSON has `null` if it was not a number or infinite.
pub(crate) fn finite_or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// As [`finite_or_nan`], for figures by name.
pub(crate) fn finite_or_nan_by_name<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    let figures = BTreeMap::<String, Option<f64>>::deserialize(deserializer)?;
    Ok(figures.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect())
}
