//! Compiles the fake driver with the peers' kernels beside the product's.

#[path = "../../kernels/emulator/host/build.rs"]
mod emulator;

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=cuda");
    let mut build = emulator::compiler(Path::new("../../kernels/emulator"));
    build
        .include("cuda")
        .define("KVASIR_EXTRA_RECORDS", "\"peers.cuh\"")
        .define("KVASIR_EXTRA_SOURCE", "\"peers.cu\"");
    let kernels = build.clone().file("../../kernels/emulator/host/emulated.cpp").compile_intermediates();
    emulator::link_fake_driver(&build, Path::new("../../kernels/emulator"), &kernels);
}
