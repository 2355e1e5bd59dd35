//! Facts about a model that need no run of it.
//!
//! - [`plan`]: KV arithmetic: the size of a cache, the cost of keeping it, and the level that fits a link and
//!   an SLO;
//! - [`config`]: sizes of a model from its Hugging Face `config.json`.

#![forbid(unsafe_code)]

pub mod config;
pub mod plan;
