//! Harness shared by the cross-crate tests.

pub mod chunks;
pub mod faulty;
pub mod s3;
pub mod service;
