//! Replays recorded conditions: links whose bandwidth follows a series, and traces of requests.
//!
//! ```
//! use kvasir_replay::link::BandwidthSeries;
//! use std::time::Duration;
//!
//! let link = BandwidthSeries::builtin("drop-recover").expect("shipped");
//! // 60 MB that enter at once: a quarter second at 1 Gb/s, the rest at 100 Mb/s.
//! assert!(link.time_after(Duration::ZERO, 60_000_000) > Duration::from_secs(2) / 2);
//! ```

#![forbid(unsafe_code)]

pub mod link;
pub mod trace;
