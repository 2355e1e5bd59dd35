//! The client's side: stores the demo's context, then streams it back under each policy while the link changes.

mod slowed;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kvasir_client::{
    Deadline, Kvasir, QualityFloor,
    report::LoadReport,
    tuning::{CacheGen, Fixed, LoadOptions, Policy, Progressive, RecomputeModel},
};
use kvasir_codec::Profile;
use kvasir_engine::{Model, Sampling, TINY_PROFILE};
use kvasir_types::Level;

pub(super) use slowed::compete;

use super::{Claim, SCHEDULE, SLO_MS, draw, namespaces::shape};

const TEXT: &str = include_str!("../../../crates/kvasir-cli/assets/the-storekeeper.txt");
/// Tokens of the demo's context and of its chunks.
const TOKENS: usize = 896;
const CHUNK_TOKENS: usize = 256;
/// Seconds that computing the stated context takes on the stated GPU: 2 × 70e9 FLOPs a token at 400 TFLOPS.
const RECOMPUTE_SECONDS: f64 = 2.0 * 70e9 * 9_400.0 / 4e14;

/// Maximum time of a phase, many times the expected one: a phase that hangs is reported by name.
const PHASE_MAX: Duration = Duration::from_secs(90);

async fn phase<T>(name: &str, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let started = Instant::now();
    let result = tokio::time::timeout(PHASE_MAX, work).await;
    println!("network: {name}: {:.1} s", started.elapsed().as_secs_f64());
    result.with_context(|| format!("{name}: not done after {PHASE_MAX:?}"))?
}

/// One load, as it went.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) name: &'static str,
    pub(crate) ttft: Duration,
    /// How long the model's first step took, which ends it.
    pub(crate) step: Duration,
    pub(crate) report: LoadReport,
    /// When layers were handed over: since the request, and up to which token.
    pub(crate) ready: Vec<(Duration, u64)>,
    /// When the link was changed, as it really was: since the request, and to how much (stated Mb/s).
    pub(crate) link: Vec<(Duration, f64)>,
}

struct Bench {
    model: Arc<Model>,
    kvasir: Kvasir,
    prompt: Vec<u32>,
    namespace: String,
    step: Duration,
    /// Whether computing takes as long as the stated model would, and not as long as this one does.
    is_stated: bool,
}

/// Runs every policy once and draws them, or runs each beside a competing process.
pub(crate) fn run(out: &Path, server: &str, namespace: &str, claim: Claim) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let begun = Box::pin(Bench::new(server, namespace.to_owned()));
    let mut bench = runtime.block_on(phase("storing and a first load", begun))?;
    if let Claim::Slowed(loads) = claim {
        return runtime.block_on(Box::pin(slowed::run(&mut bench, loads)));
    }
    let runs = runtime.block_on(async {
        let policies: [(&str, Box<dyn Policy>); 3] = [
            ("progressive", Box::new(Progressive::new())),
            ("cachegen", Box::new(CacheGen::default())),
            ("fixed at the finest level", Box::new(Fixed::new(Level(3)))),
        ];
        let mut runs = Vec::new();
        for (name, policy) in policies {
            let slo = Duration::from_millis(SLO_MS);
            runs.push(phase(name, bench.stream(name, policy, slo)).await?);
        }
        anyhow::Ok(runs)
    })?;
    std::fs::write(out.join("network.html"), draw::page(&runs))?;
    for run in &runs {
        let levels: Vec<_> = run.report.chunks.iter().map(|c| c.level.map(|l| l.0)).collect();
        println!(
            "network: {:26} TTFT {:5} ms of {SLO_MS}, {:6} bytes, levels {levels:?}, predicted KL {:.1e}",
            run.name,
            run.ttft.as_millis(),
            run.report.bytes,
            run.report.loss.kl,
        );
    }
    let ours = &runs[0];
    ensure!(
        ours.report.loaded_tokens() >= TOKENS as u64 - 1,
        "the context was loaded: {:?}",
        ours.report.recompute
    );
    let is_met = ours.ttft <= Duration::from_millis(SLO_MS);
    ensure!(is_met || claim == Claim::Bytes, "the SLO was missed: {} ms", ours.ttft.as_millis());
    Ok(())
}

