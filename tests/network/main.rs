//! Client and server in separate network namespaces, on a link that changes while a load streams.
//!
//! `cargo test -p kvasir-tests --test network` makes two namespaces joined by a veth pair whose server side is shaped
//! by `tc` (a token bucket), starts the service over an S3 server in one and the client in the other, streams the
//! demo's context through a drop to a tenth of the bandwidth and back under each policy, and draws what happened
//! (into the folder after `--out`, else one in the target folder). With `--out` it fails where the SLO is missed. Where
//! namespaces cannot be made it says why and passes.
//!
//! `--slowed 200` runs each policy 200 times, on this machine's own engine, beside a process that computes on every
//! core. The deadline is half of the recompute that was measured before that process began; the schedule of the link is
//! shortened to it. It fails where `progressive` keeps it in fewer than 95 of 100.
//!
//! **Scaling.** The stated setting is Llama-3-70B (320 KiB of KV a token in f16) with a context of 9,400 tokens on a
//! link of 1 Gb/s that drops to 100 Mb/s. The demo's cache is smaller by [`SCALE`], so the link is, too: against the
//! size of the cache, and so in time, both are alike. Times are real, and so is the recompute that the fetcher weighs
//! against: that of the stated model on a GPU at 400 TFLOPS, 3.3 s for this context.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test binary with its own main")]

mod client;
mod draw;
mod namespaces;
mod server;

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;

/// Tokens and KV bytes per token of the stated context.
const STATED: (f64, f64) = (9_400.0, 320.0 * 1024.0);
/// Tokens and KV bytes per token of the demo's.
const DEMO: (f64, f64) = (896.0, 4.0 * 1024.0);
/// How much smaller the demo's cache is: 839.
pub(crate) const SCALE: f64 = STATED.0 * STATED.1 / (DEMO.0 * DEMO.1);
/// The stated link in Mb/s: from when, and how much.
pub(crate) const SCHEDULE: [(f64, f64); 3] = [(0.0, 1000.0), (0.4, 100.0), (1.4, 1000.0)];
/// The requested time to first token, in milliseconds.
pub(crate) const SLO_MS: u64 = 2_200;

/// The claims that a run must prove. Times mean nothing while other tests run, so only a separate run
/// (`--out`, `--slowed`) makes claims about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    Bytes,
    Slo,
    /// Of so many loads beside a competing process.
    Slowed(NonZeroU32),
}

impl Claim {
    fn of(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "bytes" => Self::Bytes,
            "slo" => Self::Slo,
            loads => Self::Slowed(loads.parse().with_context(|| format!("{loads:?} is no number of loads"))?),
        })
    }

    pub(crate) fn to_text(self) -> String {
        match self {
            Self::Bytes => "bytes".to_owned(),
            Self::Slo => "slo".to_owned(),
            Self::Slowed(loads) => loads.to_string(),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments.as_slice() {
        ["--serve", listen] => server::run(listen),
        ["--load", out, server, namespace, claim] => {
            Claim::of(claim).and_then(|claim| client::run(Path::new(out), server, namespace, claim))
        }
        ["--compete"] => client::compete(),
        ["--out", out] => orchestrate(Path::new(out), Claim::Slo),
        ["--slowed", loads] => Claim::of(loads).and_then(|claim| orchestrate(&scratch(), claim)),
        // `cargo test -- --list` reaches every target.
        [.., "--list"] | ["--list", ..] => Ok(()),
        _ => orchestrate(&scratch(), Claim::Bytes),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("network: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("network")
}

fn orchestrate(out: &Path, claim: Claim) -> anyhow::Result<()> {
    let namespaces = match namespaces::Namespaces::make() {
        Ok(namespaces) => namespaces,
        Err(reason) => {
            println!("network: skipped: {reason:#}");
            return Ok(());
        }
    };
    std::fs::create_dir_all(out)?;
    let _server = namespaces.serve()?;
    namespaces.load(out, claim)?;
    if !matches!(claim, Claim::Slowed(_)) {
        println!("network: drawn in {}", out.join("network.html").display());
    }
    Ok(())
}
