//! What is known of a model without running it.
//!
//! - [`plan`]: KV arithmetic: how large a cache is, what it costs to keep, which level fits a link and an SLO;
//! - [`config`]: sizes of a model from its Hugging Face `config.json`;
//! - [`dump`]: KV dumps, the exchange format between engines and Kvasir's tools, as safetensors files.

#![forbid(unsafe_code)]

pub mod config;
pub mod dump;
pub mod limits;
pub mod plan;
