//! What `kvasir-speed` and `kvasir-load` share.
#![forbid(unsafe_code)]

pub mod rows;
