//! The settings of the collector and of scrubs, different for each history, and the promises under them.

use std::time::Duration;

use kvasir_tests::{faulty::Dice, model::Bounds};

/// How long a request whose answer did not arrive may still take effect, if others beside it did not take longer.
const UNKNOWN: Duration = Duration::from_secs(5);
/// Twice the replicas' setting.
pub(super) const NEGATIVE_TTL: Duration = Duration::from_secs(2);
/// A third of the default bound: the store is always available, and the processors are shared with other
/// tests.
const REMOVAL_BOUND: Duration = Duration::from_secs(10);
/// The default bound, for a store that is unavailable at times.
pub(super) const REMOVAL_BOUND_IN_TROUBLE: Duration = Duration::from_secs(30);
/// The store's dates are whole seconds.
const DATES: Duration = Duration::from_secs(2);
/// Longer than removals are in the logs under any of the settings but those of a dry run, which deletes none.
pub(super) const LONG_AWAY: Duration = Duration::from_secs(98);
/// A dry run deletes nothing of the journal either, and replicas that start read all of it, so its history is short.
pub(super) const DRY_RUN: Duration = Duration::from_secs(45);
/// How long its tombstones hide, which alone hide the bytes then: far longer than the history.
const DRY_RUN_RETENTION: Duration = Duration::from_secs(300);

/// The settings of all replicas for one history.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) grace: Duration,
    pub(super) tombstone_retention: Duration,
    /// Zero: nothing is too old.
    ttl: Duration,
    /// Zero: no limit.
    capacity_bytes: u64,
    eviction: &'static str,
    actions_per_second: u64,
    interval: Duration,
    /// The collector only counts: nothing goes, however old it is and however much there is.
    pub(super) dry_run: bool,
    leftovers_age: Duration,
    journal_retention: Duration,
    /// Zero: no scrubs.
    scrub_interval: Duration,
    /// Whether the way to the store is disturbed at times.
    pub(super) has_trouble: bool,
}

impl Settings {
    /// Of the first history of a run.
    pub(super) const FIRST: Self = Self {
        grace: Duration::from_secs(2),
        tombstone_retention: Duration::from_secs(60),
        ttl: Duration::from_secs(20),
        capacity_bytes: 0,
        eviction: "adaptive",
        actions_per_second: 0,
        interval: Duration::from_millis(500),
        dry_run: false,
        leftovers_age: Duration::from_secs(86_400),
        journal_retention: Duration::from_secs(1),
        scrub_interval: Duration::ZERO,
        has_trouble: false,
    };

    pub(super) fn draw(dice: &mut Dice) -> Self {
        let mut seconds = |among: &[u64]| Duration::from_secs(among[dice.below(among.len())]);
        let (grace, tombstone_retention) = (seconds(&[0, 1, 2, 5]), seconds(&[60, 75, 90]));
        let ttl = seconds(&[0, 8, 20, 60]);
        // Longer than any write lasts, and shorter than a history.
        let leftovers_age = seconds(&[60, 86_400]);
        let journal_retention = seconds(&[1, 5, 20]);
        // Shorter than a replica lives on average.
        let scrub_interval = seconds(&[0, 0, 2]);
        let dry_run = dice.below(6) == 0;
        Self {
            grace,
            tombstone_retention: if dry_run { DRY_RUN_RETENTION } else { tombstone_retention },
            ttl,
            leftovers_age,
            journal_retention,
            scrub_interval,
            // A few contexts; what they are beyond it goes at any age.
            capacity_bytes: [0, 0, 40_000, 200_000][dice.below(4)],
            eviction: ["adaptive", "lru"][dice.below(2)],
            actions_per_second: [0, 5, 100][dice.below(3)],
            interval: Duration::from_millis([100, 500, 3_000][dice.below(3)]),
            dry_run,
            has_trouble: dice.below(3) > 0,
        }
    }

    pub(super) fn flags(&self) -> Vec<String> {
        let text = |name: &str, value: &dyn std::fmt::Display| format!("--gc.{name}={value}");
        let ms = |name: &str, time: Duration| format!("--{name}={}ms", time.as_millis());
        let mut flags = vec![
            ms("gc.grace", self.grace),
            ms("gc.tombstone_retention", self.tombstone_retention),
            ms("gc.ttl", self.ttl),
            ms("gc.interval", self.interval),
            ms("gc.leftovers_age", self.leftovers_age),
            ms("journal.retention", self.journal_retention),
            ms("scrub.interval", self.scrub_interval),
            // A history's objects in a few seconds; replicas share the processors with all that is judged.
            "--scrub.rate=64KiB".to_owned(),
            text("dry_run", &self.dry_run),
            text("capacity", &format!("{}B", self.capacity_bytes)),
            text("eviction", &self.eviction),
            text("actions_per_second", &self.actions_per_second),
        ];
        if self.has_trouble {
            // Impatient, so that a request that stalls does not take the rest of the history; but a busy store takes seconds, and
            // after a stall there is time for another attempt.
            flags.extend(["--store.request_timeout=5s".to_owned(), "--store.retry_timeout=12s".to_owned()]);
        }
        flags
    }

    /// Whether the collector may remove young objects.
    pub(super) fn may_evict(&self) -> bool {
        self.capacity_bytes > 0 && !self.dry_run
    }

    pub(super) fn bounds(&self) -> Bounds {
        let by_age = (!self.ttl.is_zero() && !self.dry_run).then(|| self.ttl.saturating_sub(DATES));
        Bounds {
            unknown: UNKNOWN,
            negative_ttl: NEGATIVE_TTL,
            removal: Some(if self.has_trouble { REMOVAL_BOUND_IN_TROUBLE } else { REMOVAL_BOUND }),
            tombstone: self.tombstone_retention - DATES,
            ttl: if self.may_evict() { Some(Duration::ZERO) } else { by_age },
        }
    }

    /// When two concurrent values of one key may have lost one of them.
    pub(super) fn meeting_grace(&self) -> Duration {
        self.grace.saturating_sub(DATES)
    }
}
