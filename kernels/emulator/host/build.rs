//! How the emulator and the fake driver are compiled: for the build script next to this folder and for that of `kvasir-lab-gpu`,
//! which adds kernels of its own (`KVASIR_EXTRA_SOURCE`, `KVASIR_EXTRA_RECORDS`).

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The C++ compiler with the flags of the emulator, whose folder is `emulator`.
pub(crate) fn compiler(emulator: &Path) -> cc::Build {
    let (host, kernels) = (emulator.join("host"), emulator.join("../cuda"));
    println!("cargo:rerun-if-changed={}", host.display());
    println!("cargo:rerun-if-changed={}", kernels.display());
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .pic(true)
        .include(host)
        .include(kernels)
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
    build
}

/// A libcuda and a libnvrtc for tests over `kernels`, which are objects or an archive; where the platform cannot link one, the
/// folder is empty and tests say so. The crate finds it in `KVASIR_FAKE_DRIVER`.
pub(crate) fn link_fake_driver(build: &cc::Build, emulator: &Path, kernels: &[PathBuf]) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let folder = out.join("fake-driver");
    fs::create_dir_all(&folder).expect("the output folder is writable");
    println!("cargo:rustc-env=KVASIR_FAKE_DRIVER={}", folder.display());
    if env::var_os("CARGO_CFG_TARGET_OS").is_none_or(|os| os != "linux") {
        return;
    }
    let objects = build.clone().file(emulator.join("host/driver.cpp")).compile_intermediates();
    let library = folder.join("libcuda.so");
    let linked = Command::new(build.get_compiler().path())
        .args(["-shared", "-o"])
        .arg(&library)
        .args(objects)
        .args(kernels)
        .status();
    assert!(linked.is_ok_and(|status| status.success()), "the fake driver does not link");
    fs::copy(&library, folder.join("libnvrtc.so")).expect("the output folder is writable");
}
