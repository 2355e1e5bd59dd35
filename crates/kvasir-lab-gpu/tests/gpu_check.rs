//! `kernels/gpu-check` as a shell script, with stubs for everything that it starts: no GPU, no build. And its program on the fake
//! driver, at tiny shapes.
#![cfg(target_os = "linux")]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use kvasir_lab_gpu::FAKE_DRIVER;

/// What the script exits with and prints where `cargo` exits with `build` and `compute-sanitizer` with `sanitizer`, on a machine
/// with a driver. `program` is where the program is, a stub that finds no difference and prints its arguments.
fn gpu_check(build: i32, sanitizer: i32, program: &str, arguments: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("kernels")).expect("writable");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/gpu-check");
    fs::copy(script, folder.path().join("kernels/gpu-check")).expect("is there");
    // Written by the shell: what this process has open for writing, another test's child might keep open, and nobody could run it.
    let run = r#"
        stub() { mkdir -p "$(dirname "$1")"; printf '#!/bin/sh\n%s\n' "$2" >"$1"; chmod +x "$1"; }
        stub stubs/ldconfig 'echo libcuda.so.1'
        stub stubs/python3 'exit 1'
        stub stubs/cargo "exit $1"
        stub stubs/compute-sanitizer "exit $2"
        stub "$3" 'echo all equal: "$@"'
        PATH=$PWD/stubs:$PATH bash kernels/gpu-check $4 2>&1
    "#;
    let (build, sanitizer) = (build.to_string(), sanitizer.to_string());
    let mut shell = Command::new("bash");
    shell.args(["-c", run, "bash", &build, &sanitizer, program, arguments]).current_dir(folder.path());
    let ran = shell.output().expect("bash runs");
    (ran.status.code(), String::from_utf8_lossy(&ran.stdout).into_owned())
}

const BUILT: &str = "target/release/gpu_check";
const COPIED: &str = "target/gpu-check/gpu_check";

#[test]
fn what_a_sanitizer_finds_is_no_success() {
    let (code, said) = gpu_check(0, 0, BUILT, "");
    assert!(code == Some(0) && said.contains("all equal"), "{code:?}: {said}");
    let (code, said) = gpu_check(0, 9, BUILT, "");
    assert!(code == Some(4) && said.contains("racecheck did not pass (exit code 9)"), "{code:?}: {said}");
    // 124 is what `timeout` exits with: nothing was found.
    let (code, said) = gpu_check(0, 124, BUILT, "");
    assert!(code == Some(0) && said.contains("racecheck: not done"), "{code:?}: {said}");
}

#[test]
fn a_copied_program_runs_where_it_cannot_be_built() {
    let (code, said) = gpu_check(101, 0, COPIED, "");
    assert!(code == Some(0) && said.contains("all equal"), "{code:?}: {said}");
    let (code, said) = gpu_check(101, 0, "target/elsewhere", "");
    assert!(code == Some(2) && said.contains("cannot be built"), "{code:?}: {said}");
}

#[test]
fn the_time_is_one_for_all_and_the_sanitizer_gets_what_is_left() {
    let (code, said) = gpu_check(0, 9, BUILT, "--minutes 0");
    assert!(code == Some(0) && said.contains("all equal: --seconds 0\n"), "{code:?}: {said}");
    assert!(said.contains("memcheck: not run") && !said.contains("PyTorch"), "{said}");
    let (code, said) = gpu_check(0, 9, BUILT, "--only exact,peers");
    assert!(code == Some(0) && said.contains("--only exact,peers") && !said.contains("memcheck"), "{said}");
    let (code, said) = gpu_check(0, 0, BUILT, "--bases");
    assert!(code == Some(2) && !said.contains("all equal"), "{code:?}: {said}");
}

/// The cells of a row of the table.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

/// What the program exits with and prints on the fake driver. Asserts that each row is in the file when it is printed, and has no
/// figure.
fn rehearse(arguments: &[&str]) -> (Option<i32>, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut program = Command::new(env!("CARGO_BIN_EXE_gpu_check"));
    program.arg("--small").args(arguments).current_dir(folder.path());
    program.env("LD_LIBRARY_PATH", FAKE_DRIVER).stdout(Stdio::piped());
    let mut runs = program.spawn().expect("it runs");
    let said = BufReader::new(runs.stdout.take().expect("is piped")).lines().map(|line| {
        let line = line.expect("text");
        if line.starts_with("tiny") || line.starts_with("peer") || line.starts_with("device memory") {
            let kept = fs::read_to_string(folder.path().join("target/gpu-check/rehearsal.txt"));
            assert!(kept.expect("is there").lines().any(|kept| kept == line), "not kept: {line}");
            assert_eq!(cells(&line)[2..8], ["-"; 6], "{line}");
        }
        line
    });
    let said = said.collect();
    (runs.wait().expect("it ran").code(), said)
}

#[test]
fn every_row_is_kept_when_it_is_measured() {
    let steps = "decode,refinement,product,exact,loads,encode,peers,layouts,short,deep,bases";
    let (code, said) = rehearse(&["--only", steps]);
    assert_eq!(code, Some(0), "{said:#?}");
    for operation in [
        "decode, base",
        "decode, base + refinement",
        "product",
        "decode, exact level",
        "decode on the CPU",
        "load, a part (group of layers)",
        "load, as its threads do",
        "copies of a save",
        "load, while a save copies",
        "copies of a save, beside loads",
        "encode, all levels",
        "DietGPU-like slot table",
        "CacheGen-shaped",
    ] {
        let is_there = said.iter().any(|line| cells(line).get(1) == Some(&operation));
        assert!(is_there, "no row of {operation:?}: {said:#?}");
    }
}

#[test]
fn what_the_time_does_not_suffice_for_is_named() {
    let (code, said) = rehearse(&["--only", "exact,peers", "--seconds", "0"]);
    assert_eq!(code, Some(0));
    assert!(said.iter().any(|line| line == "the rest: --only exact,peers"), "{said:#?}");
    assert!(!said.iter().any(|line| line.starts_with("tiny") || line.starts_with("peer")), "{said:#?}");
    let (code, said) = rehearse(&["--only", "exact,none"]);
    assert!(code == Some(2) && said.is_empty(), "{said:#?}");
}
