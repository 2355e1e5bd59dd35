//! Single operations of the service, compared with nginx and an S3 server on the same machine in alternating
//! pairs.

mod arguments;
mod get;
mod lookup;
mod memory;
pub(crate) mod page;
mod put;
mod rebuild;
mod replicas;
mod servers;
pub(crate) mod stats;

use std::io::Write as _;

use anyhow::Result;
use clap::{Args, Subcommand};

use self::arguments::SpeedArguments;

/// Measures single operations; prints one JSON document of medians and raw values.
#[derive(Debug, Subcommand)]
pub(crate) enum SpeedCommand {
    /// Hot ranged GET of 16 MB, compared with nginx for the same file and the S3 server for the same object.
    Get(SpeedArguments),
    /// PUT of 16 MB, compared with direct writes of the same bytes to the store; over S3 also with a link of 1 Gb/s before both.
    Put(SpeedArguments),
    /// Warm lookups by 64 chunk ids and by 98,304 raw tokens, with small and large indexes.
    Lookup(LookupArguments),
    /// Resident memory with many concurrent uploads and downloads.
    Memory(MemoryArguments),
    /// `kvasir admin rebuild-index`, from the store and from the journal.
    Rebuild(RebuildArguments),
    /// How soon three replicas see a removal, and how many requests idle replicas send to the store.
    Replicas(ReplicasArguments),
}

#[derive(Debug, Args)]
pub(crate) struct LookupArguments {
    #[command(flatten)]
    common: SpeedArguments,
    /// Chunks in the index.
    #[arg(long, value_delimiter = ',', default_value = "10000,1000000")]
    chunks: Vec<usize>,
    /// Concurrent connections.
    #[arg(long, default_value_t = 4)]
    connections: usize,
}

#[derive(Debug, Args)]
pub(crate) struct RebuildArguments {
    #[command(flatten)]
    common: SpeedArguments,
    /// Chunks in the store.
    #[arg(long, default_value_t = 10_000)]
    chunks: usize,
}

#[derive(Debug, Args)]
pub(crate) struct ReplicasArguments {
    #[command(flatten)]
    common: SpeedArguments,
    /// Removals that are timed.
    #[arg(long, default_value_t = 60)]
    removals: usize,
    /// How long the service stays idle.
    #[arg(long, default_value_t = 300.0)]
    quiet_seconds: f64,
}

#[derive(Debug, Args)]
pub(crate) struct MemoryArguments {
    #[command(flatten)]
    common: SpeedArguments,
    /// Concurrent uploads, then downloads.
    #[arg(long, default_value_t = 256)]
    at_once: usize,
    /// Size of each upload and download, in MiB.
    #[arg(long, default_value_t = 32)]
    mebibytes: usize,
}

/// Runs one of them.
pub(crate) fn run(command: SpeedCommand) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = match command {
        SpeedCommand::Get(common) => get::measure(&runtime, &common)?,
        SpeedCommand::Put(common) => put::measure(&runtime, &common)?,
        SpeedCommand::Lookup(arguments) => {
            lookup::measure(&runtime, &arguments.common, &arguments.chunks, arguments.connections)?
        }
        SpeedCommand::Memory(arguments) => {
            memory::measure(&runtime, &arguments.common, arguments.at_once, arguments.mebibytes << 20)?
        }
        SpeedCommand::Rebuild(arguments) => rebuild::measure(&runtime, &arguments.common, arguments.chunks)?,
        SpeedCommand::Replicas(arguments) => {
            replicas::measure(&runtime, &arguments.common, arguments.removals, arguments.quiet_seconds)?
        }
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&result)?)?;
    Ok(())
}
