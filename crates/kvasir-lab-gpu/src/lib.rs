#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod encoders;
pub mod kernels;

/// A folder with a `libcuda.so` and a `libnvrtc.so` that are the emulator with the peers' kernels, for `LD_LIBRARY_PATH`. Empty on
/// platforms other than Linux.
pub const FAKE_DRIVER: &str = env!("KVASIR_FAKE_DRIVER");
