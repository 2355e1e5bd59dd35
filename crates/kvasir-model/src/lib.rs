//! What is known of a model without running it.
//!
//! - [`plan`]: KV arithmetic: how large a cache is, what it costs to keep, which level fits a link and an SLO;
//! - [`config`]: sizes of a model from its Hugging Face `config.json`.

#![forbid(unsafe_code)]

pub mod config;
pub mod plan;
