//! The replica of the conversations that no fault ends. Its process and its cache live as long as the run, so what
//! leaks a little with each request or fault shows here; the other replicas are too young for it.

use std::{collections::BTreeSet, fmt, path::Path};

use serde::{Deserialize, Serialize};

use super::sample::{ReplicaUse, Sample};
use crate::speed::stats::median;

/// Which one: faults are of those behind it.
pub(super) const SURVIVOR: usize = 0;
/// The name of its cache directory, which tells its process from the others'.
const CACHE: &str = "replica-0";

/// What the settings let its caches fill; [`settings`]. The index has a row of about 90 bytes for each chunk that any of the
/// replicas stores, and a third of its memory is for pages of its database, so this bounds it, however many are stored.
const HOT_MEMORY_MIB: u32 = 64;
const INDEX_MEMORY_MIB: u32 = 64;
const UPLOAD_MEMORY_MIB: u32 = 64;
const HOT_DISK_MIB: u32 = 256;

/// A median of the last quarter may be this many times that of the second, and [`SLACK`] more. This is for the allocator,
/// which keeps what a burst needed in parts; for what remembers the last hour in memory (uses of frames, the console's series)
/// and thus fills until its end; and for requests that are not equally many in both quarters.
const GROWTH_MAX: f64 = 1.25;
/// MiB, or descriptors. On disk it is also for the index, which has up to 0.9 KB a chunk there: an hour at the default speed
/// stores some 25,000, and this and a quarter of the hot tier's disk are 96 MiB.
const SLACK: f64 = 32.0;

/// One sample in this many may miss its process, and two in any case: it ends some milliseconds before the others, and
/// `/proc` is not read at one moment.
const MISSED_ONE_IN: usize = 100;
/// Fewer samples show nothing.
const SAMPLES_MIN: usize = 16;

/// The settings that bound its caches, as `section.key=value`.
pub(super) fn settings() -> [String; 4] {
    [
        format!("hot.memory={HOT_MEMORY_MIB}MiB"),
        format!("hot.disk={HOT_DISK_MIB}MiB"),
        format!("cache.index_memory={INDEX_MEMORY_MIB}MiB"),
        format!("upload.memory={UPLOAD_MEMORY_MIB}MiB"),
    ]
}

/// Whether a replica's cache directory is this one's.
pub(super) fn is_cache(cache: &Path) -> bool {
    cache.ends_with(CACHE)
}

/// A figure over its life: the medians of the second quarter and of the last, and the bound of the latter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Growth {
    pub(super) what: String,
    pub(super) before: f64,
    pub(super) after: f64,
    pub(super) max: f64,
}

impl Growth {
    /// A cache that fills is no leak: less than `filled` counts as that.
    fn new(what: &str, values: &[f64], filled: f64) -> Self {
        let quarter = values.len() / 4;
        let (before, after) =
            (median(&values[quarter..2 * quarter]), median(&values[values.len() - quarter..]));
        Self { what: what.to_owned(), before, after, max: before.max(filled) * GROWTH_MAX + SLACK }
    }

    pub(super) fn is_too_much(&self) -> bool {
        self.after > self.max
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, before, after, max } = self;
        write!(
            f,
            "replica {SURVIVOR}, which no fault ends: {what}: {before:.0} in the second quarter, {after:.0} in the last, at most {max:.0} are allowed"
        )
    }
}

