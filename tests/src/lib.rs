//! Common parts of the test binaries.

pub mod chunks;
pub mod command;
pub mod faulty;
pub mod hooked;
pub mod model;
pub mod process;
pub mod proxy;
pub mod recording;
pub mod s3;
pub mod servers;
pub mod service;

/// The settings of this process's environment: `AWS_*` and `KVASIR_*`.
pub fn process_layers() -> kvasir_server::Layers {
    kvasir_server::Layers::from_process()
}
