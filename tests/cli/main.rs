//! Tests the `kvasir` binary from outside: typed commands, their output, and errors for invalid input.

mod browser;
mod demo;
mod models;
mod offline;
mod operate;
mod service;

use std::path::Path;

use kvasir_dump::{DumpDtype, write_dump};
use kvasir_engine::Model;
use kvasir_tests::command::{Bench, Served, exit, json, prose};

/// The binary under test.
const KVASIR: &str = env!("CARGO_BIN_EXE_kvasir");

fn empty_bench() -> Bench {
    Bench::new(KVASIR)
}

fn serve(bench: &Bench) -> Served {
    Served::start(bench, Path::new(KVASIR))
}

/// Writes the KV cache of the leading tokens of a text, as the shipped model computes it.
fn dump(bench: &Bench, text: &str, tokens: usize, name: &str) {
    let model = Model::kvasir_tiny().expect("the shipped model");
    let mut ids = model.tokenizer().encode(text).expect("plain text");
    ids.truncate(tokens);
    let kv = model.calculate_kv(&ids).expect("a cache");
    let spec = model.spec();
    write_dump(&bench.path(name), spec, &ids, &kv, DumpDtype::of(spec.kv_dtype)).expect("written");
}
