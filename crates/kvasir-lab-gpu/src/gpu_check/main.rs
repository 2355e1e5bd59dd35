//! Checks and times the kernels through the driver, in one call. Started by `kernels/gpu-check`.
//!
//! `gpu_check [--small] [--seconds N] [--only STEP,STEP] [--golden FOLDER]`: `--small` takes tiny shapes, for the fake driver, and
//! prints no figure; after `N` seconds no row begins; `--only` runs some of the [steps](steps::STEPS). Exit codes: 0 all that was
//! compared is equal, 1 something differs, 2 the device failed, or an argument is wrong, 3 no driver (nothing was run, nothing was
//! timed).
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this program prints reports")]

#[path = "../../../kvasir-codec/tests/common/mod.rs"]
mod common;
mod differential;
#[path = "../../../kvasir-cuda/golden/mod.rs"]
mod golden;
mod loads;
mod peers;
mod product;
mod rates;
mod report;
mod shapes;
mod steps;
mod timed;

use std::{
    error::Error,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use kvasir_cuda::{CudaDevice, DeviceError};

use report::{Plan, Report};
use steps::{Bench, STEPS};

/// Compiled kernels, and the rows.
const FOLDER: &str = "target/gpu-check";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let value = |name: &str| arguments.iter().skip_while(|a| *a != name).nth(1).map(String::as_str);
    let only = value("--only").into_iter().flat_map(|steps| steps.split(','));
    let only: Vec<String> = only.map(ToOwned::to_owned).collect();
    if let Some(unknown) = only.iter().find(|name| STEPS.iter().all(|(step, _)| step != name)) {
        let steps = STEPS.map(|(step, _)| step).join(" ");
        return Err(format!("there is no step {unknown:?}: the steps are {steps}").into());
    }
    let seconds = value("--seconds").map(str::parse::<u64>).transpose();
    let time = seconds.map_err(|_| "--seconds takes a whole number")?.map(Duration::from_secs);
    let plan = Plan { small: arguments.iter().any(|a| a == "--small"), only, time };
    let device = match CudaDevice::new(0, Path::new(FOLDER).join("kernels")) {
        Ok(device) => Arc::new(device),
        Err(DeviceError::NoDriver) => {
            println!("no NVIDIA driver on this machine: no kernel ran on a GPU and nothing was timed");
            return Ok(ExitCode::from(3));
        }
        Err(error) => return Err(error.into()),
    };
    let golden = PathBuf::from(value("--golden").unwrap_or("crates/kvasir-codec/tests/golden"));
    let mut bench = Bench { device: Arc::clone(&device), small: plan.small, golden, large: None };
    let (name, multiprocessors) = (device.name()?, device.multiprocessors());
    let mut report = Report::new(plan, (&name, multiprocessors), Path::new(FOLDER))?;
    let (mut same, mut failed) = (true, false);
    for (name, step) in STEPS {
        if !report.begins(name) {
            continue;
        }
        // One that fails leaves the others their chance.
        match step(&mut bench, &mut report) {
            Ok(equal) => same &= equal,
            Err(error) => {
                failed = true;
                report.say(&format!("FAIL {name}: {error}"))?;
            }
        }
    }
    report.end()?;
    report.say(match (failed, same) {
        (true, _) => "a step failed: see above",
        (false, true) => "all that was compared is equal to the CPU codec",
        (false, false) => "SOME DIFFER from the CPU codec",
    })?;
    Ok(ExitCode::from(if failed { 2 } else { u8::from(!same) }))
}
