//! Runs the kernels on the CPU, a block in lockstep, for tests. Addresses in parameters are host addresses.
#![doc = include_str!("../README.md")]
#![allow(unsafe_code, reason = "calls the compiled kernels")]

use std::{ffi::c_void, process::Command};

use kvasir_kernels::Kernel;

/// A folder with a `libcuda.so` and a `libnvrtc.so` that are the emulator, for `LD_LIBRARY_PATH`: the driver's calls as late
/// as its rules allow. Empty on platforms other than Linux.
pub const FAKE_DRIVER: &str = env!("KVASIR_FAKE_DRIVER");

unsafe extern "C" {
    fn kvasir_emulate(kernel: u32, grid: u32, threads: u32, shared: u32, params: *const c_void) -> i32;
}

/// Runs `kernel` over `grid` blocks.
///
/// # Safety
/// As a launch on a device: `params` holds the kernel's record, and every address in it is good for what the kernel
/// reads and writes there.
///
/// # Panics
/// Where the sources lack the kernel.
pub unsafe fn launch(kernel: Kernel, grid: u32, shared_bytes: u32, params: &[u8]) {
    // Records hold u64: give them their alignment.
    let mut aligned = vec![0u64; params.len().div_ceil(8)];
    for (word, bytes) in aligned.iter_mut().zip(params.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(padded);
    }
    // SAFETY: the caller's promise; the record is copied to aligned memory of at least its size.
    let code = unsafe {
        kvasir_emulate(kernel as u32, grid, kernel.threads(), shared_bytes, aligned.as_ptr().cast())
    };
    assert_eq!(code, 0, "{} cannot be emulated", kernel.name());
}

/// Runs one test of this program again, in a process that finds its driver in `folder`: [`FAKE_DRIVER`], or another build of it.
/// For machines without a driver, and for those whose driver finds no GPU.
///
/// # Panics
/// If the test fails there, or does not exist; in that process, where the emulator's driver is as good as it gets.
pub fn test_again(test: &str, folder: &str) {
    let is_again = std::env::var_os("LD_LIBRARY_PATH").is_some_and(|path| path == folder);
    assert!(!is_again, "{test}: the emulator's driver, in {folder:?}, opens no GPU");
    let mut again = Command::new(std::env::current_exe().expect("it runs"));
    again.args([test, "--exact", "--nocapture"]).env("LD_LIBRARY_PATH", folder);
    let ran = again.output().expect("it runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}
