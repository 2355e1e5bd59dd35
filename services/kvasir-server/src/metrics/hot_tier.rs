//! Metrics of the hot tier.

use std::sync::atomic::{AtomicU64, Ordering};

use kvasir_eviction::{CURVE_SCALES, ClassId, limits::CLASSES_MAX};
use kvasir_storage::hot::{EvictReason, HotCache, HotObserver};
use kvasir_types::Medium;
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// Seconds: from a burst to a day.
const AGES: &[f64] = &[0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0];
/// Media that serve frames.
const MEDIA: [(Medium, &str); 3] = [(Medium::Cpu, "cpu"), (Medium::Disk, "disk"), (Medium::Object, "object")];

/// Counts since the last scrape, one per class and medium: serving a frame costs two additions.
#[derive(Debug, Default)]
struct ServedCounts {
    frames: AtomicU64,
    bytes: AtomicU64,
}

/// The metrics.
#[derive(Debug)]
pub(crate) struct HotTierMetrics {
    served: Vec<[ServedCounts; MEDIA.len()]>,
    served_frames: IntCounterVec,
    served_bytes: IntCounterVec,
    evictions: IntCounterVec,
    ages: HistogramVec,
    idle: HistogramVec,
    bytes: IntGaugeVec,
    first_bytes: IntGaugeVec,
    capacity: IntGaugeVec,
    memory: IntGauge,
    estimated_hit_ratio: GaugeVec,
}

fn label(medium: Medium) -> (usize, &'static str) {
    let at = MEDIA.iter().position(|(other, _)| *other == medium).unwrap_or(MEDIA.len() - 1);
    (at, MEDIA[at].1)
}

impl HotTierMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(Opts::new(name, help), labels).expect("a constant name")
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            IntGaugeVec::new(Opts::new(name, help), labels).expect("a constant name")
        };
        let seconds = |name: &str, help: &str| {
            let opts = HistogramOpts::new(name, help).buckets(AGES.to_vec());
            HistogramVec::new(opts, &["medium", "reason"]).expect("a constant name")
        };
        let this = Self {
            served: (0..CLASSES_MAX).map(|_| Default::default()).collect(),
            served_frames: counters(
                "kvasir_hot_served_frames_total",
                "Frames served, by request type, turn and medium; object is a miss.",
                &["type", "turn", "medium"],
            ),
            served_bytes: counters(
                "kvasir_hot_served_bytes_total",
                "Bytes of frames served.",
                &["type", "turn", "medium"],
            ),
            evictions: counters(
                "kvasir_hot_evictions_total",
                "Frames evicted from a medium, by reason.",
                &["medium", "reason"],
            ),
            ages: seconds("kvasir_hot_eviction_age_seconds", "Age of frames at eviction."),
            idle: seconds("kvasir_hot_eviction_idle_seconds", "Time since the last use of frames at eviction."),
            bytes: gauges("kvasir_hot_bytes", "Bytes kept, by level.", &["medium", "level"]),
            first_bytes: gauges(
                "kvasir_hot_first_bytes",
                "Bytes kept that were last used for a route of which this replica is the first.",
                &["medium"],
            ),
            capacity: gauges("kvasir_hot_capacity_bytes", "Capacity in bytes.", &["medium"]),
            memory: IntGauge::new(
                "kvasir_hot_memory_bytes",
                "Memory of all frames: cached, being fetched, waiting for the disk, and being sent to slow readers.",
            )
            .expect("a constant name"),
            estimated_hit_ratio: GaugeVec::new(
                Opts::new(
                    "kvasir_hot_estimated_hit_ratio",
                    "Estimated share of the bytes requested in the last hour that memory would serve at this multiple of its size.",
                ),
                &["memory"],
            )
            .expect("a constant name"),
        };
        // An alert on increases misses a series that begins at 1.
        for medium in [Medium::Cpu, Medium::Disk] {
            this.evictions.with_label_values(&[label(medium).1, EvictReason::Corrupt.as_str()]);
        }
        let registered = [
            registry.register(Box::new(this.served_frames.clone())),
            registry.register(Box::new(this.served_bytes.clone())),
            registry.register(Box::new(this.evictions.clone())),
            registry.register(Box::new(this.ages.clone())),
            registry.register(Box::new(this.idle.clone())),
            registry.register(Box::new(this.bytes.clone())),
            registry.register(Box::new(this.first_bytes.clone())),
            registry.register(Box::new(this.capacity.clone())),
            registry.register(Box::new(this.memory.clone())),
            registry.register(Box::new(this.estimated_hit_ratio.clone())),
        ];
        registered.into_iter().for_each(|result| result.expect("names are distinct"));
        this
    }

    /// Brings everything up to date before a scrape.
    pub(crate) fn refresh(&self, hot: &HotCache) {
        for (index, of_class) in self.served.iter().enumerate() {
            let of_media = of_class.iter().zip(MEDIA);
            for (served, (_, medium)) in of_media {
                let frames = served.frames.swap(0, Ordering::Relaxed);
                let bytes = served.bytes.swap(0, Ordering::Relaxed);
                if frames > 0 || bytes > 0 {
                    let class = hot.requests().class_at(index);
                    let (kind, turn) = class
                        .as_ref()
                        .map_or(("", "other"), |class| (class.kind.as_str(), class.turn.label()));
                    self.served_frames.with_label_values(&[kind, turn, medium]).inc_by(frames);
                    self.served_bytes.with_label_values(&[kind, turn, medium]).inc_by(bytes);
                }
            }
        }
        let ratios = hot.tier().hit_ratio_curve().unwrap_or([f64::NAN; CURVE_SCALES.len()]);
        for (scale, ratio) in CURVE_SCALES.iter().zip(ratios) {
            self.estimated_hit_ratio.with_label_values(&[&scale.to_string()]).set(ratio);
        }
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.memory.set(gauge(hot.tier().memory().used()));
        let (usage, settings) = (hot.tier().usage(), hot.tier().settings());
        for (medium, levels, first, capacity) in [
            ("cpu", &usage.ram_level_bytes, usage.ram_first_bytes, settings.ram_bytes),
            ("disk", &usage.disk_level_bytes, usage.disk_first_bytes, settings.disk_bytes),
        ] {
            for (level, bytes) in levels.iter().enumerate() {
                self.bytes.with_label_values(&[medium, &level.to_string()]).set(gauge(*bytes));
            }
            self.first_bytes.with_label_values(&[medium]).set(gauge(first));
            self.capacity.with_label_values(&[medium]).set(gauge(capacity));
        }
    }
}

impl HotObserver for HotTierMetrics {
    fn served(&self, medium: Medium, class: ClassId, bytes: u64) {
        if let Some(of_class) = self.served.get(class.index()) {
            let served = &of_class[label(medium).0];
            served.frames.fetch_add(1, Ordering::Relaxed);
            served.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn evicted(&self, medium: Medium, reason: EvictReason, age_seconds: f64, idle_seconds: f64) {
        let labels = [label(medium).1, reason.as_str()];
        self.evictions.with_label_values(&labels).inc();
        self.ages.with_label_values(&labels).observe(age_seconds);
        self.idle.with_label_values(&labels).observe(idle_seconds);
    }
}
