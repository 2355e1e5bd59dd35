//! The report of `kvasir-lab bench budgets`.

use crate::{
    commands::bench::page::table as html_table,
    insights::{DeltaVariance, GroupedEntropy},
};
use kvasir_engine::quality::Estimate;
use kvasir_types::Plane;

use super::{
    BudgetReport, Insights,
    case::{BudgetRow, SQUEEZE_P},
    sweep::P_SHARES,
    tasks::TaskRow,
};
use kvasir_plot::{Axis, Figure, Mark, Page, Plot, Series, Side};

/// Rows as comma-separated values, one table after the other.
pub(super) fn csv(report: &BudgetReport) -> String {
    let mut out = String::from(
        "table,method,coding,budget,squeeze_p,kept,bytes,kl,kl_low,kl_high,nats_rise,nats_rise_low,nats_rise_high,\
         top1,top1_low,top1_high,perplexity,perplexity_exact,windows\n",
    );
    let tables =
        [("compositions", &report.compositions), ("budgets", &report.budgets), ("squeeze", &report.squeeze)];
    for (name, row) in tables.into_iter().flat_map(|(name, rows)| rows.iter().map(move |row| (name, row))) {
        let three = |e: &Estimate| format!("{},{},{}", e.mean, e.low, e.high);
        out.push_str(&format!(
            "{name},{},{},{},{},{},{},{},{},{},{},{},{}\n",
            row.method,
            row.coding,
            row.budget,
            row.squeeze_p.map_or_else(String::new, |p| p.to_string()),
            row.kept,
            row.bytes,
            three(&row.kl),
            three(&row.nats_rise),
            three(&row.top1),
            row.perplexity,
            row.perplexity_exact,
            row.windows
        ));
    }
    out
}

/// Head and lines of a table.
pub(super) fn table(rows: &[BudgetRow]) -> Vec<Vec<String>> {
    let head = ["method", "p", "coding", "kept", "bytes", "KL (95 %)", "perplexity", "top-1"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        vec![
            row.method.clone(),
            row.squeeze_p.map_or_else(|| "–".to_owned(), |p| format!("{p:.2}")),
            row.coding.clone(),
            format!("{:.1} %", row.kept * 100.0),
            format!("{:.0}", row.bytes),
            format!("{:.2e} ({:.1e}–{:.1e})", row.kl.mean, row.kl.low.max(0.0), row.kl.high),
            format!("{:.3} ({:.3})", row.perplexity, row.perplexity_exact),
            format!("{:.1} %", row.top1.mean * 100.0),
        ]
    }));
    lines
}

/// Scores of questions.
pub(super) fn task_table(rows: &[TaskRow]) -> Vec<Vec<String>> {
    let mut lines =
        vec![["cache", "task", "questions", "right (95 %)", "F1 (95 %)"].map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        let range = |e: &Estimate| format!("{:.2} ({:.2}–{:.2})", e.mean, e.low.max(0.0), e.high.min(1.0));
        let kind = format!("{:?}", row.kind).to_lowercase();
        vec![row.cache.clone(), kind, row.asked.to_string(), range(&row.right), range(&row.f1)]
    }));
    lines
}

/// Mean over layers of a variance over the deltas'.
fn ratio(insights: &Insights, plane: Plane, of: fn(&DeltaVariance) -> f64) -> f64 {
    let own = insights.variances.iter().filter(|row| row.plane == plane);
    mean(&own.map(|row| of(row) / row.deltas).collect::<Vec<_>>())
}

