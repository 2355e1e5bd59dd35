//! Traces of requests: readers of the public formats, and synthetic traces.

mod reader;
mod synthetic;

pub use reader::{LINE_BYTES_MAX, Request, TraceError, TraceFormat, TraceReader};
pub use synthetic::{Callers, SyntheticRequests, SyntheticTrace};

#[cfg(test)]
mod tests;
