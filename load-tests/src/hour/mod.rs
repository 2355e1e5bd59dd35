//! `kvasir-load hour`: groups of replicas judged by the model of the promises, and conversations in parallel,
//! for an hour; then their resource use, and one report. `tests/hour/run` builds the programs it needs.

mod conversation;
mod page;
mod sample;
mod survivor;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use self::{
    sample::{Sample, growth},
    survivor::Growth,
};
use crate::{
    process::usage::{self, Machine},
    say,
};

pub(crate) use self::page::page;

/// The judged tests, by their kind of store.
const JUDGED: [(&str, &str); 4] = [
    ("files", "judged::over_files"),
    ("sealed S3", "judged::over_s3"),
    ("MinIO", "judged::over_real_servers"),
    ("quota", "judged::quota::quota_edges"),
];
const CONVERSATION: &str = "conversation";
const SAMPLE_PAUSE: Duration = Duration::from_secs(2);
const PROGRESS_SECONDS: f64 = 60.0;
/// Growth from the second quarter to the last that is noise: histories differ in size, and replicas are young.
const GROWTH_MAX: f64 = 1.5;
/// A shorter run never leaves its start phase, so its growth is meaningless.
const GROWTH_SECONDS_MIN: f64 = 600.0;
/// How much longer a run may take than its time: the last history, the pending promises, and the end of every
/// replica. On a busy machine a history of 45 s over MinIO took nine minutes.
const OVERTIME: Duration = Duration::from_secs(1_200);
/// Lines that a failed run has said and that are printed at once, at most.
const SAID_LINES: usize = 20;

/// Runs judged replicas and conversations in parallel. Exits with 1 if an answer was wrong or resource use
/// grew.
#[derive(Debug, Args)]
pub(crate) struct HourArguments {
    /// The built executable of the test `process`, which judges the replicas.
    #[arg(long)]
    judge: PathBuf,
    /// The `kvasir` binary of the conversations.
    #[arg(long, default_value = "target/release/kvasir")]
    kvasir: PathBuf,
    /// Trace file of the conversations (JSON lines, plain or compressed by zstd). Default: a synthetic trace.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Duration of the run, in minutes.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Speed of the conversations relative to their trace: the default and the judged runs fill two cores.
    #[arg(long, default_value_t = 0.3)]
    speed: f64,
    /// Seed of all that is random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for hour.json, hour.html, the logs, and the page of the conversations.
    #[arg(long, default_value = "target/hour")]
    out: PathBuf,
    /// Omits the tests that need MinIO, which `tests/servers/run` starts.
    #[arg(long)]
    without_minio: bool,
}

impl HourArguments {
    pub(crate) fn out(&self) -> PathBuf {
        self.out.clone()
    }
}

/// One of the runs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HourRun {
    name: String,
    /// Its last output.
    said: Vec<String>,
    passed: bool,
    samples: Vec<Sample>,
}

/// The whole hour.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hour {
    hour_seconds: f64,
    seed: u64,
    machine: Machine,
    runs: Vec<HourRun>,
    /// How much the replica of the conversations grew that no fault ends.
    survivor: Vec<Growth>,
    /// How busy the machine was, its other work included, at each sample's time.
    busy: Vec<(f64, f64)>,
    wrong: Vec<String>,
}

impl Hour {
    pub(crate) fn passed(&self) -> bool {
        self.wrong.is_empty()
    }

    /// In a few lines.
    pub(crate) fn lines(&self) -> String {
        let mut lines: Vec<String> = self
            .runs
            .iter()
            .flat_map(|run| run.said.iter().map(|said| format!("{}: {said}", run.name)))
            .collect();
        lines.extend(self.survivor.iter().map(|growth| format!("{CONVERSATION}: {growth}")));
        lines.extend(self.wrong.iter().map(|wrong| format!("WRONG {wrong}")));
        lines.push(format!("{:.0} s: {} wrong", self.hour_seconds, self.wrong.len()));
        lines.join("\n")
    }
}

/// A running test; ended with this value.
struct Started {
    name: &'static str,
    folder: PathBuf,
    child: Child,
    passed: Option<bool>,
    samples: Vec<Sample>,
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.passed.is_none() {
            // Nobody else ends the replicas of a run that is killed, and they would write into the folder of the next one.
            let family = usage::family(self.child.id());
            let _ = Command::new("kill").arg("-9").args(family.iter().map(u32::to_string)).status();
            let _ = self.child.wait();
        }
    }
}

impl Started {
    fn new(name: &'static str, out: &Path, mut command: Command) -> Result<Self> {
        let folder = folder_of(out, name);
        let log = File::create(folder.join("log"))?;
        command.env("TMPDIR", folder.join("tmp")).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, folder, child, passed: None, samples: Vec::new() })
    }

    /// Takes a sample; returns whether the run continues.
    fn look(&mut self, at_s: f64) -> Result<bool> {
        if self.passed.is_none() {
            self.samples.push(Sample::take(self.child.id(), &self.folder.join("tmp"), at_s));
            self.passed = self.child.try_wait()?.map(|status| status.success());
            if self.passed == Some(false) {
                say(&format!("after {at_s:.0} s: {} failed; see {}", self.name, self.log_path().display()));
                // Who watches need not wait for the others to know why.
                let said = page::said(&self.log(), self.name == CONVERSATION);
                said[said.len().saturating_sub(SAID_LINES)..].iter().for_each(|line| say(line));
            }
        }
        Ok(self.passed.is_none())
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }
}

