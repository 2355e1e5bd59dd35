//! The resources that the replicas of a run use at one moment.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::survivor;
use crate::{
    process::usage::{self, Usage},
    speed::stats::median,
};

/// A smaller cache directory counts as this much: it has the database's first segments and little else, whose number
/// varies.
const CACHE_MIB_MIN: f64 = 4.0;

/// Replicas start and stop; the largest one counts.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) at_s: f64,
    pub(crate) replicas: usize,
    pub(crate) resident_mib: f64,
    pub(crate) fds: u64,
    /// In the cache directory of the running replica with most.
    pub(crate) cache_mib: f64,
    /// In the run's folder: a store of files, and the disks of all replicas, also of those that ended.
    pub(crate) folder_mib: f64,
    /// The replica that no fault ends, in the run that has one.
    pub(crate) survivor: Option<ReplicaUse>,
}

/// One process of a replica.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ReplicaUse {
    pub(crate) id: u32,
    pub(crate) resident_mib: f64,
    pub(crate) fds: u64,
    /// In its cache directory.
    pub(crate) cache_mib: f64,
}

impl Sample {
    /// Samples the process `id` and its descendants, which keep their files in `folder`.
    pub(crate) fn take(id: u32, folder: &Path, at_s: f64) -> Self {
        let replicas: Vec<(PathBuf, ReplicaUse)> = usage::family(id)
            .into_iter()
            .filter_map(|id| {
                let words = fs::read(format!("/proc/{id}/cmdline")).ok()?;
                let cache = cache_of_replica(&words)?;
                let Usage { resident_mib, fds, .. } = usage::usage_of(&[id]);
                let cache_mib = folder_mib(&cache);
                Some((cache, ReplicaUse { id, resident_mib, fds, cache_mib }))
            })
            .collect();
        let most = |of: fn(&ReplicaUse) -> f64| replicas.iter().map(|(_, one)| of(one)).fold(0.0, f64::max);
        Self {
            at_s,
            replicas: replicas.len(),
            resident_mib: most(|one| one.resident_mib),
            fds: replicas.iter().map(|(_, one)| one.fds).max().unwrap_or(0),
            cache_mib: most(|one| one.cache_mib),
            folder_mib: folder_mib(folder),
            survivor: replicas.iter().find(|(cache, _)| survivor::is_cache(cache)).map(|(_, one)| *one),
        }
    }
}

/// The cache directory of a replica, by its command line; `None` if it is another program.
fn cache_of_replica(cmdline: &[u8]) -> Option<PathBuf> {
    let mut words = cmdline.split(|byte| *byte == 0);
    let is_replica = words.next()?.ends_with(b"/kvasir") && words.any(|word| word == b"serve");
    let mut words = words.skip_while(|word| *word != b"--cache.directory").skip(1);
    words.next().filter(|_| is_replica).map(|path| PathBuf::from(OsStr::from_bytes(path)))
}

fn folder_mib(path: &Path) -> f64 {
    usage::folder_bytes(path) as f64 / f64::from(1 << 20)
}

/// How much each figure grew: the median of the last quarter over that of the second, in which all is warm.
pub(crate) fn growth(samples: &[Sample]) -> Vec<(&'static str, f64)> {
    let running: Vec<&Sample> = samples.iter().filter(|sample| sample.replicas > 0).collect();
    let quarter = running.len() / 4;
    if quarter < 4 {
        return Vec::new();
    }
    let grew = |of: fn(&Sample) -> f64| {
        let values: Vec<f64> = running.iter().map(|sample| of(sample)).collect();
        let before = median(&values[quarter..2 * quarter]);
        if before > 0.0 { median(&values[values.len() - quarter..]) / before } else { 1.0 }
    };
    vec![
        ("memory", grew(|sample| sample.resident_mib)),
        ("descriptors", grew(|sample| sample.fds as f64)),
        ("disk", grew(|sample| sample.cache_mib.max(CACHE_MIB_MIN))),
    ]
}

/// Ticks of all processors so far: those that worked, and all.
pub(crate) fn processor_ticks() -> (u64, u64) {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
    // Guests' time is in that of users.
    let all: u64 = ticks.iter().take(8).sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (all - idle.min(all), all)
}

/// The share of the processors that worked between two moments.
pub(crate) fn busy_share(before: (u64, u64), now: (u64, u64)) -> f64 {
    let all = now.1.saturating_sub(before.1).max(1);
    now.0.saturating_sub(before.0) as f64 / all as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_from_the_second_quarter_to_the_last() {
        let sample = |n: usize| Sample {
            at_s: n as f64,
            replicas: usize::from(n != 7),
            resident_mib: if n < 30 { 100.0 } else { 210.0 },
            fds: 50,
            cache_mib: if n < 20 { 2.0 } else { 10.0 },
            folder_mib: 0.0,
            survivor: None,
        };
        let samples: Vec<Sample> = (0..41).map(sample).collect();
        assert_eq!(growth(&samples), [("memory", 2.1), ("descriptors", 1.0), ("disk", 2.5)]);
        assert_eq!(growth(&samples[..9]), [], "too few to say");
    }

    #[test]
    fn a_replica_is_known_by_its_command_line() {
        let words = |text: &str| text.replace(' ', "\0").into_bytes();
        let line =
            "/target/debug/kvasir serve --listen 127.0.0.1:0 --cache.directory /tmp/a/1 --gc.grace=0s ";
        assert_eq!(cache_of_replica(&words(line)), Some("/tmp/a/1".into()));
        assert!(
            !survivor::is_cache(Path::new("/tmp/a/1")) && survivor::is_cache(Path::new("/tmp/a/replica-0"))
        );
        assert_eq!(cache_of_replica(&words(&line.replace("/kvasir", "/kvasir-load"))), None);
        assert_eq!(
            cache_of_replica(&words("/target/debug/kvasir selftest --cache.directory /tmp/a/1")),
            None
        );
    }

    #[test]
    fn processors_that_work_are_told_from_those_that_do_not() {
        assert_eq!(busy_share((10, 100), (60, 200)), 0.5);
        assert!(processor_ticks().1 > 0);
    }
}
