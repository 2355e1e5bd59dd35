//! A simulated link, GPU and decoder around the real fetcher core, and studies over them.

mod batch_policy;
mod foresight;
mod ladder;
mod oracle;
mod published;
mod spec;
pub mod study;
mod world;

pub use batch_policy::{Batch, Batcher};
pub use foresight::Foresight;
pub use ladder::{Engine, Ladder};
pub use oracle::oracle;
pub use published::published_rule;
pub use spec::{LinkRate, LoadSpec, Outcome, Sharing, WorldConfig};
pub use world::{Trace, World};

#[cfg(test)]
mod tests;
