//! `kvasir-lab bench codec`: speed on one core, and what a second one adds.

use crate::speed::{SpeedRow, SpeedVerdict, codec_speed, speed_verdicts};
use clap::Args;
use serde::Serialize;

use kvasir_cli::{
    error::{CliError, CliResult},
    output::{columns, print, print_json},
    progress::Step,
};

/// Arguments of `kvasir-lab bench codec`.
#[derive(Debug, Args)]
pub(crate) struct CodecArguments {
    /// Rounds; their medians are reported.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Print the result as one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    rows: Vec<SpeedRow>,
    verdicts: Vec<SpeedVerdict>,
}

/// Runs the command.
pub(crate) fn run(arguments: &CodecArguments) -> CliResult {
    let step = Step::start("speed of the codec");
    let rows = codec_speed(usize::from(arguments.rounds), &mut |at| step.at("", at));
    let rows = rows.map_err(CliError::internal)?;
    step.done(&format!("medians of {} rounds", arguments.rounds));
    let report = Report { verdicts: speed_verdicts(&rows), rows };
    if arguments.json { print_json(&report) } else { print(&text(&report)) }
}

fn text(report: &Report) -> String {
    let names = ["path", "profile", "op", "level", "rank", "threads", "Gelem/s", "GFLOP/s", "bits"];
    let mut rows = vec![names.map(str::to_owned).to_vec()];
    rows.extend(report.rows.iter().map(|row| {
        vec![
            row.path.clone(),
            row.profile.clone(),
            row.op.clone(),
            row.level.map_or_else(String::new, |level| level.to_string()),
            row.rank.map_or_else(String::new, |rank| rank.to_string()),
            row.threads.to_string(),
            format!("{:.3}", row.gelem_per_s),
            row.gflop_per_s.map_or_else(String::new, |rate| format!("{rate:.1}")),
            row.bits.map_or_else(String::new, |bits| format!("{bits:.3}")),
        ]
    }));
    let mut verdicts = vec![["target", "measured", "at least", ""].map(str::to_owned).to_vec()];
    verdicts.extend(report.verdicts.iter().map(|verdict| {
        let pass = if verdict.pass { "pass" } else { "MISS" };
        vec![
            verdict.target.clone(),
            format!("{:.3}", verdict.measured),
            format!("{:.2}", verdict.at_least),
            pass.to_owned(),
        ]
    }));
    format!("{}\n\n{}", columns(&rows), columns(&verdicts))
}
