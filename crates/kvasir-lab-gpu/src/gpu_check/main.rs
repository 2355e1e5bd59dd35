//! Checks and times the kernels through the driver, in one call; prints a table last. Started by `kernels/gpu-check`.
//!
//! `gpu_check [--small] [--bases] [--golden FOLDER]`: `--small` takes tiny shapes, for the fake driver, and prints no rate; `--bases`
//! trains bases of the real sizes first, which takes minutes, and times whole chunks of them. Exit codes: 0
//! all equal, 1 something differs, 2 the device failed, 3 no driver (nothing was run, nothing was timed).
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this program prints reports")]

#[path = "../../../kvasir-codec/tests/common/mod.rs"]
mod common;
mod differential;
#[path = "../../../kvasir-cuda/golden/mod.rs"]
mod golden;
mod peers;
mod product;
mod rates;
mod report;
mod shapes;
mod timed;

use std::{error::Error, path::PathBuf, process::ExitCode, sync::Arc};

use kvasir_cuda::{CudaDevice, DeviceError};

use report::Report;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let small = arguments.iter().any(|a| a == "--small");
    let bases = arguments.iter().any(|a| a == "--bases");
    let golden = arguments.iter().skip_while(|a| *a != "--golden").nth(1);
    let golden = PathBuf::from(golden.map_or("crates/kvasir-codec/tests/golden", String::as_str));
    let device = match CudaDevice::new(0, PathBuf::from("target/gpu-check/kernels")) {
        Ok(device) => Arc::new(device),
        Err(DeviceError::NoDriver) => {
            println!("no NVIDIA driver on this machine: no kernel ran on a GPU and nothing was timed");
            return ExitCode::from(3);
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    match run(&device, (small, bases), &golden) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run(
    device: &Arc<CudaDevice>,
    (small, bases): (bool, bool),
    golden: &std::path::Path,
) -> Result<bool, Box<dyn Error>> {
    let mut same = differential::run(device, golden)?;
    let mut report = Report::new(device, small)?;
    let mut shapes = if small { shapes::small() } else { shapes::real() };
    if bases {
        shapes.extend(shapes::bases());
    }
    for shape in &shapes {
        same &= rates::run(device, shape, &mut report)?;
    }
    product::run(device, small, &mut report)?;
    peers::run(device, small, &mut report)?;
    println!("{}", if same { "all equal to the CPU codec" } else { "SOME DIFFER from the CPU codec" });
    report.print();
    Ok(same)
}
