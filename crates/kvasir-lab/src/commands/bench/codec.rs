//! `kvasir-lab bench codec`: speed on one core.

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
    /// Rounds; the best one is reported.
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
    let step = Step::start("codec on one core");
    let rows = codec_speed(usize::from(arguments.rounds), &mut |at| step.at("", at));
    let rows = rows.map_err(CliError::internal)?;
    step.done(&format!("best of {} rounds", arguments.rounds));
    let report = Report { verdicts: speed_verdicts(&rows), rows };
    if arguments.json { print_json(&report) } else { print(&text(&report)) }
}

fn text(report: &Report) -> String {
    let mut rows = vec![["path", "profile", "op", "level", "Gelem/s", "bits"].map(str::to_owned).to_vec()];
    rows.extend(report.rows.iter().map(|row| {
        let level = row.level.map_or_else(String::new, |level| level.to_string());
        let (rate, bits) = (format!("{:.3}", row.gelem_per_s), format!("{:.3}", row.bits));
        vec![row.path.clone(), row.profile.clone(), row.op.clone(), level, rate, bits]
    }));
    let mut verdicts = vec![["target", "measured", "at least", ""].map(str::to_owned).to_vec()];
    verdicts.extend(report.verdicts.iter().map(|verdict| {
        let pass = if verdict.pass { "pass" } else { "MISS" };
        vec![
            verdict.target.clone(),
            format!("{:.2}", verdict.measured),
            format!("{:.1}", verdict.at_least),
            pass.to_owned(),
        ]
    }));
    format!("{}\n\n{}", columns(&rows), columns(&verdicts))
}
