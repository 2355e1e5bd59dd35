//! The kernels against the scalar codec, on the emulator.

mod chunks;
mod emulated;
mod encode;
mod layouts;
mod pieces;

#[path = "../../../kvasir-codec/tests/common/mod.rs"]
mod common;
