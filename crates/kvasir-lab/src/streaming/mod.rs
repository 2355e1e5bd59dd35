//! A simulated link, GPU and decoder around the real fetcher core, and studies over them.

mod batch_policy;
mod foresight;
mod ladder;
mod oracle;
mod published;
mod simulation;
mod spec;
pub mod study;

pub use batch_policy::{Batch, Batcher};
pub use foresight::Foresight;
pub use ladder::{Engine, Ladder};
pub use oracle::oracle;
pub use published::published_rule;
pub use simulation::{Simulation, Trace};
pub use spec::{LinkRate, LoadSpec, Noise, Outcome, Sharing, SimulationConfig};

#[cfg(test)]
mod tests;
