//! Metrics of the API beyond storing and reading chunks: lookups, reports of clients, profiles, event readers.

use kvasir_api::{LoadRecord, TrainingOutcome};
use prometheus::{Counter, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// Distinct level labels; a profile has at most this many levels.
const LEVELS: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];

#[derive(Debug)]
pub(crate) struct ApiMetrics {
    lookup_tokens: IntCounterVec,
    lookup_keys: IntCounterVec,
    loads: IntCounterVec,
    load_tokens: IntCounterVec,
    load_bytes: IntCounterVec,
    load_level_tokens: IntCounterVec,
    load_saved_gpu_seconds: Counter,
    load_direct_bytes: IntCounter,
    profiles_stored: IntCounter,
    trainings: IntCounterVec,
    event_readers: IntGauge,
    event_readers_dropped: IntCounter,
}

impl ApiMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let counters = |name: &str, help: &str, label: &str| {
            IntCounterVec::new(Opts::new(name, help), &[label]).expect("a constant name")
        };
        let this = Self {
            lookup_tokens: counters(
                "kvasir_lookup_tokens_total",
                "Tokens looked up, and matched tokens among them.",
                "result",
            ),
            lookup_keys: counters(
                "kvasir_lookup_keys_total",
                "Keys of objects in lookups and reads of several, and keys found.",
                "result",
            ),
            loads: counters(
                "kvasir_loads_total",
                "Loads reported by clients, by whether they met their SLO.",
                "slo",
            ),
            load_tokens: counters("kvasir_load_tokens_total", "Tokens of these loads.", "result"),
            load_bytes: counters("kvasir_load_bytes_total", "Bytes of these loads, by level.", "level"),
            load_level_tokens: counters(
                "kvasir_load_level_tokens_total",
                "Tokens of these loads, by the level they were decoded at.",
                "level",
            ),
            load_saved_gpu_seconds: Counter::new(
                "kvasir_load_saved_gpu_seconds_total",
                "GPU-seconds saved by these loads, as predicted by clients.",
            )
            .expect("a constant name"),
            load_direct_bytes: IntCounter::new(
                "kvasir_load_direct_bytes_total",
                "Bytes of these loads read directly from the store.",
            )
            .expect("a constant name"),
            profiles_stored: IntCounter::new("kvasir_profiles_stored_total", "New profiles stored.")
                .expect("a constant name"),
            trainings: counters(
                "kvasir_profile_trainings_total",
                "Trainings of profiles reported by trainers, by how they ended.",
                "outcome",
            ),
            event_readers: IntGauge::new("kvasir_event_readers", "Open event streams.")
                .expect("a constant name"),
            event_readers_dropped: IntCounter::new(
                "kvasir_event_readers_dropped_total",
                "Event streams ended because their reader was too slow.",
            )
            .expect("a constant name"),
        };
        // From the start: without loads that met it, the share of them would be unknown instead of 0.
        for slo in ["met", "missed"] {
            this.loads.with_label_values(&[slo]);
        }
        for result in ["loaded", "recomputed"] {
            this.load_tokens.with_label_values(&[result]);
        }
        // Likewise the first one that ends in any way is an increase.
        for outcome in TrainingOutcome::ALL {
            this.trainings.with_label_values(&[outcome.as_str()]);
        }
        let all: [Box<dyn prometheus::core::Collector>; 12] = [
            Box::new(this.lookup_tokens.clone()),
            Box::new(this.lookup_keys.clone()),
            Box::new(this.loads.clone()),
            Box::new(this.load_tokens.clone()),
            Box::new(this.load_bytes.clone()),
            Box::new(this.load_level_tokens.clone()),
            Box::new(this.load_saved_gpu_seconds.clone()),
            Box::new(this.load_direct_bytes.clone()),
            Box::new(this.profiles_stored.clone()),
            Box::new(this.trainings.clone()),
            Box::new(this.event_readers.clone()),
            Box::new(this.event_readers_dropped.clone()),
        ];
        for metric in all {
            registry.register(metric).expect("names are distinct");
        }
        this
    }

    /// A lookup of tokens.
    pub(crate) fn lookup(&self, asked_tokens: u64, matched_tokens: u64) {
        self.lookup_tokens.with_label_values(&["asked"]).inc_by(asked_tokens);
        self.lookup_tokens.with_label_values(&["matched"]).inc_by(matched_tokens);
    }

    /// A lookup or a read of several objects by key.
    pub(crate) fn lookup_keys(&self, asked: usize, found: usize) {
        self.lookup_keys.with_label_values(&["asked"]).inc_by(asked as u64);
        self.lookup_keys.with_label_values(&["found"]).inc_by(found as u64);
    }

    /// A load ended, as reported by its client.
    pub(crate) fn load(&self, record: &LoadRecord) {
        let met = !record.missed();
        self.loads.with_label_values(&[if met { "met" } else { "missed" }]).inc();
        self.load_tokens.with_label_values(&["loaded"]).inc_by(record.loaded_tokens);
        self.load_tokens.with_label_values(&["recomputed"]).inc_by(record.recomputed_tokens);
        for (by_level, metric) in
            [(&record.bytes_by_level, &self.load_bytes), (&record.tokens_by_level, &self.load_level_tokens)]
        {
            for (level, count) in by_level {
                // A level that no profile can have is a client's mistake, not a new label.
                if let Some(label) = LEVELS.get(level.index()) {
                    metric.with_label_values(&[label]).inc_by(*count);
                }
            }
        }
        self.load_saved_gpu_seconds.inc_by(record.saved_gpu_ms as f64 / 1e3);
        self.load_direct_bytes.inc_by(record.direct_bytes);
    }

    /// A new profile was stored.
    pub(crate) fn profile_stored(&self) {
        self.profiles_stored.inc();
    }

    /// A training ended, as reported by its trainer.
    pub(crate) fn training(&self, outcome: TrainingOutcome) {
        self.trainings.with_label_values(&[outcome.as_str()]).inc();
    }

    pub(crate) fn event_reader(&self, change: i64) {
        self.event_readers.add(change);
    }

    pub(crate) fn event_reader_dropped(&self) {
        self.event_readers_dropped.inc();
    }
}
