//! `kvasir-lab sim evict-study`: the policies on recorded, generated and mixed traces, in one table.

use std::path::PathBuf;

use clap::Args;
use kvasir_cli::{
    error::{CliError, CliResult, Exit},
    output::print,
};
use kvasir_eviction::PolicyKind;

use super::evict::share;
use crate::eviction::{
    Baseline, ComparedPolicy, EvictReport, RecomputeModel, ReplayOptions, StudyTrace, TraceSource, replay,
    study_traces,
};

/// Arguments of `kvasir-lab sim evict-study`.
#[derive(Debug, Args)]
pub(crate) struct StudyArguments {
    /// Mooncake's conversation trace; without it, the study omits this trace.
    #[arg(long, value_name = "FILE")]
    conversation: Option<PathBuf>,
    /// A trace in the Bailian format with 64-token blocks; without it, the study omits this trace.
    #[arg(long, value_name = "FILE")]
    agentic: Option<PathBuf>,
    /// Seeds of the generated traces, separated by commas.
    #[arg(long, default_value = "1,2,3", value_delimiter = ',')]
    seeds: Vec<u64>,
}

/// Capacities as shares of a trace's unique blocks.
const CAPACITIES: [f64; 7] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];

/// The policies of the table.
fn policies() -> Vec<ComparedPolicy> {
    use Baseline::{Arc, Gdsf, LeCar, Lfu, Lhd, Lru, S3Fifo, Sieve};
    let shipped = PolicyKind::ALL.map(ComparedPolicy::Shipped);
    let leaf_first = [Lru, Lfu, S3Fifo, Sieve, Gdsf, Arc, LeCar, Lhd].map(ComparedPolicy::LeafFirst);
    shipped
        .into_iter()
        .chain([ComparedPolicy::AdaptiveCost, ComparedPolicy::Workload])
        .chain(leaf_first)
        .collect()
}

/// Runs the command.
pub(crate) fn run(arguments: &StudyArguments) -> CliResult {
    let traces =
        study_traces(arguments.conversation.as_deref(), arguments.agentic.as_deref(), &arguments.seeds);
    let failed =
        |error| CliError::new(Exit::Data, format!("cannot read a trace: {error}"), "Check the paths.");
    let mut kinds: Vec<(&str, Vec<EvictReport>)> = Vec::new();
    for StudyTrace { name, requests } in traces.map_err(failed)? {
        let options = ReplayOptions {
            trace: TraceSource::Requests(requests),
            policies: policies(),
            belady: true,
            capacities: CAPACITIES.to_vec(),
            warm_share: 0.0,
            recompute: RecomputeModel::default(),
            threads: 2,
        };
        let report = EvictReport::new(&replay(&options).map_err(failed)?);
        match kinds.iter_mut().find(|(kind, _)| *kind == name) {
            Some((_, reports)) => reports.push(report),
            None => kinds.push((name, vec![report])),
        }
    }
    for (name, reports) in kinds {
        print(&table(name, &reports))?;
    }
    Ok(())
}

/// Hit ratios of one kind of trace in per cent, means over its seeds; `below best` is the worst seed's, and says where.
fn table(name: &str, reports: &[EvictReport]) -> String {
    let mut out = format!("{name}, {} seeds:\n\n| policy |", reports.len());
    CAPACITIES.iter().for_each(|capacity| out.push_str(&format!(" {} |", share(*capacity))));
    out.push_str(&format!(
        " mean | below best | gap % | saved % |\n|{}\n",
        "---|".repeat(CAPACITIES.len() + 5)
    ));
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len().max(1) as f64 * 100.0;
    for summary in &reports[0].summaries {
        let rows =
            || reports.iter().flat_map(|report| &report.rows).filter(|row| row.policy == summary.policy);
        let own = || {
            let all = reports.iter().flat_map(|report| &report.summaries);
            all.filter(|other| other.policy == summary.policy)
        };
        out.push_str(&format!("| {} |", summary.policy));
        for capacity in CAPACITIES {
            let hits = rows().filter(|row| row.capacity == capacity).map(|row| row.hit_ratio).collect();
            out.push_str(&format!(" {:.2} |", mean(hits)));
        }
        let gaps: Vec<f64> = own().filter_map(|summary| summary.gap_closed).collect();
        let furthest = own().max_by(|one, other| one.below_best_max.total_cmp(&other.below_best_max));
        let below =
            furthest.and_then(|summary| Some((summary.below_best_max * 100.0, summary.below_best_at?)));
        out.push_str(&format!(
            " {:.2} | {} | {:.1} | {:.2} |\n",
            mean(own().map(|summary| summary.mean_hit_ratio).collect()),
            below.map_or("0.00".to_owned(), |(points, at)| format!("{points:.2} at {}", share(at))),
            mean(gaps),
            mean(rows().map(|row| row.seconds_saved_ratio).collect()),
        ));
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_a_policy() {
        let blocks = |step: u64| vec![0, step % 7 + 1];
        let request = |step: u64| kvasir_replay::trace::Request {
            at: kvasir_eviction::Moment::from_millis(step * 1_000),
            input_tokens: 1_024,
            blocks: blocks(step),
            turn: 1,
            ..Default::default()
        };
        let options = ReplayOptions {
            trace: TraceSource::Requests((0..60).map(request).collect()),
            policies: policies(),
            belady: true,
            capacities: CAPACITIES.to_vec(),
            warm_share: 0.0,
            recompute: RecomputeModel::default(),
            threads: 1,
        };
        let report = EvictReport::new(&replay(&options).unwrap());
        let table = table("small", &[report.clone(), report]);
        assert_eq!(table.lines().count(), 4 + policies().len() + 1 + 1, "{table}");
        assert!(policies().iter().all(|policy| table.contains(&format!("| {policy} |"))));
    }
}
