//! The kernels against the scalar codec, on the emulator.

mod chunks;
mod emulated;
mod encode;
mod engine_cache;
#[cfg(feature = "client")]
mod exact_level;
mod layouts;
#[cfg(feature = "client")]
mod loads;
#[cfg(feature = "client")]
mod parts;
mod pieces;
#[cfg(feature = "client")]
mod saves;
mod wide_heads;

#[path = "../../../kvasir-codec/tests/common/mod.rs"]
mod common;
