//! `kvasir-load`: load and fault scenarios against the service, comparisons with other servers, and
//! projections to larger installations.
#![forbid(unsafe_code)]

mod apart;
mod arguments;
mod cluster;
mod deadlines;
mod divided;
mod hour;
mod http;
mod index_rows;
mod link;
mod peers;
mod process;
mod projection;
mod render;
mod replay;
mod report;
mod scale_out;
mod scenario;
mod speed;
mod traffic;

use std::{io::Write as _, net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use kvasir_tests::s3::{Lacks, S3Server};

use crate::scenario::{run::RunArguments, spec::Scenario};

/// Measures the service under load and faults, compares it with other servers, and projects to larger clusters.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs scenarios in sequence. Exits with 1 if a threshold was missed.
    Run(RunArguments),
    Peers(peers::PeersArguments),
    ScaleOut(scale_out::ScaleArguments),
    Link(link::LinkArguments),
    Deadlines(deadlines::DeadlineArguments),
    Hour(hour::HourArguments),
    Apart(apart::ApartArguments),
    Project(projection::ProjectArguments),
    Report(render::ReportArguments),
    /// Measures single operations against nginx and an S3 server, in alternating pairs.
    #[command(subcommand)]
    Speed(speed::SpeedCommand),
    /// Runs a separate S3 server until it is killed.
    #[command(hide = true)]
    S3Server {
        /// Address to listen on.
        listen: SocketAddr,
    },
}

/// Prints a progress line.
fn say(text: &str) {
    // A closed output ends nothing.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Files that are named, and those of folders that are.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in named {
        if path.is_dir() {
            let entries = std::fs::read_dir(path)?.map(|entry| entry.map(|e| e.path()));
            let mut inside: Vec<_> = entries.collect::<std::io::Result<_>>()?;
            inside.retain(|path| path.extension().is_some_and(|e| e == "toml"));
            inside.sort();
            all.extend(inside);
        } else {
            all.push(path.clone());
        }
    }
    Ok(all)
}

async fn run_all(arguments: &RunArguments) -> Result<bool> {
    let mut passed = true;
    for file in files(&arguments.scenarios)? {
        let mut scenario = Scenario::open(&file)?;
        scenario.seed = arguments.seed.unwrap_or(scenario.seed);
        scenario.seconds = arguments.seconds.unwrap_or(scenario.seconds);
        if arguments.smoke {
            scenario = scenario.smaller();
        }
        let begun = std::time::Instant::now();
        let outcome = Box::pin(scenario::run::run(arguments, &scenario)).await;
        let outcome = outcome.with_context(|| scenario.name.clone())?;
        report::write(&arguments.common.out, &scenario.name, &outcome, &scenario::page::page(&outcome))?;
        say(&scenario::page::lines(&outcome, begun.elapsed()));
        passed &= outcome.passed();
    }
    Ok(passed)
}

async fn run_command(command: Command) -> Result<bool> {
    match command {
        Command::Run(arguments) => Box::pin(run_all(&arguments)).await,
        Command::Peers(arguments) => {
            let compared = Box::pin(peers::compare(&arguments)).await?;
            report::write(&arguments.common.out, "peers", &compared, &compared.page())?;
            say(&compared.lines());
            Ok(compared.passed())
        }
        Command::ScaleOut(arguments) => {
            let scaling = Box::pin(scale_out::scale(&arguments)).await?;
            say(&scaling.lines());
            Ok(scaling.passed())
        }
        Command::Project(arguments) => {
            let projection = projection::project(&arguments)?;
            report::write(&arguments.out, "projection", &projection, &projection.page())?;
            say(&projection.lines());
            Ok(true)
        }
        Command::Link(arguments) => {
            let links = Box::pin(link::measure(&arguments)).await?;
            report::write(&arguments.common.out, "link", &links, &links.page())?;
            say(&links.lines());
            Ok(true)
        }
        Command::Deadlines(arguments) => {
            let deadlines = Box::pin(deadlines::measure(&arguments)).await?;
            report::write(&arguments.common.out, "deadlines", &deadlines, &deadlines.page())?;
            say(&deadlines.lines());
            Ok(true)
        }
        Command::Hour(arguments) => {
            let out = arguments.out();
            let hour = tokio::task::spawn_blocking(move || hour::run(&arguments)).await??;
            report::write(&out, "hour", &hour, &hour::page(&hour))?;
            say(&hour.lines());
            Ok(hour.passed())
        }
        Command::Apart(arguments) => {
            let apart = Box::pin(apart::measure(&arguments)).await?;
            report::write(&arguments.common.out, "apart", &apart, &apart.page())?;
            say(&apart.lines());
            Ok(true)
        }
        Command::Report(arguments) => {
            render::report(&arguments)?.iter().for_each(|page| say(&page.display().to_string()));
            Ok(true)
        }
        Command::Speed(_) => unreachable!("main runs it"),
        Command::S3Server { listen } => {
            let _server = S3Server::start_at(listen, Lacks::default()).await;
            std::future::pending().await
        }
    }
}

fn main() -> Result<ExitCode> {
    let command = Arguments::parse().command;
    // Measured on a runtime of one thread, outside of the other one.
    if let Command::Speed(command) = command {
        speed::run(command)?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let passed = runtime.block_on(run_command(command))?;
    runtime.shutdown_background();
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
