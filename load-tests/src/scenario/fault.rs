//! Faults that occur while requests arrive.

use serde::{Deserialize, Serialize};

/// A fault, from when and for how long (seconds).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FaultSpec {
    pub(crate) at: f64,
    pub(crate) lasts: f64,
    pub(crate) what: Fault,
}

/// Ways to go wrong. Those of the store are on the way to it, for every replica.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Fault {
    /// The store is unreachable: connections are cut, including active ones.
    Away,
    /// This share of the store's requests fails: refused, cut before or in the middle, or answered 500 although done.
    Errors(f64),
    /// Every request to the store takes this many times as long.
    Slower(f64),
    /// The link to the store has this part of its bandwidth: 10 is a tenth.
    Narrower(f64),
    /// All of it, a little: 5 times as slow, a quarter of the bandwidth, 10 % errors.
    BrownOut,
    /// A replica gets SIGKILL, and is restarted at the same address and directory.
    Kill {
        /// Which.
        replica: usize,
    },
    /// As `kill`, and its index and hot tier are lost when it restarts.
    LoseCache {
        /// Which.
        replica: usize,
    },
    /// A replica's disk has no room left.
    DiskFull {
        /// Which.
        replica: usize,
    },
    /// A replica's wall clock is wrong by this many seconds.
    ClockJump {
        /// Which.
        replica: usize,
        /// By how much.
        seconds: i64,
    },
}

impl Fault {
    /// In words.
    pub(crate) fn title(&self) -> String {
        match self {
            Self::Away => "store away".into(),
            Self::Errors(share) => format!("{:.0} % errors", share * 100.0),
            Self::Slower(factor) => format!("latency × {factor}"),
            Self::Narrower(factor) => format!("bandwidth ÷ {factor}"),
            Self::BrownOut => "brown-out".into(),
            Self::Kill { replica } => format!("replica {replica} killed"),
            Self::LoseCache { replica } => format!("replica {replica} lost its cache"),
            Self::DiskFull { replica } => format!("disk of replica {replica} full"),
            Self::ClockJump { replica, seconds } => format!("clock of replica {replica} {seconds:+} s"),
        }
    }

    /// Whether it needs clocks that can jump.
    pub(crate) const fn jumps(&self) -> bool {
        matches!(self, Self::ClockJump { .. })
    }
}

/// A fault as it happened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FaultWindow {
    pub(crate) what: String,
    pub(crate) from_s: f64,
    pub(crate) to_s: f64,
}
