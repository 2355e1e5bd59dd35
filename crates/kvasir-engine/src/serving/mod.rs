//! The serving loop: prefix reuse in memory, continuous batching over one page pool, and Kvasir before and after.
//!
//! ```text
//! Engine::complete ─► place? ─► memory? Kvasir? ─► load into pages ─► Scheduler (its own thread) ─► tokens
//!                                                  (asynchronous)      holes, suffix, decode        │
//!                                    StoreQueue ◄── whole pages of the finished sequence ◄──────────┘
//! ```
//! [`Scheduler`] is synchronous and owns no thread: `submit`, then `step` until nothing is left. [`Engine`] is the shell
//! around it that a server needs; [`crate::openai`] speaks HTTP.

mod driver;
mod engine;
mod layerwise;
mod load;
mod prefix;
mod scheduler;

pub use engine::{Completion, Delivery, Engine, EngineConfig, Output, PrefixUse, Summary, TtftBreakdown};
pub use load::{LoadPolicy, RemoteUse};
pub use prefix::PrefixCache;
pub use scheduler::{
    FinishReason, LoadedPrefix, Request, RequestId, Scheduler, SchedulerEvent, SchedulerLimits, SubmitError,
};

#[cfg(test)]
mod tests;
