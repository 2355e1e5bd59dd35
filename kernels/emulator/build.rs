//! Compiles the kernels for the CPU, under the shim.

fn main() {
    println!("cargo:rerun-if-changed=../cuda");
    println!("cargo:rerun-if-changed=host");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .file("host/emulated.cpp")
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
        .warnings_into_errors(true)
        .compile("kvasir_kernels_emulated");
}