/// How much its memory, descriptors and cache directory grew.
///
/// # Errors
/// Why the samples do not show it.
pub(super) fn growth(samples: &[Sample]) -> Result<Vec<Growth>, String> {
    let alive: Vec<_> = samples.iter().filter_map(|sample| sample.survivor).collect();
    let ids: BTreeSet<u32> = alive.iter().map(|one| one.id).collect();
    let since = samples.iter().skip_while(|sample| sample.survivor.is_none());
    let missed = since.filter(|sample| sample.survivor.is_none() && sample.replicas > 0).count();
    if ids.len() > 1 || missed > (samples.len() / MISSED_ONE_IN).max(2) {
        return Err(format!(
            "replica {SURVIVOR} must live as long as the run: its processes were {ids:?}, and {missed} samples have only other replicas"
        ));
    }
    if alive.len() < SAMPLES_MIN {
        return Err(format!(
            "replica {SURVIVOR} is in {} samples: too few to show whether it grew",
            alive.len()
        ));
    }
    let values = |of: fn(&ReplicaUse) -> f64| alive.iter().map(of).collect::<Vec<_>>();
    let memory = f64::from(HOT_MEMORY_MIB + INDEX_MEMORY_MIB + UPLOAD_MEMORY_MIB);
    Ok(vec![
        Growth::new("resident MiB", &values(|one| one.resident_mib), memory),
        Growth::new("open files", &values(|one| one.fds as f64), 0.0),
        Growth::new("MiB of its cache directory", &values(|one| one.cache_mib), f64::from(HOT_DISK_MIB)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(n: usize, survivor: Option<ReplicaUse>) -> Sample {
        Sample {
            at_s: n as f64,
            replicas: 3,
            resident_mib: 900.0,
            fds: 900,
            cache_mib: 900.0,
            folder_mib: 900.0,
            survivor,
        }
    }

    fn of(use_at: impl Fn(usize) -> ReplicaUse) -> Vec<Sample> {
        (0..40).map(|n| sample(n, Some(use_at(n)))).collect()
    }

    const FLAT: ReplicaUse = ReplicaUse { id: 7, resident_mib: 250.0, fds: 40, cache_mib: 280.0 };

    #[test]
    fn caches_that_fill_are_no_growth_and_a_leak_is() {
        let wrong = |use_at: &dyn Fn(usize) -> ReplicaUse| {
            let grown = growth(&of(use_at)).unwrap().into_iter();
            grown.filter(Growth::is_too_much).map(|one| one.what).collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(wrong(&|_| FLAT), none);
        let fills = |n: usize| ReplicaUse { resident_mib: 5.0 * n as f64, cache_mib: 8.0 * n as f64, ..FLAT };
        assert_eq!(wrong(&fills), none);
        let leaks = |n: usize| ReplicaUse { resident_mib: 200.0 + 6.0 * n as f64, ..FLAT };
        assert_eq!(wrong(&leaks), ["resident MiB"]);
        let leaks = |n: usize| ReplicaUse { fds: 40 + 3 * n as u64, ..FLAT };
        assert_eq!(wrong(&leaks), ["open files"]);
        let leaks = |n: usize| ReplicaUse { cache_mib: 280.0 + 10.0 * n as f64, ..FLAT };
        assert_eq!(wrong(&leaks), ["MiB of its cache directory"]);
    }

    #[test]
    fn a_replica_that_was_replaced_or_ended_shows_nothing() {
        let mut samples = of(|n| ReplicaUse { id: if n < 20 { 7 } else { 8 }, ..FLAT });
        assert!(growth(&samples).unwrap_err().contains("{7, 8}"));
        samples = of(|_| FLAT);
        samples[..3].iter_mut().for_each(|sample| sample.survivor = None);
        samples[38..].iter_mut().for_each(|sample| sample.survivor = None);
        assert!(growth(&samples).is_ok(), "others start before it, and end after it");
        samples[30..].iter_mut().for_each(|sample| sample.survivor = None);
        assert!(growth(&samples).unwrap_err().contains("10 samples"));
        assert!(growth(&samples[..12]).unwrap_err().contains("too few"));
        let mut long: Vec<_> = (0..400).map(|n| sample(n, Some(FLAT))).collect();
        long[100..104].iter_mut().for_each(|sample| sample.survivor = None);
        assert!(growth(&long).is_ok(), "one in a hundred");
        long[104].survivor = None;
        assert!(growth(&long).unwrap_err().contains("5 samples"));
    }
}
