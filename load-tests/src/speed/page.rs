//! The pages of single operations.

use anyhow::{Context as _, Result, bail};
use kvasir_plot::{Axis, Bar, Bars, Mark, Page, Plot, number};
use serde_json::{Map, Value};

use crate::report;

/// Pairs of measurements by the field that holds them: the server compared with the service.
const PAIRS: [(&str, &str); 5] = [
    ("kvasir_nginx", "nginx"),
    ("kvasir_s3", "s3"),
    ("kvasir_direct", "direct"),
    ("kvasir_direct_over_link", super::put::DIRECT_OVER_LINK),
    // `load-tests/python-load`: the Python package compared with the Rust client.
    ("kvasir_rust", "rust"),
];
/// Fields that are not figures.
const NO_FIGURES: [&str; 5] = ["what", "machine", "store", "s3_server", "raw"];

/// The page of a result of `kvasir-load speed`.
pub(crate) fn page(result: &Value) -> Result<String> {
    let what = result["what"].as_str().context("a result says what it is")?;
    let mut page = Page::new("Single operations", what);
    page.paragraph(&format!("Machine: {}", result["machine"]));
    for (field, title) in [("store", "Store"), ("s3_server", "S3 server")] {
        if let Some(text) = result[field].as_str() {
            page.paragraph(&format!("{title}: {text}"));
        }
    }
    let fields = result.as_object().context("a result is an object")?;
    let has_pairs = fields.keys().any(|field| PAIRS.iter().any(|(name, _)| field == name));
    if has_pairs {
        for (field, beside) in PAIRS {
            if let Some(values) = result.get(field) {
                pairs(&mut page, beside, values)?;
            }
        }
    } else if let Some(results) = result["results"].as_array() {
        for result in results {
            let result = result.as_object().context("a result of a size is an object")?;
            page.heading(&format!("{} chunks", result.get("chunks").unwrap_or(&Value::Null)));
            figures(&mut page, result);
        }
    } else if fields.keys().any(|field| field.starts_with("mib_") || field.ends_with("_per_second")) {
        figures(&mut page, fields);
    } else {
        bail!("this is not a result of kvasir-load speed");
    }
    if fields.contains_key("mib_configured") {
        page.paragraph("The result has no memory over time, only the highest of each phase.");
    }
    Ok(page.finish(report::FOOTER))
}

/// Two things measured in turn.
fn pairs(page: &mut Page, beside: &str, values: &Value) -> Result<()> {
    page.heading(&format!("kvasir compared with {beside}"));
    let unit = values["unit"].as_str().context("a unit")?;
    let figure = |name: &str| values[name].as_f64().with_context(|| format!("{name} is a number"));
    let bar = |name: &str| {
        let value = figure(name)?;
        let text = format!("{} {unit}", number(value));
        anyhow::Ok(Bar { label: name.to_owned(), value, text, ours: name == "kvasir" })
    };
    let description = format!("Medians, {unit}");
    let bars =
        Bars { description: description.clone(), bars: vec![bar("kvasir")?, bar(beside)?], limit: None };
    page.drawing(&bars.to_svg(), &description);
    let quotient = number(figure("quotient")?);
    page.paragraph(&format!("Median of the pairs' quotients: {quotient}."));
    let raw = values["raw"].as_array().context("raw values")?;
    let one = |name: &str, at: usize| {
        let points = raw.iter().enumerate().map(|(nth, pair)| ((nth + 1) as f64, pair[at].as_f64()));
        report::line(name, Mark::Joined, points.filter_map(|(x, y)| Some((x, y?))))
    };
    let plot = Plot {
        description: format!("All pairs, {unit}"),
        x: Axis::from_zero("pair"),
        left: Axis::from_zero(unit),
        right: None,
        series: vec![one("kvasir", 0), one(beside, 1)],
        guides: Vec::new(),
    };
    page.drawing(&plot.to_svg(), "Every pair: one measurement of each, in sequence.");
    Ok(())
}

/// Figures by name, and the raw values that medians are of.
fn figures(page: &mut Page, fields: &Map<String, Value>) {
    let shown = |value: &Value| value.as_f64().map_or_else(|| value.to_string(), number);
    let figures = fields.iter().filter(|(name, _)| !NO_FIGURES.contains(&name.as_str()));
    let rows = figures.map(|(name, value)| vec![name.clone(), shown(value)]);
    page.table(&report::table(&["figure", "value"], rows));
    let raw = fields.get("raw").and_then(Value::as_object);
    for (name, values) in raw.into_iter().flatten() {
        page.paragraph(&format!("Raw values, {name}: {values}"));
    }
}
