//! The tables of `kvasir-lab bench quality`.

use super::QualityReport;
use kvasir_cli::output::columns;
use kvasir_types::Quality;

/// A ratio for display.
pub(in super::super) fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"))
}

/// A KL at which sizes are compared, for display: with its share of the zero-prefix KL if it is one.
pub(in super::super) fn quality(kl: f64, share: Option<f64>) -> String {
    share.map_or_else(|| kl.to_string(), |share| format!("{kl:.2e} ({:.1} %)", share * 100.0))
}

/// Name and variant of a codec.
pub(in super::super) fn label(codec: &str, variant: &str) -> String {
    if variant.is_empty() { codec.to_owned() } else { format!("{codec} {variant}") }
}

/// Head and lines of the table of targets.
pub(in super::super) fn verdict_table(report: &QualityReport) -> Vec<Vec<String>> {
    let mut rows = vec![["target", "chunk", "KL", "ratio", "at most", ""].map(str::to_owned).to_vec()];
    rows.extend(report.verdicts.iter().map(|verdict| {
        vec![
            verdict.target.clone(),
            verdict.chunk_tokens.to_string(),
            quality(verdict.kl, verdict.kl_share),
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
pub(in super::super) fn row_table(report: &QualityReport) -> Vec<Vec<String>> {
    let head = [
        "codec",
        "level",
        "chunk",
        "text",
        "bits/element",
        "error",
        "quality",
        "KL (95 %)",
        "KL share",
        "top-1",
        "perplexity",
        "retrieval (exact)",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(report.rows.iter().map(|row| {
        vec![
            label(&row.codec, &row.variant),
            row.level.to_string(),
            row.chunk_tokens.to_string(),
            row.domain.clone(),
            format!("{:.3}", row.bits_per_element),
            row.error.map_or_else(|| "–".to_owned(), |error| error.to_string()),
            row.quality().map_or("–", Quality::name).to_owned(),
            format!("{:.2e} ({:.1e}–{:.1e})", row.kl, row.kl_low, row.kl_high),
            ratio(row.kl_share),
            format!("{:.1} %", row.top1 * 100.0),
            format!("{:.3}", row.perplexity),
            format!("{:.3} ({:.3})", row.retrieval, row.retrieval_exact),
        ]
    }));
    rows
}

/// The printed report.
pub(super) fn text(report: &QualityReport) -> String {
    format!("{}\n\n{}", columns(&row_table(report)), columns(&verdict_table(report)))
}
