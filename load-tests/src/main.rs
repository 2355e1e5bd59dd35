//! `kvasir-load`: scenarios of load and faults against the service, peers beside it, and what follows for larger ones.
#![forbid(unsafe_code)]

mod arrivals;
mod calls;
mod clock;
mod disk;
mod drive;
mod engine;
mod faults;
mod link;
mod objects;
mod outcome;
mod peers;
mod proc;
mod project;
mod record;
mod remote;
mod replay;
mod report;
mod requests;
mod rows;
mod run;
mod scale;
mod scenario;
mod svg;
mod tenants;
mod trace;
mod truth;
mod world;

use std::{
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use kvasir_tests::s3::{Lacks, S3Server};

use crate::{outcome::Outcome, scenario::Scenario};

/// Load, faults and peers: numbers that can be made again.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs scenarios, one after the other. Ends with 1 where a gate did not hold.
    Run(RunArguments),
    Peers(peers::PeersArguments),
    ScaleOut(scale::ScaleArguments),
    Link(link::LinkArguments),
    Project(project::ProjectArguments),
    /// An S3 server of its own process, until it is killed.
    #[command(hide = true)]
    S3Server {
        /// Where to listen.
        listen: SocketAddr,
    },
}

/// What every measurement needs.
#[derive(Debug, Clone, Args)]
struct Common {
    /// The `kvasir` binary.
    #[arg(long, default_value = "target/release/kvasir")]
    kvasir: PathBuf,
    /// Further settings of the service, as `section.key=value`.
    #[arg(long = "set", value_name = "SETTING")]
    settings: Vec<String>,
    /// The trace file of a replay, as NAME=FILE (JSON lines, or these through zstd); a synthetic one otherwise.
    #[arg(long = "trace", value_name = "NAME=FILE", value_parser = named_file)]
    traces: Vec<(String, PathBuf)>,
    /// Folder for results: NAME.json and NAME.html.
    #[arg(long, default_value = "target/load")]
    out: PathBuf,
}

#[derive(Debug, Args)]
struct RunArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    remote: remote::RemoteArguments,
    /// Files of scenarios, or folders of them.
    #[arg(required = true)]
    scenarios: Vec<PathBuf>,
    /// The size for CI: seconds each, and no bounds on times.
    #[arg(long)]
    smoke: bool,
    /// How long requests arrive, instead of what the scenario says: for soaks.
    #[arg(long)]
    seconds: Option<f64>,
    /// Seed of all that is random, instead of the scenario's.
    #[arg(long)]
    seed: Option<u64>,
}

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("a trace is given as NAME=FILE")?;
    Ok((name.to_owned(), file.into()))
}

/// Prints a line for whoever waits.
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

/// Writes `NAME.json` and `NAME.html`.
fn write(out: &Path, name: &str, json: &impl serde::Serialize, html: &str) -> Result<()> {
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join(format!("{name}.json")), serde_json::to_string_pretty(json)? + "\n")?;
    Ok(std::fs::write(out.join(format!("{name}.html")), html)?)
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
        let outcome: Outcome =
            Box::pin(run::run(arguments, &scenario)).await.with_context(|| scenario.name.clone())?;
        write(&arguments.common.out, &scenario.name, &outcome, &report::html(&outcome))?;
        say(&report::lines(&outcome, begun.elapsed()));
        passed &= outcome.passed();
    }
    Ok(passed)
}

async fn command(arguments: Arguments) -> Result<bool> {
    match arguments.command {
        Command::Run(arguments) => Box::pin(run_all(&arguments)).await,
        Command::Peers(arguments) => {
            let compared = Box::pin(peers::compare(&arguments)).await?;
            write(&arguments.common.out, "peers", &compared, &compared.html())?;
            say(&compared.lines());
            Ok(compared.passed())
        }
        Command::ScaleOut(arguments) => {
            let scaling = Box::pin(scale::scale(&arguments)).await?;
            write(&arguments.common.out, "scale-out", &scaling, &scaling.html())?;
            say(&scaling.lines());
            Ok(scaling.passed())
        }
        Command::Project(arguments) => {
            let projection = project::project(&arguments)?;
            write(&arguments.out, "projection", &projection, &projection.html())?;
            say(&projection.lines());
            Ok(true)
        }
        Command::Link(arguments) => {
            let links = Box::pin(link::measure(&arguments)).await?;
            write(&arguments.common.out, "link", &links, &links.html())?;
            say(&links.lines());
            Ok(true)
        }
        Command::S3Server { listen } => {
            let _server = S3Server::start_at(listen, Lacks::default()).await;
            std::future::pending().await
        }
    }
}

fn main() -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let passed = runtime.block_on(command(Arguments::parse()))?;
    runtime.shutdown_background();
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
