//! `kvasir-lab sim evict`: replay a request trace through the eviction policies.

mod page;

use std::path::{Path, PathBuf};

use super::RecordedTrace;
use crate::eviction::{
    ComparedPolicy, EvictReport, ParseComparedPolicyError, RecomputeModel, ReplayOptions, replay,
};
use clap::Args;
use kvasir_replay::trace::TraceError;

use kvasir_cli::{
    error::{CliError, CliResult, Exit, write_file},
    output::{columns, print, print_json},
};

/// Arguments of `kvasir-lab sim evict`.
#[derive(Debug, Args)]
pub(crate) struct EvictArguments {
    #[command(flatten)]
    recorded: RecordedTrace,
    /// Policies, separated by commas: all, belady, or names as in the result.
    #[arg(long, default_value = "all", value_delimiter = ',', value_parser = policy)]
    policy: Vec<PolicyChoice>,
    /// Capacities in per cent of the trace's unique blocks, separated by commas.
    #[arg(long, default_value = "1%,2%,5%,10%,20%,50%", value_delimiter = ',', value_parser = capacity)]
    capacity: Vec<f64>,
    /// Share of the requests that only warms the caches (0.5 = count the second half).
    #[arg(long, default_value_t = 0.0, value_parser = warm_share)]
    warm: f64,
    /// Threads to replay with.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Print the result as one JSON document.
    #[arg(long)]
    json: bool,
    /// Print the hit ratios as a Markdown table.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Write an HTML report with plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The values of `--policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PolicyChoice {
    All,
    Belady,
    One(ComparedPolicy),
}

fn policy(text: &str) -> Result<PolicyChoice, String> {
    match text {
        "all" => Ok(PolicyChoice::All),
        "belady" => Ok(PolicyChoice::Belady),
        name => {
            name.parse().map(PolicyChoice::One).map_err(|error: ParseComparedPolicyError| error.to_string())
        }
    }
}

pub(super) fn capacity(text: &str) -> Result<f64, String> {
    let number: f64 =
        text.trim_end_matches('%').parse().map_err(|_| format!("{text:?} is not a percentage"))?;
    if (0.0..=100.0).contains(&number) {
        Ok(number / 100.0)
    } else {
        Err("not within 0 % and 100 %".to_owned())
    }
}

fn warm_share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if (0.0..1.0).contains(&number) { Ok(number) } else { Err("must be at least 0 and below 1".to_owned()) }
}

/// Runs the command.
pub(crate) fn run(arguments: &EvictArguments) -> CliResult {
    let (policies, belady) = policies(&arguments.policy);
    let trace = &arguments.recorded.trace;
    let options = ReplayOptions {
        trace: arguments.recorded.source(),
        policies,
        belady,
        capacities: arguments.capacity.clone(),
        warm_share: arguments.warm,
        recompute: RecomputeModel::default(),
        threads: usize::from(arguments.threads),
    };
    let outcome = replay(&options).map_err(|error| trace_error(trace, error))?;
    let report = EvictReport::new(&outcome);
    if let Some(path) = &arguments.html {
        let name = trace.file_name().unwrap_or_default().to_string_lossy();
        write_file(path, page::render(&report, &name).as_bytes())?;
    }
    match (arguments.json, arguments.markdown) {
        (true, _) => print_json(&report),
        (false, true) => print(&markdown(&report)),
        (false, false) => print(&text(&report)),
    }
}

pub(super) fn trace_error(path: &Path, error: TraceError) -> CliError {
    match error {
        TraceError::Io(error) => CliError::new(
            Exit::NoInput,
            format!("cannot read {}: {error}", path.display()),
            "Check the path.",
        ),
        TraceError::Line { .. } => CliError::new(
            Exit::Data,
            format!("{}: {error}", path.display()),
            "Check --format, or remove the line.",
        ),
        TraceError::Empty | TraceError::Changed | TraceError::Format { .. } => CliError::data(path, error),
    }
}

