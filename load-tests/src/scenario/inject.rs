//! Injects faults into a running cluster.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kvasir_tests::proxy::{Toxic, Weather};
use tokio::time::Instant;

use super::fault::{Fault, FaultSpec, FaultWindow};
use crate::cluster::Cluster;

/// Errors as real stores produce them; flipped bytes and stalls have separate tests.
const ERRORS: &[Toxic] = &[Toxic::SlowDown, Toxic::ResetBefore, Toxic::ResetMidBody, Toxic::Ambiguous];

async fn begin(fault: Fault, cluster: &mut Cluster) -> Result<()> {
    let usual = cluster.weather;
    let weather = |weather: Weather| -> Result<()> {
        let proxy = cluster.proxy.as_ref().context("faults of the store require store = \"s3\"")?;
        proxy.weather(weather);
        Ok(())
    };
    let narrower = |factor: f64| usual.bytes_per_second.map(|rate| (rate as f64 / factor) as u64);
    let slower = |factor: f64| usual.delay.mul_f64(factor);
    match fault {
        Fault::Away => weather(Weather { away: true, ..usual }),
        Fault::Slower(factor) => weather(Weather { delay: slower(factor), ..usual }),
        Fault::Narrower(factor) => weather(Weather { bytes_per_second: narrower(factor), ..usual }),
        Fault::BrownOut => {
            weather(Weather { away: false, delay: slower(5.0), bytes_per_second: narrower(4.0) })?;
            errors(cluster, 0.1)
        }
        Fault::Errors(share) => errors(cluster, share),
        Fault::Kill { replica } => {
            cluster.kill(replica);
            Ok(())
        }
        Fault::LoseCache { replica } => {
            cluster.kill(replica);
            let cache = &cluster.replicas[replica].cache;
            Ok(std::fs::remove_dir_all(cache)?)
        }
        Fault::DiskFull { replica } => {
            cluster.replicas[replica].disk.as_ref().context("disk_mib is not set")?.fill()
        }
        Fault::ClockJump { replica, seconds } => {
            cluster.replicas[replica].clock.as_ref().context("no clock")?.jump(seconds)
        }
    }
}

async fn end(fault: Fault, cluster: &mut Cluster) -> Result<()> {
    match fault {
        Fault::Kill { replica } | Fault::LoseCache { replica } => cluster.start_replica(replica).await,
        Fault::DiskFull { replica } => {
            cluster.replicas[replica].disk.as_ref().context("disk_mib is not set")?.empty()
        }
        Fault::ClockJump { replica, .. } => {
            cluster.replicas[replica].clock.as_ref().context("no clock")?.jump(0)
        }
        _ => {
            errors(cluster, 0.0)?;
            let proxy = cluster.proxy.as_ref().context("a proxy")?;
            proxy.weather(cluster.weather);
            Ok(())
        }
    }
}

fn errors(cluster: &Cluster, share: f64) -> Result<()> {
    let proxy = cluster.proxy.as_ref().context("faults of the store require store = \"s3\"")?;
    proxy.set_among((share * 1e3) as usize, ERRORS);
    Ok(())
}

/// Injects all faults in sequence.
pub(crate) async fn inject(
    faults: &[FaultSpec],
    cluster: &mut Cluster,
    begun: Instant,
) -> Result<Vec<FaultWindow>> {
    let mut windows = Vec::new();
    for fault in faults {
        tokio::time::sleep_until(begun + Duration::from_secs_f64(fault.at)).await;
        let from_s = begun.elapsed().as_secs_f64();
        begin(fault.what, cluster).await.with_context(|| fault.what.title())?;
        tokio::time::sleep(Duration::from_secs_f64(fault.lasts)).await;
        end(fault.what, cluster).await.with_context(|| fault.what.title())?;
        let to_s = begun.elapsed().as_secs_f64();
        windows.push(FaultWindow { what: fault.what.title(), from_s, to_s });
    }
    Ok(windows)
}
