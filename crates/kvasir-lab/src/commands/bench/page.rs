//! The report of `kvasir-lab bench quality`.

use crate::quality::{QUALITIES, RECORDS, WORTH_SHARE};

use super::quality::{QualityReport, label, quality, ratio, row_table, verdict_table};
use kvasir_plot::{Axis, Figure, Guide, Mark, Page, Place, Plot, Series, Side, Table};

/// Codecs that lose next to nothing: their points would stretch the plot.
const KL_MIN: f64 = 1e-5;

/// CacheGen's Figure 9 with our codecs: bits per element over KL, one line per codec, at the longest chunk of
/// the first text.
pub(super) fn size_against_quality(report: &QualityReport) -> Plot {
    let longest = report.rows.iter().map(|row| row.chunk_tokens).max();
    let domain = report.rows.first().map(|row| &row.domain);
    let mut names: Vec<(&str, &str)> = Vec::new();
    for row in &report.rows {
        let name = (row.codec.as_str(), row.variant.as_str());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let series = names.into_iter().filter_map(|(codec, variant)| {
        let own = report.rows.iter().filter(|row| {
            row.codec == codec
                && row.variant == variant
                && Some(row.chunk_tokens) == longest
                && Some(&row.domain) == domain
                && row.kl >= KL_MIN
                && row.bits_per_element > 0.0
        });
        let points: Vec<_> = own.map(|row| (row.bits_per_element, row.kl).into()).collect();
        // Deflate has the points of ours, a little to the right: the table has them.
        (!points.is_empty() && codec != "kvasir_deflate").then(|| Series {
            name: label(codec, variant),
            mark: Mark::Joined,
            side: Side::Left,
            points,
        })
    });
    Plot {
        description: "Logit KL over bits per element, by codec".to_owned(),
        x: Axis::log("bits per element, container included"),
        left: Axis::log("KL, nats per token"),
        right: None,
        series: series.collect(),
        guides: QUALITIES.map(|kl| Guide { at: Place::Y(kl), label: kl.to_string() }).into(),
    }
}

pub(super) fn table(rows: Vec<Vec<String>>) -> Table {
    let mut rows = rows.into_iter();
    Table { head: rows.next().unwrap_or_default(), rows: rows.collect() }
}

/// The page.
pub(super) fn render(report: &QualityReport) -> String {
    let lede = format!(
        "{}: {} tokens of every window pass through the codec; the next {} are computed over them exactly, teacher forced. Equal quality is a KL of {} and of {} nats per token, and of {:.1} % of what zeros in place of the prefix cost.",
        report.model,
        report.prefix,
        report.suffix,
        QUALITIES[0],
        QUALITIES[1],
        WORTH_SHARE * 100.0
    );
    let mut page = Page::new("Size against quality", &lede);
    if report.rows.iter().any(|row| row.domain == RECORDS) {
        page.paragraph("Of records only the answers are judged: KL, top-1 and perplexity are of their tokens, and retrieval is the share of answers predicted whole.");
    }
    let passed = report.verdicts.iter().filter(|v| v.pass == Some(true)).count();
    let measured = report.verdicts.iter().filter(|v| v.pass.is_some()).count();
    let positions = report.rows.first().map_or(0, |row| row.positions);
    page.figures(&[
        Figure {
            value: format!("{passed} of {measured}"),
            label: "targets reached, of those measured".to_owned(),
        },
        Figure { value: positions.to_string(), label: "tokens judge every row of the first text".to_owned() },
    ]);
    page.drawing(
        &size_against_quality(report).to_svg(),
        "Each line is a codec's ladder at the longest chunk; left and below is better. Codecs with almost no loss are omitted.",
    );
    page.heading("Targets");
    page.table(&table(verdict_table(report)));
    page.heading("Bits per element at equal quality");
    let mut sizes = vec![
        ["codec", "text", "chunk", "KL", "bits, levels mixed", "least", "most", "one level"]
            .map(str::to_owned)
            .to_vec(),
    ];
    sizes.extend(report.crossings.iter().map(|crossing| {
        vec![
            label(&crossing.codec, &crossing.variant),
            crossing.domain.clone(),
            crossing.chunk_tokens.to_string(),
            quality(crossing.kl, crossing.kl_share),
            ratio(crossing.bits_per_element),
            ratio(crossing.bits_low),
            ratio(crossing.bits_high),
            ratio(crossing.level_bits_per_element),
        ]
    }));
    page.table(&table(sizes));
    page.heading("All rows");
    page.table(&table(row_table(report)));
    page.finish("Made by `kvasir-lab bench quality`.")
}
