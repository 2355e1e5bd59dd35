//! The resources that the replicas of a run use at one moment.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::process::usage::{self, Usage};

/// Replicas start and stop; the largest one counts.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) at_s: f64,
    pub(crate) replicas: usize,
    pub(crate) resident_mib: f64,
    pub(crate) fds: u64,
    /// In the run's folder: a store of files, and the replicas' disks.
    pub(crate) disk_mib: f64,
}

impl Sample {
    /// Samples the process `id` and its descendants, which keep their files in `folder`.
    pub(crate) fn take(id: u32, folder: &Path, at_s: f64) -> Self {
        let is_replica = |id: &u32| {
            let words = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            let mut words = words.split(|byte| *byte == 0);
            words.next().is_some_and(|program| program.ends_with(b"/kvasir"))
                && words.any(|word| word == b"serve")
        };
        let replicas: Vec<u32> = usage::family(id).into_iter().filter(is_replica).collect();
        let all = replicas.iter().map(|id| usage::usage_of(&[*id]));
        let most = all.fold(Usage::default(), |most, one| Usage {
            resident_mib: most.resident_mib.max(one.resident_mib),
            fds: most.fds.max(one.fds),
            ..most
        });
        Self {
            at_s,
            replicas: replicas.len(),
            resident_mib: most.resident_mib,
            fds: most.fds,
            disk_mib: usage::folder_bytes(folder) as f64 / f64::from(1 << 20),
        }
    }
}

/// How much each figure grew: the median of the last quarter over that of the second, in which all is warm.
pub(crate) fn growth(samples: &[Sample]) -> Vec<(&'static str, f64)> {
    let running: Vec<&Sample> = samples.iter().filter(|sample| sample.replicas > 0).collect();
    let quarter = running.len() / 4;
    if quarter < 4 {
        return Vec::new();
    }
    let grew = |of: fn(&Sample) -> f64| {
        let median = |samples: &[&Sample]| {
            let mut values: Vec<f64> = samples.iter().map(|sample| of(sample)).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let before = median(&running[quarter..2 * quarter]);
        if before > 0.0 { median(&running[running.len() - quarter..]) / before } else { 1.0 }
    };
    vec![("memory", grew(|sample| sample.resident_mib)), ("descriptors", grew(|sample| sample.fds as f64))]
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
            disk_mib: 0.0,
        };
        let samples: Vec<Sample> = (0..41).map(sample).collect();
        assert_eq!(growth(&samples), [("memory", 2.1), ("descriptors", 1.0)]);
        assert_eq!(growth(&samples[..9]), [], "too few to say");
    }

    #[test]
    fn processors_that_work_are_told_from_those_that_do_not() {
        assert_eq!(busy_share((10, 100), (60, 200)), 0.5);
        assert!(processor_ticks().1 > 0);
    }
}
