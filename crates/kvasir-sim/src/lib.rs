//! Network, trace and cost simulators over the real cores.

#![forbid(unsafe_code)]

pub mod evict;
pub mod link;
pub mod net;