impl Bench {
    async fn new(server: &str, namespace: String) -> anyhow::Result<Self> {
        let model = Arc::new(Model::kvasir_tiny()?);
        let profile = Arc::new(Profile::from_bytes(TINY_PROFILE)?);
        let mut prompt = model.tokenizer().encode(TEXT)?;
        prompt.truncate(TOKENS);
        // Storing is not what this is about: it has the wire for itself.
        shape(&namespace, 100_000.0)?;
        let builder =
            Kvasir::builder(server).model(Arc::clone(model.spec())).profile(profile).namespace("network");
        // Policies choose among all levels.
        let builder = builder.quality(QualityFloor::Adaptive).chunk_tokens(CHUNK_TOKENS);
        let kvasir = builder.connect().await?;
        let kv = model.calculate_kv(&prompt)?;
        let session = kvasir.session(&prompt).without_lookup().await;
        let stored = session.save_now(&kv, prompt.len(), |_| ()).await?;
        println!("network: stored {} bytes in {} chunks", stored.bytes(), stored.chunks.len());
        let mut bench = Self { model, kvasir, prompt, namespace, step: Duration::ZERO, is_stated: true };
        // An engine in use knows its link, its decoder and its model's step from what it did before.
        shape(&bench.namespace, SCHEDULE[0].1)?;
        let (_, step) =
            bench.load(bench.options(Box::new(Fixed::new(Level(2))), Duration::from_secs(30))).await?;
        bench.step = step;
        Ok(bench)
    }

    fn options(&self, policy: Box<dyn Policy>, slo: Duration) -> LoadOptions {
        let (suffix_time, recompute) = (Some(self.step), self.is_stated.then(stated_recompute));
        LoadOptions { policy, suffix_time, recompute, ..Deadline::within(slo).into() }
    }

    /// Loads all but the last token and takes the first step; the report and how long the step took.
    async fn load(
        &self,
        options: LoadOptions,
    ) -> anyhow::Result<((LoadReport, Vec<(Duration, u64)>), Duration)> {
        let started = Instant::now();
        let mut kv = self.model.new_kv()?;
        kv.reserve(self.prompt.len())?;
        let session = self.kvasir.session(&self.prompt).await;
        let mut load = session.load([kv.load_table()?], options)?;
        let mut ready = Vec::new();
        while let Some(layers) = load.next_layers().await {
            ready.push((started.elapsed(), layers.token_range.end));
        }
        let loaded = load.finish().await;
        let wanted = &self.prompt[..self.prompt.len() - 1];
        let computing = Instant::now();
        self.model.complete_kv(&mut kv, wanted, loaded.missing())?;
        let report = loaded.into_report().context("the context is stored")?;
        let computed = computing.elapsed();
        if self.is_stated {
            // The stated model takes longer than the demo's.
            let stated: Duration =
                report.recompute.iter().map(|hole| stated_recompute().predict(*hole)).sum();
            tokio::time::sleep(stated.saturating_sub(computed)).await;
        } else {
            let tokens: u64 = report.recompute.iter().map(|hole| hole.len()).sum();
            for hole in &report.recompute {
                let took = computed.mul_f64(hole.len() as f64 / tokens.max(1) as f64);
                self.kvasir.observe_prefill(*hole, took);
            }
        }
        let stepping = Instant::now();
        self.model.generate_with_kv(&mut kv, &self.prompt, 1, &Sampling::Greedy)?;
        Ok(((report, ready), stepping.elapsed()))
    }

    /// One load while the link follows the schedule, whose times are for [`SLO_MS`].
    async fn stream(
        &self,
        name: &'static str,
        policy: Box<dyn Policy>,
        slo: Duration,
    ) -> anyhow::Result<Run> {
        shape(&self.namespace, SCHEDULE[0].1)?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let started = Instant::now();
        let stretch = slo.as_secs_f64() * 1e3 / SLO_MS as f64;
        let namespace = self.namespace.clone();
        let schedule = tokio::spawn(async move {
            let mut link = vec![(Duration::ZERO, SCHEDULE[0].1)];
            for (at, mbps) in &SCHEDULE[1..] {
                let at = Duration::from_secs_f64(at * stretch);
                tokio::time::sleep(at.saturating_sub(started.elapsed())).await;
                let (namespace, mbps) = (namespace.clone(), *mbps);
                tokio::task::spawn_blocking(move || shape(&namespace, mbps)).await??;
                link.push((started.elapsed(), mbps));
            }
            anyhow::Ok(link)
        });
        let mut options = self.options(policy, slo);
        if self.is_stated && options.policy.name() == "fixed" {
            // The row without any adaptation: it never falls back on computing either.
            options.recompute = Some(RecomputeModel::from_seconds(1e6, 0.0, 0.0));
        }
        let ((report, ready), step) = self.load(options).await?;
        let ttft = started.elapsed();
        let link = schedule.await??;
        Ok(Run { name, ttft, step, report, ready, link })
    }
}

fn stated_recompute() -> RecomputeModel {
    RecomputeModel::from_seconds(0.0, RECOMPUTE_SECONDS / TOKENS as f64, 0.0)
}
