//! Compiles the kernels for the CPU, under the shim, and the fake driver over them.

#[path = "host/build.rs"]
mod host;

use std::{
    env,
    path::{Path, PathBuf},
};

fn main() {
    let build = host::compiler(Path::new(""));
    build.clone().file("host/emulated.cpp").compile("kvasir_kernels_emulated");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    host::link_fake_driver(&build, Path::new(""), &[out.join("libkvasir_kernels_emulated.a")]);
}
