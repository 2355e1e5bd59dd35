//! Network, trace and cost simulators over the real cores.

pub mod evict;
pub mod link;
pub mod net;
