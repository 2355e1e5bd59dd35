//! Compiles the kernels for the CPU, under the shim, and the fake driver over them.

use std::{env, fs, path::PathBuf, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=../cuda");
    println!("cargo:rerun-if-changed=host");
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .pic(true)
        .include("host")
        .include("../cuda")
        .define("KVASIR_EMULATED", None)
        .opt_level(2)
        .debug(false)
        // The kernels' float arithmetic is normative: nothing may be fused here either.
        .flag_if_supported("-ffp-contract=off")
        .flag_if_supported("-Wno-unknown-pragmas")
        .flag_if_supported("-Wno-unused-function")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true);
    build.clone().file("host/emulated.cpp").compile("kvasir_kernels_emulated");
    fake_driver(&build);
}

/// A libcuda and a libnvrtc for tests; where the platform cannot link one, its folder is empty and tests say so.
fn fake_driver(build: &cc::Build) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let folder = out.join("fake-driver");
    fs::create_dir_all(&folder).expect("the output folder is writable");
    println!("cargo:rustc-env=KVASIR_FAKE_DRIVER={}", folder.display());
    if env::var_os("CARGO_CFG_TARGET_OS").is_none_or(|os| os != "linux") {
        return;
    }
    let objects = build.clone().file("host/driver.cpp").compile_intermediates();
    let library = folder.join("libcuda.so");
    let linked = Command::new(build.get_compiler().path())
        .args(["-shared", "-o"])
        .arg(&library)
        .args(objects)
        .arg(out.join("libkvasir_kernels_emulated.a"))
        .status();
    assert!(linked.is_ok_and(|status| status.success()), "the fake driver does not link");
    fs::copy(&library, folder.join("libnvrtc.so")).expect("the output folder is writable");
}
