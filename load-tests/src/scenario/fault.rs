//! What goes wrong while requests arrive.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kvasir_tests::proxy::{Toxic, Weather};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::world::World;

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
    /// The store cannot be reached: connections are cut, those under way too.
    Away,
    /// This share of the store's requests fails: refused, cut before or in the middle, or answered 500 although done.
    Errors(f64),
    /// Every request to the store takes so many times as long.
    Slower(f64),
    /// The link to the store has this part of its bandwidth: 10 is a tenth.
    Narrower(f64),
    /// All of it, a little: 5 times as slow, a quarter of the bandwidth, 10 % errors.
    BrownOut,
    /// A replica gets SIGKILL, and is started again where it was.
    Kill {
        /// Which.
        replica: usize,
    },
    /// As `kill`, and its index and hot tier are gone when it comes back.
    LoseCache {
        /// Which.
        replica: usize,
    },
    /// A replica's disk has no room left.
    DiskFull {
        /// Which.
        replica: usize,
    },
    /// A replica's wall clock is wrong by so many seconds.
    ClockJump {
        /// Which.
        replica: usize,
        /// By how much.
        seconds: i64,
    },
}

/// Errors of the kinds that stores have; flipped bytes and stalls have tests of their own.
const ERRORS: &[Toxic] = &[Toxic::SlowDown, Toxic::ResetBefore, Toxic::ResetMidBody, Toxic::Ambiguous];

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

    async fn begin(&self, world: &mut World) -> Result<()> {
        let usual = world.weather;
        let weather = |weather: Weather| -> Result<()> {
            let proxy = world.proxy.as_ref().context("faults of the store need store = \"s3\"")?;
            proxy.weather(weather);
            Ok(())
        };
        let narrower = |factor: f64| usual.bytes_per_second.map(|rate| (rate as f64 / factor) as u64);
        let slower = |factor: f64| usual.delay.mul_f64(factor);
        match *self {
            Self::Away => weather(Weather { away: true, ..usual }),
            Self::Slower(factor) => weather(Weather { delay: slower(factor), ..usual }),
            Self::Narrower(factor) => weather(Weather { bytes_per_second: narrower(factor), ..usual }),
            Self::BrownOut => {
                weather(Weather { away: false, delay: slower(5.0), bytes_per_second: narrower(4.0) })?;
                errors(world, 0.1)
            }
            Self::Errors(share) => errors(world, share),
            Self::Kill { replica } => {
                world.kill(replica);
                Ok(())
            }
            Self::LoseCache { replica } => {
                world.kill(replica);
                let cache = &world.replicas[replica].cache;
                Ok(std::fs::remove_dir_all(cache)?)
            }
            Self::DiskFull { replica } => {
                world.replicas[replica].disk.as_ref().context("disk_mib is not set")?.fill()
            }
            Self::ClockJump { replica, seconds } => {
                world.replicas[replica].clock.as_ref().context("no clock")?.jump(seconds)
            }
        }
    }

    async fn end(&self, world: &mut World) -> Result<()> {
        match *self {
            Self::Kill { replica } | Self::LoseCache { replica } => world.start_replica(replica).await,
            Self::DiskFull { replica } => {
                world.replicas[replica].disk.as_ref().context("disk_mib is not set")?.empty()
            }
            Self::ClockJump { replica, .. } => {
                world.replicas[replica].clock.as_ref().context("no clock")?.jump(0)
            }
            _ => {
                errors(world, 0.0)?;
                let proxy = world.proxy.as_ref().context("a proxy")?;
                proxy.weather(world.weather);
                Ok(())
            }
        }
    }
}

fn errors(world: &World, share: f64) -> Result<()> {
    let proxy = world.proxy.as_ref().context("faults of the store need store = \"s3\"")?;
    proxy.set_among((share * 1e3) as usize, ERRORS);
    Ok(())
}

/// A fault as it happened.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Happened {
    pub(crate) what: String,
    pub(crate) from_s: f64,
    pub(crate) to_s: f64,
}

/// Lets all of them happen, one after the other.
pub(crate) async fn happen(faults: &[FaultSpec], world: &mut World, begun: Instant) -> Result<Vec<Happened>> {
    let mut happened = Vec::new();
    for fault in faults {
        tokio::time::sleep_until(begun + Duration::from_secs_f64(fault.at)).await;
        let from_s = begun.elapsed().as_secs_f64();
        fault.what.begin(world).await.with_context(|| fault.what.title())?;
        tokio::time::sleep(Duration::from_secs_f64(fault.lasts)).await;
        fault.what.end(world).await.with_context(|| fault.what.title())?;
        let to_s = begun.elapsed().as_secs_f64();
        happened.push(Happened { what: fault.what.title(), from_s, to_s });
    }
    Ok(happened)
}