/// KL of rounding a layer of the first third over that of one of the last.
fn early_over_late(insights: &Insights) -> f64 {
    let losses: Vec<f64> = insights.sensitivity.iter().map(|row| row.quality.kl.mean).collect();
    let third = losses.len().div_ceil(3);
    mean(&losses[..third]) / mean(&losses[losses.len() - third..])
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// CacheGen's figures next to ours, over all windows.
pub(super) fn insight_table(windows: &[Insights]) -> Vec<Vec<String>> {
    let over = |of: &dyn Fn(&Insights) -> f64| Estimate::of_mean(&windows.iter().map(of).collect::<Vec<_>>());
    let ratio_of = |plane, of: fn(&DeltaVariance) -> f64| over(&|insights| ratio(insights, plane, of));
    let plain = |e: Estimate| format!("{:.2} ({:.2}–{:.2})", e.mean, e.low, e.high);
    let saved = |of: fn(&GroupedEntropy) -> f64| {
        let e = over(&|insights| (1.0 - of(&insights.entropy) / insights.entropy.global) * 100.0);
        format!("{:.1} % ({:.1}–{:.1})", e.mean, e.low, e.high)
    };
    let row = |what: &str, here: String, paper: &str| vec![what.to_owned(), here, paper.to_owned()];
    vec![
        row("observation", "here (95 %)".to_owned(), "CacheGen"),
        row(
            "Fig. 3: variance over that of deltas, K, channels pooled",
            plain(ratio_of(Plane::K, |r| r.pooled)),
            "2.4–2.9",
        ),
        row("… V", plain(ratio_of(Plane::V, |r| r.pooled)), "2.4–2.9"),
        row("… K, once channel means are known", plain(ratio_of(Plane::K, |r| r.along_tokens)), "–"),
        row("… V", plain(ratio_of(Plane::V, |r| r.along_tokens)), "–"),
        row("Fig. 4: KL of rounding an early over a late layer", plain(over(&early_over_late)), "above 1"),
        row("Fig. 5: entropy saved by knowing the token position", saved(|e| e.by_token), "little"),
        row("… the layer", saved(|e| e.by_layer), "more"),
        row("… the channel", saved(|e| e.by_channel), "more"),
        row("… layer and channel", saved(|e| e.by_layer_and_channel), "most"),
    ]
}

fn line(name: String, points: impl Iterator<Item = (f64, f64)>) -> Series {
    Series { name, mark: Mark::Joined, side: Side::Left, points: points.map(Into::into).collect() }
}

/// KL is plotted on a logarithmic axis, which cannot show a loss of zero.
const KL_MIN: f64 = 1e-6;

fn over_budgets(rows: &[BudgetRow]) -> Plot {
    let mut series = Vec::new();
    for method in ["sliding_window", "streaming_llm", "h2o", "scissorhands"] {
        for p in [None, Some(SQUEEZE_P)] {
            let own =
                rows.iter().filter(|row| row.method == method && row.squeeze_p == p && row.kl.mean > KL_MIN);
            let name = format!("{method}{}", p.map_or("", |_| " squeezed"));
            series.push(line(name, own.map(|row| (row.budget * 100.0, row.kl.mean))));
        }
    }
    Plot {
        description: "Logit KL over the share of tokens kept, with and without SqueezeAttention".to_owned(),
        x: Axis { label: "tokens kept, %".to_owned(), ..Axis::default() },
        left: Axis::log("KL, nats per token"),
        right: None,
        series,
        guides: Vec::new(),
    }
}

fn over_p(rows: &[BudgetRow]) -> Plot {
    let of = |(method, share): (&str, f64)| {
        let own = rows.iter().filter(|row| row.method == method && row.budget == share);
        let name = format!("{method}, {:.0} % kept", share * 100.0);
        line(name, own.filter_map(|row| Some((row.squeeze_p?, row.kl.mean))))
    };
    let methods = ["sliding_window", "streaming_llm", "h2o"];
    Plot {
        description: "Logit KL over SqueezeAttention's p at two budgets".to_owned(),
        x: Axis { label: "p".to_owned(), ..Axis::default() },
        left: Axis::from_zero("KL, nats per token"),
        right: None,
        series: P_SHARES.iter().flat_map(|share| methods.map(|method| of((method, *share)))).collect(),
        guides: Vec::new(),
    }
}

/// One line a method: its 8-bit cache, and ours on it from coarse to fine.
fn size_against_quality(report: &BudgetReport) -> Plot {
    let mut series = Vec::new();
    for method in ["none", "streaming_llm", "h2o", "scissorhands", "text_dropping"] {
        let own = report.compositions.iter().filter(|row| {
            row.method == method && row.squeeze_p.is_none() && row.coding != "8-bit" && row.kl.mean > KL_MIN
        });
        let name = if method == "none" { "ours".to_owned() } else { format!("ours on {method}") };
        series.push(line(name, own.map(|row| (row.bytes / 1e3, row.kl.mean))));
    }
    Plot {
        description: "Logit KL over the bytes of a context, for the codec alone and on thinned caches"
            .to_owned(),
        x: Axis::log("kB a context"),
        left: Axis::log("KL, nats per token"),
        right: None,
        series,
        guides: Vec::new(),
    }
}

fn sensitivity(windows: &[Insights]) -> Plot {
    let layers = windows.first().map_or(0, |insights| insights.sensitivity.len());
    let losses = |layer: usize| -> Vec<f64> {
        windows.iter().map(|insights| insights.sensitivity[layer].quality.kl.mean).collect()
    };
    Plot {
        description: "Logit KL of rounding one layer to a standard deviation".to_owned(),
        x: Axis::whole("layer", layers.saturating_sub(1) as u32),
        left: Axis::from_zero("KL, nats per token"),
        right: None,
        series: vec![line(String::new(), (0..layers).map(|layer| (layer as f64, mean(&losses(layer)))))],
        guides: Vec::new(),
    }
}

/// The page.
pub(super) fn render(report: &BudgetReport) -> String {
    let lede = format!(
        "kvasir-tiny, {} windows: {} tokens of prefix thinned and coded, {} tokens teacher forced over them. \
         Everything called a level went through a Kvasir service. Intervals are 95 % over windows; nothing is random.",
        report.windows, report.prefix, report.suffix
    );
    let mut page = Page::new("Token and layer budgets", &lede);
    let of = |method: &str, coding: &str| {
        report.compositions.iter().find(|r| r.method == method && r.coding == coding && r.squeeze_p.is_none())
    };
    let figures = [("none", "8-bit"), ("none", "level 3"), ("h2o", "8-bit"), ("h2o", "level 3")];
    let figure = |(method, coding): (&str, &str)| {
        let row = of(method, coding)?;
        let label = format!(
            "{} at {coding}, KL {:.1e}",
            if method == "none" { "whole cache" } else { method },
            row.kl.mean
        );
        Some(Figure { value: format!("{:.0} kB", row.bytes / 1e3), label })
    };
    page.figures(&figures.into_iter().filter_map(figure).collect::<Vec<_>>());
    page.heading("Methods alone at 8 bits, and the codec on each");
    page.drawing(
        &size_against_quality(report).to_svg(),
        &format!(
            "Levels of the codec from coarse to fine; thinned caches keep {:.0} % of the tokens.",
            report.share * 100.0
        ),
    );
    page.table(&html_table(table(&report.compositions)));
    page.heading("Quality over budgets, with and without SqueezeAttention");
    page.drawing(
        &over_budgets(&report.budgets).to_svg(),
        "Budgets that lose nothing are left out of the plot.",
    );
    page.table(&html_table(table(&report.budgets)));
    page.heading("SqueezeAttention over p");
    page.drawing(
        &over_p(&report.squeeze).to_svg(),
        "At mean budgets of 30 and 50 % of the tokens; p = 1 changes nothing.",
    );
    page.table(&html_table(table(&report.squeeze)));
    page.heading("Questions about contexts");
    page.paragraph(
        "Compare with the exact cache: a question that the model cannot answer over that is not the fault of a codec.",
    );
    page.table(&html_table(task_table(&report.tasks)));
    page.heading("CacheGen's observations, on this model");
    page.drawing(
        &sensitivity(&report.insights).to_svg(),
        "Fig. 4: one layer at a time rounded to one standard deviation, mean over the windows.",
    );
    page.table(&html_table(insight_table(&report.insights)));
    page.finish("Made by kvasir-lab bench budgets.")
}