/// The online policies, each once, and whether to run Belady's MIN.
fn policies(choices: &[PolicyChoice]) -> (Vec<ComparedPolicy>, bool) {
    let mut kinds = Vec::new();
    for choice in choices {
        match choice {
            PolicyChoice::All => kinds.extend(ComparedPolicy::ALL),
            PolicyChoice::One(kind) => kinds.push(*kind),
            PolicyChoice::Belady => {}
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    kinds.retain(|kind| seen.insert(*kind));
    (kinds, choices.iter().any(|choice| matches!(choice, PolicyChoice::All | PolicyChoice::Belady)))
}

/// Per cent with two decimals.
pub(super) fn percent(ratio: f64) -> String {
    format!("{:.2}", ratio * 100.0)
}

/// A capacity, for people.
pub(super) fn share(capacity: f64) -> String {
    format!("{}%", (capacity * 1e6).round() / 1e4)
}

fn capacities(report: &EvictReport) -> Vec<f64> {
    let mut capacities: Vec<f64> = report.rows.iter().map(|row| row.capacity).collect();
    capacities.sort_by(f64::total_cmp);
    capacities.dedup();
    capacities
}

/// The hit ratios as a table of a Markdown document, the highest of the online policies in bold; without the times, so
/// that it is the same on every machine.
fn markdown(report: &EvictReport) -> String {
    let (head, lines) = hit_table(report);
    let kept = head.len() - 1;
    let mut out = format!("| {} |\n|{}\n", head[..kept].join(" | "), "---|".repeat(kept));
    for line in &lines {
        let best = |column: usize| {
            let number = |line: &Vec<String>| line[column].parse::<f64>().unwrap_or(f64::MIN);
            let online = lines.iter().filter(|line| line[0] != "belady").map(number);
            line[0] != "belady" && (1..kept).contains(&column) && number(line) >= online.fold(0.0, f64::max)
        };
        let cells = line[..kept].iter().enumerate();
        let cells =
            cells.map(|(column, cell)| if best(column) { format!("**{cell}**") } else { cell.clone() });
        out.push_str(&format!("| {} |\n", cells.collect::<Vec<_>>().join(" | ")));
    }
    out
}

/// Hit ratios in per cent: one line a policy, one column a capacity.
fn hit_table(report: &EvictReport) -> (Vec<String>, Vec<Vec<String>>) {
    let capacities = capacities(report);
    let mut head = vec!["policy".to_owned()];
    head.extend(capacities.iter().map(|capacity| share(*capacity)));
    head.extend(["mean", "gap %", "saved %", "ns"].map(str::to_owned));
    let lines = report.summaries.iter().map(|summary| {
        let own: Vec<_> = report.rows.iter().filter(|row| row.policy == summary.policy).collect();
        let mean =
            |value: &dyn Fn(usize) -> f64| (0..own.len()).map(value).sum::<f64>() / own.len().max(1) as f64;
        let at = |capacity: &f64| own.iter().find(|row| row.capacity == *capacity);
        let mut line = vec![summary.policy.clone()];
        line.extend(
            capacities
                .iter()
                .map(|capacity| at(capacity).map_or(String::new(), |row| percent(row.hit_ratio))),
        );
        line.push(percent(summary.mean_hit_ratio));
        line.push(summary.gap_closed.map_or("-".to_owned(), percent));
        line.push(percent(mean(&|index| own[index].seconds_saved_ratio)));
        line.push(format!("{:.0}", mean(&|index| own[index].ns_per_eviction)));
        line
    });
    let lines = lines.collect();
    (head, lines)
}

fn text(report: &EvictReport) -> String {
    let trace = &report.trace;
    let (head, lines) = hit_table(report);
    let mut rows = vec![head];
    rows.extend(lines);
    format!(
        "{} requests, {} block accesses, {} unique blocks of {} tokens, ideal hit ratio {} %\n\
         hit ratio in % by capacity; the default policy is {}\n\n{}",
        trace.requests,
        trace.block_accesses,
        trace.unique_blocks,
        trace.block_tokens,
        percent(trace.ideal_hit_ratio),
        report.default,
        columns(&rows)
    )
}

#[cfg(test)]
mod tests {
    use kvasir_eviction::PolicyKind;
    use kvasir_replay::trace::TraceFormat;

    use super::*;

    #[test]
    fn arguments_are_checked() {
        assert_eq!((capacity("1%"), capacity("50")), (Ok(0.01), Ok(0.5)));
        assert!(
            [capacity("101%"), capacity("-1"), capacity("x"), capacity("NaN")].iter().all(Result::is_err)
        );
        assert!([warm_share("1"), warm_share("-0.1"), warm_share("y")].iter().all(Result::is_err));
        let choices = ["all", "lru", "belady"].map(|name| policy(name).unwrap());
        let (kinds, belady) = policies(&choices);
        assert_eq!((kinds.len(), belady), (ComparedPolicy::ALL.len(), true));
        assert_eq!(policies(&choices[1..2]), (vec![ComparedPolicy::Shipped(PolicyKind::Lru)], false));
        assert!(policy("mru").is_err());
    }

    #[test]
    fn the_page_and_the_table_hold_every_policy() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for step in 0..60u64 {
            let row = format!(
                "{{\"timestamp\":{},\"input_length\":1024,\"output_length\":1,\"hash_ids\":[0,{}]}}\n",
                step * 1000,
                step % 7
            );
            std::io::Write::write_all(&mut file, row.as_bytes()).unwrap();
        }
        let options = ReplayOptions {
            trace: RecordedTrace { trace: file.path().to_owned(), format: TraceFormat::Mooncake }.source(),
            policies: ComparedPolicy::ALL.to_vec(),
            belady: true,
            capacities: vec![0.1, 0.5],
            warm_share: 0.0,
            recompute: RecomputeModel::default(),
            threads: 1,
        };
        let report = EvictReport::new(&replay(&options).unwrap());
        let (text, page) = (text(&report), page::render(&report, "<trace>"));
        let table = markdown(&report);
        assert_eq!(table.lines().count(), 2 + ComparedPolicy::ALL.len() + 1);
        assert!(table.contains("| policy | 10% | 50% | mean |") && table.contains("**"), "{table}");
        for kind in ComparedPolicy::ALL {
            assert!(text.contains(kind.name()) && page.contains(kind.name()), "{kind}");
        }
        assert!(page.contains("&lt;trace&gt;") && page.matches("<svg").count() >= 5);
    }
}
