//! A simulated link, GPU and decoder around the real fetcher core, and studies over them.

mod ladder;
mod oracle;
mod published;
pub mod study;
mod world;

pub use ladder::{Engine, Ladder};
pub use oracle::oracle;
pub use published::published_rule;
pub use world::{LinkRate, LoadSpec, Outcome, Sharing, Trace, World, WorldConfig};

#[cfg(test)]
mod tests;
