//! The paper's sweeps as rows.

use crate::streaming::study::{Cost, Figures, HeatCell, SweepRow};
use serde::Serialize;

use super::percent;
use kvasir_cli::output::columns;

/// `sweeps` of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Document<'a> {
    /// A row for each point of each curve.
    rows: Vec<SweepRow>,
    /// Gain of the published size over the better of text and 8 bits.
    heat: &'a [HeatCell],
    cost: &'a Cost,
    /// Reuses per month from which storing is cheaper.
    break_even_reuses: f64,
}

impl<'a> Document<'a> {
    pub(super) fn of(figures: &'a Figures) -> Self {
        let break_even_reuses = figures.cost.break_even();
        Self { rows: figures.rows(), heat: &figures.heat, cost: &figures.cost, break_even_reuses }
    }
}

fn strings<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Tables beneath the study's.
pub(super) fn text(figures: &Figures) -> String {
    let mut out = String::new();
    let (mut figure, mut table) = ("", Vec::new());
    for swept in figures.rows() {
        if swept.figure != figure {
            out.push_str(&columns(&table));
            figure = swept.figure;
            out.push_str(&format!("\n\nover {figure}\n\n"));
            table = vec![strings(["policy", figure, "p50 ms", "max ms", "violated %", "quality", "MB"])];
        }
        let row = swept.row;
        table.push(vec![
            row.policy,
            format!("{}", swept.x),
            format!("{:.0}", row.ttft_ms_p50),
            format!("{:.0}", row.ttft_ms_max),
            percent(row.violation_rate),
            format!("{:.4}", row.quality),
            format!("{:.0}", row.bytes / 1e6),
        ]);
    }
    out.push_str(&columns(&table));
    out.push_str("\n\ngain of the published size over the better of text and 8 bits\n\n");
    let mut heat = vec![strings(["Gb/s", "share of the GPU", "gain"])];
    heat.extend(figures.heat.iter().map(|cell| {
        vec![format!("{}", cell.gbps), format!("{}", cell.gpu_share), format!("{:.2}", cell.gain)]
    }));
    out.push_str(&columns(&heat));
    let cost = &figures.cost;
    out.push_str(&format!(
        "\n\ncost of a context of 9.4 K tokens: stored {:.5} US$ per month nested, {:.5} as versions; computed {:.6} US$ \
         each time; break-even at {:.0} reuses per month",
        cost.store_month,
        cost.store_versions_month,
        cost.recompute,
        cost.break_even().ceil()
    ));
    out
}
