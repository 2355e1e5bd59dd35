//! One file per command.

pub(crate) mod bench;
pub(crate) mod codec;
pub(crate) mod completions;
pub(crate) mod contexts;
pub(crate) mod engine;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod inspect;
pub(crate) mod jobs;
pub(crate) mod kv;
pub(crate) mod maintain;
pub(crate) mod plan;
pub(crate) mod profile_inspect;
pub(crate) mod profile_pack;
pub(crate) mod remote;
pub(crate) mod selftest;
pub(crate) mod serve;
pub(crate) mod sim_evict;
pub(crate) mod sim_stream;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod train;
pub(crate) mod usage;
