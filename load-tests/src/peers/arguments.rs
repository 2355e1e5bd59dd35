//! Flags of the comparison.

use std::path::PathBuf;

use clap::Args;

use super::servers::HOT_BYTES;
use crate::arguments::CommonArguments;

/// Compares the service with nginx, MinIO, Redis and LMCache's server: throughput, latency, CPU and memory
/// for values of 4 to 32 MB, from memory, from disk and over TLS.
#[derive(Debug, Args)]
pub(crate) struct PeersArguments {
    #[command(flatten)]
    pub(crate) common: CommonArguments,
    /// Sizes of values in MB, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "4,8,16,32")]
    pub(super) sizes: Vec<usize>,
    /// Number of values of each size to read.
    #[arg(long, default_value_t = 8)]
    pub(super) values: usize,
    /// MB of new values that each measurement of writes stores, the same for all servers.
    #[arg(long, default_value_t = 256)]
    pub(super) written: usize,
    /// Concurrent connections; each sends its next request when the previous one is complete.
    #[arg(long, default_value_t = 2)]
    pub(super) connections: usize,
    /// Seconds of one measurement of reads.
    #[arg(long, default_value_t = 1.5)]
    pub(super) seconds: f64,
    /// Measurements of each server. The servers take turns, and the median is reported.
    #[arg(long, default_value_t = 5)]
    pub(super) rounds: usize,
    /// The nginx binary; `load-tests/peers/nginx FOLDER` unpacks one.
    #[arg(long, default_value = "/usr/sbin/nginx")]
    pub(crate) nginx: PathBuf,
    /// The MinIO binary; by default the one that `tests/servers/minio install` builds.
    #[arg(long)]
    pub(crate) minio: Option<PathBuf>,
    /// The redis-server binary; `load-tests/peers/redis FOLDER` unpacks one.
    #[arg(long, default_value = "redis-server")]
    pub(crate) redis: PathBuf,
    /// A Python with lmcache; `load-tests/peers/lmcache FOLDER` makes one.
    #[arg(long, default_value = "target/peers/lmcache/bin/python")]
    pub(crate) lmcache: PathBuf,
}

impl PeersArguments {
    /// Writes of one measurement.
    pub(super) fn writes_of(&self, value_bytes: usize) -> usize {
        (self.written * 1_000_000 / value_bytes).max(self.connections)
    }

    /// Rounds of writes that fill the service's hot tier and are not counted: a page that was never used costs
    /// several times the copy into it. The tier takes half of what is written, the first of two levels.
    pub(super) fn warm_up_rounds(&self, value_bytes: usize) -> usize {
        (2 * HOT_BYTES).div_ceil(self.writes_of(value_bytes) * value_bytes)
    }
}
