//! The serving loop: prefix reuse in memory and continuous batching over one page pool.
//!
//! [`Scheduler`] is synchronous and owns no thread: `submit`, then `step` until nothing is left. A shell around it
//! (a thread, an HTTP server, a simulator) decides when. Loading from Kvasir happens before `submit`: a request
//! may bring a cache that a load has filled.

mod prefix;
mod scheduler;

pub use prefix::PrefixCache;
pub use scheduler::{Event, FinishReason, Request, RequestId, Scheduler, SchedulerLimits, SubmitError};

#[cfg(test)]
mod tests;
