//! `kernels/gpu-check` as a shell script, with stubs for everything that it starts: no GPU, no build.
#![cfg(target_os = "linux")]

use std::{fs, path::Path, process::Command};

/// What the script exits with and prints where `cargo` exits with `build` and `compute-sanitizer` with `sanitizer`, on a machine
/// with a driver. `program` is where the program is, a stub that finds no difference.
fn gpu_check(build: i32, sanitizer: i32, program: &str) -> (Option<i32>, String) {
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
        stub "$3" 'echo all equal'
        PATH=$PWD/stubs:$PATH bash kernels/gpu-check 2>&1
    "#;
    let (build, sanitizer) = (build.to_string(), sanitizer.to_string());
    let mut shell = Command::new("bash");
    shell.args(["-c", run, "bash", &build, &sanitizer, program]).current_dir(folder.path());
    let ran = shell.output().expect("bash runs");
    (ran.status.code(), String::from_utf8_lossy(&ran.stdout).into_owned())
}

const BUILT: &str = "target/release/gpu_check";
const COPIED: &str = "target/gpu-check/gpu_check";

#[test]
fn what_a_sanitizer_finds_is_no_success() {
    let (code, said) = gpu_check(0, 0, BUILT);
    assert!(code == Some(0) && said.contains("all equal"), "{code:?}: {said}");
    let (code, said) = gpu_check(0, 9, BUILT);
    assert!(code == Some(4) && said.contains("racecheck did not pass (exit code 9)"), "{code:?}: {said}");
    // 124 is what `timeout` exits with: nothing was found.
    let (code, said) = gpu_check(0, 124, BUILT);
    assert!(code == Some(0) && said.contains("racecheck: not done"), "{code:?}: {said}");
}

#[test]
fn a_copied_program_runs_where_it_cannot_be_built() {
    let (code, said) = gpu_check(101, 0, COPIED);
    assert!(code == Some(0) && said.contains("all equal"), "{code:?}: {said}");
    let (code, said) = gpu_check(101, 0, "target/elsewhere");
    assert!(code == Some(2) && said.contains("cannot be built"), "{code:?}: {said}");
}
