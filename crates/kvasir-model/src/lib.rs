//! What is known of a model without running it.
//!
//! - [`plan`]: KV arithmetic: how large a cache is, what it costs to keep, which level fits a link and an SLO;
//! - [`dump`]: KV dumps, the exchange format between engines and Kvasir's tools, as safetensors files.

#![forbid(unsafe_code)]

pub mod dump;
pub mod limits;
pub mod plan;
