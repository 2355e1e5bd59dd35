//! `kvasir-speed`: the service beside nginx and an S3 server on the same machine, in alternating pairs.
#![forbid(unsafe_code)]

mod get;
mod http;
mod lookup;
mod memory;
mod put;
mod rebuild;
mod servers;
mod stats;

use std::{io::Write as _, path::PathBuf};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// Measures the service; prints one JSON document of medians and raw values.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Hot ranged GET of 16 MB, beside nginx with the same file and the S3 server with the same object.
    Get(Common),
    /// PUT of 16 MB, beside writing the same bytes to the store directly.
    Put(Common),
    /// Warm lookups by 64 chunk ids and by 98,304 raw tokens, with small and large indexes.
    Lookup(LookupArguments),
    /// Resident memory under many uploads and downloads at once.
    Memory(MemoryArguments),
    /// `kvasir rebuild-index`, from the store and from the journal.
    Rebuild(RebuildArguments),
    /// An S3 server of its own process, until it is killed.
    #[command(hide = true)]
    S3Server {
        /// Where to listen.
        listen: std::net::SocketAddr,
    },
}

/// What all measurements need.
#[derive(Debug, Clone, Args)]
struct Common {
    /// The `kvasir` binary.
    #[arg(long, default_value = "target/release/kvasir")]
    kvasir: PathBuf,
    /// The nginx binary.
    #[arg(long, default_value = "/usr/sbin/nginx")]
    nginx: PathBuf,
    /// An S3 store as s3://bucket/prefix, with AWS_* set; without it, this program's own S3 server.
    #[arg(long)]
    s3: Option<String>,
    /// Where the service keeps objects: file or s3.
    #[arg(long, default_value = "file")]
    store: String,
    /// Pairs of measurements.
    #[arg(long, default_value_t = 7)]
    pairs: usize,
    /// Seconds of one measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Further settings of the service, as `section.key=value`.
    #[arg(long = "set", value_name = "SETTING")]
    settings: Vec<String>,
}

#[derive(Debug, Args)]
struct LookupArguments {
    #[command(flatten)]
    common: Common,
    /// Chunks in the index.
    #[arg(long, value_delimiter = ',', default_value = "10000,1000000")]
    chunks: Vec<usize>,
    /// Connections that ask at once.
    #[arg(long, default_value_t = 4)]
    connections: usize,
}

#[derive(Debug, Args)]
struct RebuildArguments {
    #[command(flatten)]
    common: Common,
    /// Chunks in the store.
    #[arg(long, default_value_t = 10_000)]
    chunks: usize,
}

#[derive(Debug, Args)]
struct MemoryArguments {
    #[command(flatten)]
    common: Common,
    /// Uploads, then downloads, at once.
    #[arg(long, default_value_t = 256)]
    at_once: usize,
    /// Bytes of each, in MiB.
    #[arg(long, default_value_t = 32)]
    mebibytes: usize,
}

/// Lets time pass.
#[allow(clippy::disallowed_methods, reason = "a measurement takes the time it is told to")]
fn pause(seconds: f64) {
    std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = match Arguments::parse().command {
        Command::Get(common) => get::measure(&runtime, &common)?,
        Command::Put(common) => put::measure(&runtime, &common)?,
        Command::Lookup(arguments) => {
            lookup::measure(&runtime, &arguments.common, &arguments.chunks, arguments.connections)?
        }
        Command::Memory(arguments) => {
            memory::measure(&runtime, &arguments.common, arguments.at_once, arguments.mebibytes << 20)?
        }
        Command::Rebuild(arguments) => rebuild::measure(&runtime, &arguments.common, arguments.chunks)?,
        Command::S3Server { listen } => return servers::serve_s3(&runtime, listen),
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&result)?)?;
    Ok(())
}
