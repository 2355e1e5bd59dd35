//! One file or folder per command.

pub(crate) mod admin;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod model;
pub(crate) mod object;
pub(crate) mod plan;
pub(crate) mod profile;
pub(crate) mod selftest;
mod selftest_s3;
pub(crate) mod serve;
pub(crate) mod token;