fn folder_of(out: &Path, name: &str) -> PathBuf {
    out.join(name.replace(' ', "-"))
}

/// Runs all of them. Blocks the thread.
pub(crate) fn run(arguments: &HourArguments) -> Result<Hour> {
    let seconds = arguments.minutes * 60.0;
    ensure!(seconds >= 30.0, "the run must last at least 30 seconds");
    let out = std::path::absolute(&arguments.out)?;
    let machine = usage::machine();
    let mut started = Vec::new();
    for name in JUDGED.iter().map(|(name, _)| *name).chain([CONVERSATION]) {
        let folder = folder_of(&out, name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(folder.join("tmp"))?;
    }
    for (name, test) in JUDGED.iter().filter(|(name, _)| *name != "MinIO" || !arguments.without_minio) {
        let mut command = Command::new(&arguments.judge);
        command.args(["--nocapture", "--exact", test]);
        command.env("KVASIR_TEST_PROCESS_SECONDS", format!("{}", seconds as u64));
        command.env("KVASIR_TEST_PROCESS_SEED", arguments.seed.to_string());
        started.push(Started::new(name, &out, command)?);
    }
    let folder = folder_of(&out, CONVERSATION);
    let (scenario, keys) = (folder.join("conversation.toml"), folder.join("keys.toml"));
    fs::write(&keys, conversation::keys(arguments.seed))?;
    let conversation = conversation::scenario(seconds, arguments.speed, arguments.seed, &keys)?;
    fs::write(&scenario, toml::to_string(&conversation)?)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("run").arg(scenario).arg("--out").arg(&folder).arg("--kvasir").arg(&arguments.kvasir);
    if let Some(trace) = &arguments.trace {
        command.arg("--trace").arg(format!("{CONVERSATION}={}", trace.display()));
    }
    started.push(Started::new(CONVERSATION, &out, command)?);
    watch(started, seconds, arguments.seed, machine)
}

fn watch(mut started: Vec<Started>, seconds: f64, seed: u64, machine: Machine) -> Result<Hour> {
    let (begun, mut busy) = (Instant::now(), Vec::new());
    let (mut before, mut wrong, mut next_progress_s) = (sample::processor_ticks(), Vec::new(), 0.0);
    loop {
        crate::process::pause(SAMPLE_PAUSE);
        let at_s = begun.elapsed().as_secs_f64();
        let now = sample::processor_ticks();
        busy.push((at_s, sample::busy_share(before, now)));
        before = now;
        let mut runs_on = false;
        for run in &mut started {
            runs_on |= run.look(at_s)?;
        }
        if !runs_on {
            break;
        }
        if at_s >= next_progress_s {
            next_progress_s = at_s + PROGRESS_SECONDS;
            let running = started.iter().filter(|run| run.passed.is_none()).map(|run| run.name);
            let running: Vec<_> = running.collect();
            say(&format!("{at_s:.0} of {seconds:.0} s; running: {}", running.join(", ")));
        }
        if at_s > seconds + OVERTIME.as_secs_f64() {
            wrong.extend(
                started
                    .iter()
                    .filter(|run| run.passed.is_none())
                    .map(|run| format!("{} does not end", run.name)),
            );
            break;
        }
    }
    let hour_seconds = begun.elapsed().as_secs_f64();
    let (mut runs, mut survivor) = (Vec::new(), Vec::new());
    for mut run in started {
        let passed = run.passed == Some(true);
        if !passed {
            wrong.push(format!(
                "{}: the judge found a wrong answer, or a bound was missed; see {}",
                run.name,
                run.log_path().display()
            ));
        }
        let too_much = if run.name == CONVERSATION {
            let grown = survivor::growth(&run.samples);
            survivor.extend(grown.iter().flatten().cloned());
            let too_much = |grown: &Growth| grown.is_too_much().then(|| grown.to_string());
            grown.map(|grown| grown.iter().filter_map(too_much).collect::<Vec<String>>())
        } else {
            too_much(&run.samples)
        };
        if seconds >= GROWTH_SECONDS_MIN {
            let too_much = too_much.unwrap_or_else(|unknown| vec![unknown]);
            wrong.extend(too_much.iter().map(|what| format!("{}: {what}", run.name)));
        }
        let said = page::said(&run.log(), run.name == CONVERSATION);
        // The harness ends well if it finds no such test, and so does the test for real servers if there is none.
        if passed && said.is_empty() {
            wrong.push(format!("{}: nothing was judged: there is no such test, or no server", run.name));
        }
        let samples = std::mem::take(&mut run.samples);
        runs.push(HourRun { name: run.name.to_owned(), said, passed, samples });
    }
    say(&format!("watched for {hour_seconds:.0} s"));
    Ok(Hour { hour_seconds, seed, machine, runs, survivor, busy, wrong })
}

/// What grew too much in judged replicas, none of which lives long.
fn too_much(samples: &[Sample]) -> Result<Vec<String>, String> {
    let grown = growth(samples);
    if grown.is_empty() {
        return Err("no replica was seen, so nothing shows whether it grew".to_owned());
    }
    let too_much = grown.into_iter().filter(|(_, grew)| *grew > GROWTH_MAX);
    Ok(too_much.map(|(what, grew)| format!("{what} grew by a factor of {grew:.2}")).collect())
}
