//! What the test binaries share.

pub mod chunks;
pub mod faulty;
pub mod process;
pub mod proxy;
pub mod s3;
pub mod servers;
pub mod service;
