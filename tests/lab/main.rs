//! Tests the `kvasir-lab` binary from outside, with the `kvasir` that cargo built with it.

mod engine;

use std::path::Path;

use kvasir_tests::command::{Bench, Run, Served};

/// The binary under test.
const LAB: &str = env!("CARGO_BIN_EXE_kvasir-lab");

fn bench() -> Bench {
    Bench::new(Path::new(LAB))
}

/// Runs `kvasir` in the folder.
fn kvasir(bench: &Bench, line: &str) -> Run {
    bench.run_other(&bench.sibling("kvasir"), line)
}

fn serve(bench: &Bench) -> Served {
    Served::start(bench, &bench.sibling("kvasir"))
}

/// Writes the KV cache of the leading tokens of a text as `kv.safetensors`.
fn dump(bench: &Bench, text: &str, tokens: usize) {
    bench.write("text.txt", text);
    bench.ok(&format!("dump --text text.txt --tokens {tokens} -o kv.safetensors"));
}
