//! Loads by an engine whose machine is busy: a deadline that was set before, kept beside a competing process.

use std::{
    io::Read,
    num::NonZeroU32,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::ensure;
use kvasir_client::tuning::{CacheGen, Fixed, Policy, Progressive};
use kvasir_types::{Level, TokenRange};

use super::{Bench, Run, TOKENS};
use crate::namespaces::Running;

/// Fewest loads of `progressive` that keep the deadline, as a share.
const KEPT_MIN: f64 = 0.95;
/// Prefills of the context that are measured; the median counts.
const MEASURED: usize = 5;
/// Share of the longest step so far that remains after a shorter one, as for the delay of timers.
const STEP_KEEP: f64 = 0.9;
const POLICIES: [&str; 3] = ["progressive", "cachegen", "fixed at level 2"];

fn policy(name: &str) -> Box<dyn Policy> {
    match name {
        "progressive" => Box::new(Progressive::new()),
        "cachegen" => Box::new(CacheGen::default()),
        _ => Box::new(Fixed::new(Level(2)).without_giving_up()),
    }
}

/// Loads the context so many times under each policy, in turn.
pub(super) async fn run(bench: &mut Bench, loads: NonZeroU32) -> anyhow::Result<()> {
    let mut quiet = Vec::new();
    for _ in 0..MEASURED {
        quiet.push(bench.prefill()?);
    }
    quiet.sort();
    let recompute = quiet[MEASURED / 2];
    let slo = recompute / 2;
    bench.is_stated = false;
    // In place of the stated model's times.
    let context = TokenRange { start: 0, end: TOKENS as u64 };
    quiet.iter().for_each(|took| bench.kvasir.observe_prefill(context, *took));

    let mut competitor = Command::new(std::env::current_exe()?);
    let _competitor = Running(competitor.arg("--compete").stdin(Stdio::piped()).spawn()?);
    println!(
        "network: computing the context takes {} ms, beside the competing process {} ms; the deadline is {} ms",
        recompute.as_millis(),
        bench.prefill()?.as_millis(),
        slo.as_millis()
    );
    let mut rows: [(&str, Vec<Run>); 3] = POLICIES.map(|name| (name, Vec::new()));
    for _ in 0..loads.get() {
        for (name, runs) in &mut rows {
            let name = *name;
            let run = bench.stream(name, policy(name), slo).await?;
            bench.step = run.step.max(bench.step.mul_f64(STEP_KEEP));
            runs.push(run);
        }
    }
    for (name, runs) in &mut rows {
        runs.sort_by_key(|run| run.ttft);
        let runs = &*runs;
        let mean = |value: fn(&Run) -> f64| runs.iter().map(value).sum::<f64>() / runs.len() as f64;
        let at = |share: f64| runs[((runs.len() - 1) as f64 * share) as usize].ttft.as_millis();
        println!(
            "network: {name:16} kept {:5.1} % of {}, TTFT median {} ms, 95 % {} ms, {:.0} tokens computed, \
             predicted KL {:.1e}",
            kept(runs, slo) * 100.0,
            runs.len(),
            at(0.5),
            at(0.95),
            mean(|run| run.report.recompute.iter().map(|range| range.len() as f64).sum()),
            mean(|run| run.report.loss.kl),
        );
    }
    let ours = kept(&rows[0].1, slo);
    ensure!(ours >= KEPT_MIN, "the deadline was kept in {:.1} % of the loads", ours * 100.0);
    Ok(())
}

fn kept(runs: &[Run], slo: Duration) -> f64 {
    runs.iter().filter(|run| run.ttft <= slo).count() as f64 / runs.len() as f64
}

impl Bench {
    /// How long the engine takes to compute the context.
    fn prefill(&self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.model.calculate_kv(&self.prompt)?;
        Ok(begun.elapsed())
    }
}

/// Computes on every core until the process that began it ends.
pub(crate) fn compete() -> anyhow::Result<()> {
    let busy = || {
        let mut number = 1u64;
        while std::hint::black_box(number) != 0 {
            number = number.wrapping_mul(6_364_136_223_846_793_005) | 1;
        }
    };
    for _ in 0..std::thread::available_parallelism()?.get() {
        std::thread::spawn(busy);
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
