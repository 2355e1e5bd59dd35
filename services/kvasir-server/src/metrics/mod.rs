//! All metrics of the service: one typed function per observation. Labels are bounded sets.

mod api;
mod cluster;
mod health;
mod hot_tier;

use std::{sync::Arc, time::Duration};

use kvasir_storage::{ScrubReport, Storage, gc::GcReport};
use kvasir_store::observe::{RequestOutcome, StoreEvent, StoreObserver, StoreOp};
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder, core::Collector, proto::MetricFamily,
};

pub(crate) use self::health::{CachePart, ReloadedFiles};
use self::{api::ApiMetrics, cluster::ClusterMetrics, health::HealthMetrics, hot_tier::HotTierMetrics};
use crate::wall_clock::unix_ms;

/// Seconds: from a hot lookup to a slow upload.
const SECONDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

/// The metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    http_requests: IntCounterVec,
    http_seconds: HistogramVec,
    http_in_flight: IntGauge,
    http_received: IntCounter,
    http_sent: IntCounter,
    connections: IntGauge,
    auth_refused: IntCounterVec,
    throttled: IntCounterVec,
    store_requests: IntCounterVec,
    store_seconds: HistogramVec,
    store_bytes: IntCounterVec,
    store_events: IntCounterVec,
    store_breaker: IntGauge,
    conditional_create: IntGauge,
    chunks_stored: IntCounterVec,
    chunk_bytes_stored: IntCounterVec,
    upload_memory: IntGauge,
    index_rows: IntGauge,
    index_replaced: IntGauge,
    ready: IntGauge,
    journal_entries: IntCounterVec,
    gc_passes: IntCounter,
    gc_actions: IntCounterVec,
    gc_deleted_bytes: IntCounter,
    gc_objects_met: IntGauge,
    scrub_objects: IntCounterVec,
    corrupt_reads: IntCounter,
    stored_bytes: IntGauge,
    stored_capacity: IntGauge,
    gc_last_pass: IntGauge,
    gc_interval: IntGauge,
    hot: Arc<HotTierMetrics>,
    api: ApiMetrics,
    health: HealthMetrics,
    cluster: ClusterMetrics,
}

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect("a constant name")
}

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).expect("a constant name")
}

fn gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::new(name, help).expect("a constant name")
}

fn seconds(name: &str, help: &str, labels: &[&str]) -> HistogramVec {
    let opts = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
    HistogramVec::new(opts, labels).expect("a constant name")
}

fn unix_seconds() -> i64 {
    (unix_ms() / 1000) as i64
}

/// A request whose response has not begun. Its client may hang up.
#[derive(Debug)]
pub(crate) struct RequestInFlight(IntGauge);

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let registry = Registry::new();
        let this = Self {
            hot: Arc::new(HotTierMetrics::new(&registry)),
            api: ApiMetrics::new(&registry),
            health: HealthMetrics::new(&registry),
            cluster: ClusterMetrics::new(&registry),
            registry,
            http_requests: counters(
                "kvasir_http_requests_total",
                "Completed requests, by route template.",
                &["route", "method", "status"],
            ),
            http_seconds: seconds(
                "kvasir_http_request_duration_seconds",
                "Time to the head of the response.",
                &["route"],
            ),
            http_in_flight: gauge("kvasir_http_requests_in_flight", "Requests whose response has not begun."),
            http_received: counter("kvasir_http_received_bytes_total", "Body bytes of uploads received."),
            http_sent: counter("kvasir_http_sent_bytes_total", "Body bytes of objects and profiles sent."),
            connections: gauge("kvasir_http_connections", "Open connections."),
            auth_refused: counters(
                "kvasir_auth_refused_total",
                "Requests refused because of their credential or its role.",
                &["reason"],
            ),
            throttled: counters(
                "kvasir_quota_throttled_total",
                "Requests refused because their tenant is over a limit.",
                &["limit"],
            ),
            store_requests: counters(
                "kvasir_store_requests_total",
                "Requests to the object store.",
                &["op", "outcome"],
            ),
            store_seconds: seconds(
                "kvasir_store_request_duration_seconds",
                "Time to the head of the store's response.",
                &["op"],
            ),
            store_bytes: counters(
                "kvasir_store_bytes_total",
                "Bytes requested from or sent to the store.",
                &["op"],
            ),
            store_events: counters(
                "kvasir_store_events_total",
                "Events of the retry layer: see docs/metrics.md.",
                &["event"],
            ),
            store_breaker: gauge(
                "kvasir_store_breaker_open",
                "Open circuit breakers: sides of the store, reads and writes, whose requests all fail.",
            ),
            conditional_create: gauge(
                "kvasir_store_conditional_create",
                "1 if the store honours conditional creates.",
            ),
            chunks_stored: counters(
                "kvasir_chunks_stored_total",
                "Chunks and objects by key acknowledged; known: the same object was already stored.",
                &["kind", "result"],
            ),
            chunk_bytes_stored: counters(
                "kvasir_chunks_stored_bytes_total",
                "Bytes of new chunks and objects by key.",
                &["kind"],
            ),
            upload_memory: gauge(
                "kvasir_upload_memory_bytes",
                "Memory of unfinished uploads' bodies, including the reserve for the next one.",
            ),
            index_rows: gauge(
                "kvasir_index_rows",
                "Chunk objects in the hot index; approximate after a crash.",
            ),
            index_replaced: gauge(
                "kvasir_index_replaced",
                "Index databases discarded since start because they were damaged.",
            ),
            ready: gauge("kvasir_ready", "1 while this replica is ready for traffic."),
            journal_entries: counters(
                "kvasir_journal_entries_total",
                "Entries appended to this replica's journal, entries applied from others', and skipped parts of others'.",
                &["direction"],
            ),
            gc_passes: counter("kvasir_gc_passes_total", "Garbage collection passes led by this replica."),
            gc_actions: counters(
                "kvasir_gc_actions_total",
                "Actions of these passes, or what a dry run would have done.",
                &["action"],
            ),
            gc_deleted_bytes: counter("kvasir_gc_deleted_bytes_total", "Bytes of deleted chunk objects."),
            gc_objects_met: gauge(
                "kvasir_gc_pass_objects",
                "Chunk objects seen by the current or last pass.",
            ),
            scrub_objects: counters(
                "kvasir_scrub_objects_total",
                "Objects verified against their names by scrubs.",
                &["result"],
            ),
            corrupt_reads: counter(
                "kvasir_corrupt_reads_total",
                "Times that a read found other bytes in the store than were stored.",
            ),
            stored_bytes: gauge(
                "kvasir_stored_bytes",
                "Bytes of chunk objects seen by the last pass of this replica; 0 if it listed only its share of the store.",
            ),
            stored_capacity: gauge(
                "kvasir_stored_capacity_bytes",
                "Limit on the bytes of stored chunk objects; 0: no limit.",
            ),
            gc_last_pass: gauge(
                "kvasir_gc_last_pass_time_seconds",
                "Unix time of the last pass led by this replica; 0: none yet.",
            ),
            gc_interval: gauge(
                "kvasir_gc_interval_seconds",
                "Pause between this replica's passes; 0: it makes none by itself.",
            ),
        };
        let start_time = gauge("kvasir_start_time_seconds", "Unix time of this process's start.");
        start_time.set(unix_seconds());
        let info =
            IntGaugeVec::new(Opts::new("kvasir_build_info", "1, with the version as a label."), &["version"])
                .expect("a constant name");
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let all: Vec<Box<dyn Collector>> = vec![
            Box::new(this.http_requests.clone()),
            Box::new(this.http_seconds.clone()),
            Box::new(this.http_in_flight.clone()),
            Box::new(this.http_received.clone()),
            Box::new(this.http_sent.clone()),
            Box::new(this.connections.clone()),
            Box::new(this.auth_refused.clone()),
            Box::new(this.throttled.clone()),
            Box::new(this.store_requests.clone()),
            Box::new(this.store_seconds.clone()),
            Box::new(this.store_bytes.clone()),
            Box::new(this.store_events.clone()),
            Box::new(this.store_breaker.clone()),
            Box::new(this.conditional_create.clone()),
            Box::new(this.chunks_stored.clone()),
            Box::new(this.chunk_bytes_stored.clone()),
            Box::new(this.upload_memory.clone()),
            Box::new(this.index_rows.clone()),
            Box::new(this.index_replaced.clone()),
            Box::new(this.ready.clone()),
            Box::new(this.journal_entries.clone()),
            Box::new(this.gc_passes.clone()),
            Box::new(this.gc_actions.clone()),
            Box::new(this.gc_deleted_bytes.clone()),
            Box::new(this.gc_objects_met.clone()),
            Box::new(this.scrub_objects.clone()),
            Box::new(this.corrupt_reads.clone()),
            Box::new(this.stored_bytes.clone()),
            Box::new(this.stored_capacity.clone()),
            Box::new(this.gc_last_pass.clone()),
            Box::new(this.gc_interval.clone()),
            Box::new(start_time),
            Box::new(info),
        ];
        for metric in all {
            this.registry.register(metric).expect("names are distinct");
        }
        // An alert on increases misses a series that begins at 1.
        this.scrubbed(&ScrubReport::default(), &ScrubReport::default());
        this
    }

    /// The metrics of the hot tier.
    pub(crate) fn hot(&self) -> &Arc<HotTierMetrics> {
        &self.hot
    }

    /// The metrics of the API.
    pub(crate) fn api(&self) -> &ApiMetrics {
        &self.api
    }

    /// The metrics of the replica's health.
    pub(crate) fn health(&self) -> &HealthMetrics {
        &self.health
    }

    /// Those of the cluster.
    pub(crate) fn cluster(&self) -> &ClusterMetrics {
        &self.cluster
    }

    /// Counts a request until what is returned is dropped.
    pub(crate) fn request_begins(&self) -> RequestInFlight {
        self.http_in_flight.inc();
        RequestInFlight(self.http_in_flight.clone())
    }

    pub(crate) fn request_ends(&self, route: &str, method: &str, status: u16, elapsed: Duration) {
        self.http_requests.with_label_values(&[route, method, &status.to_string()]).inc();
        self.http_seconds.with_label_values(&[route]).observe(elapsed.as_secs_f64());
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.http_received.inc_by(bytes as u64);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.http_sent.inc_by(bytes as u64);
    }

    pub(crate) fn connections(&self, change: i64) {
        self.connections.add(change);
    }

    /// Counts a refused credential. `reason`: that of an [`AuthFailure`](crate::auth::AuthFailure), `role` or `ended`.
    pub(crate) fn auth_refused(&self, reason: &'static str) {
        self.auth_refused.with_label_values(&[reason]).inc();
    }

    pub(crate) fn throttled(&self, limit: &'static str) {
        self.throttled.with_label_values(&[limit]).inc();
    }

    /// Open circuit breakers of the store.
    pub(crate) fn breakers_open(&self) -> u64 {
        u64::try_from(self.store_breaker.get()).unwrap_or_default()
    }

    pub(crate) fn conditional_create(&self, honoured: bool) {
        self.conditional_create.set(honoured.into());
    }

    pub(crate) fn chunk_stored(&self, created: bool, bytes: u64) {
        self.stored("chunk", created, bytes);
    }

    pub(crate) fn object_stored(&self, stored: &kvasir_api::StoredObject) {
        self.stored("object", stored.created, stored.bytes);
    }

    fn stored(&self, kind: &str, created: bool, bytes: u64) {
        let result = if created { "created" } else { "known" };
        self.chunks_stored.with_label_values(&[kind, result]).inc();
        if created {
            self.chunk_bytes_stored.with_label_values(&[kind]).inc_by(bytes);
        }
    }

    pub(crate) fn ready(&self, ready: bool) {
        self.ready.set(ready.into());
    }

    /// Sets the number of parts skipped so far.
    pub(crate) fn journal_skipped(&self, parts: u64) {
        let skipped = self.journal_entries.with_label_values(&["skipped"]);
        skipped.inc_by(parts.saturating_sub(skipped.get()));
    }

    pub(crate) fn journal(&self, direction: &'static str, entries: usize) {
        self.journal_entries.with_label_values(&[direction]).inc_by(entries as u64);
    }

    pub(crate) fn collecting(&self, report: &GcReport) {
        self.gc_objects_met.set(report.objects as i64);
    }

    /// The progress of a scrub since `before`.
    pub(crate) fn scrubbed(&self, before: &ScrubReport, now: &ScrubReport) {
        let wrong = |report: &ScrubReport| report.quarantined + report.misread + report.unread;
        let results = [
            ("sound", now.objects - wrong(now), before.objects - wrong(before)),
            ("quarantined", now.quarantined, before.quarantined),
            ("misread", now.misread, before.misread),
            ("unread", now.unread, before.unread),
        ];
        for (result, now, before) in results {
            self.scrub_objects.with_label_values(&[result]).inc_by(now.saturating_sub(before));
        }
    }

    /// A pass ended, or was stopped before it had seen all objects.
    pub(crate) fn collected(&self, report: &GcReport, was_stopped: bool) {
        if !was_stopped {
            self.gc_passes.inc();
            self.gc_last_pass.set(unix_seconds());
            // What another replica listed since then is newer than this one's last listing.
            let bytes = if report.listed_all { report.bytes } else { 0 };
            self.stored_bytes.set(bytes as i64);
        }
        let actions = [
            ("expired", report.expired),
            ("duplicate", report.duplicates),
            ("contained", report.contained),
            ("evicted", report.evicted),
            ("leftover_deleted", report.leftovers_deleted),
            ("deleted", report.deleted),
            ("tombstone_deleted", report.tombstones_deleted),
            ("spared", report.spared),
            ("context_unreadable", report.contexts_unreadable),
            ("object_unread", report.unread),
            ("batch_deleted", report.batches_deleted),
        ];
        for (action, count) in actions {
            self.gc_actions.with_label_values(&[action]).inc_by(count);
        }
        self.gc_deleted_bytes.inc_by(report.deleted_bytes);
    }

    /// The limit that the collector enforces.
    pub(crate) fn capacity(&self, bytes: Option<u64>) {
        self.stored_capacity.set(i64::try_from(bytes.unwrap_or_default()).unwrap_or(i64::MAX));
    }

    /// The pause between the collector's passes.
    pub(crate) fn gc_interval(&self, interval: Duration) {
        self.gc_interval.set(i64::try_from(interval.as_secs()).unwrap_or(i64::MAX));
    }

    /// Updates the metrics that are polled rather than counted.
    pub(crate) fn refresh(&self, storage: &Storage) {
        self.index_rows.set(storage.index().len() as i64);
        self.index_replaced.set(storage.index().replaced() as i64);
        let upload_memory = storage.ingest().upload_memory().used();
        self.upload_memory.set(i64::try_from(upload_memory).unwrap_or(i64::MAX));
        self.corrupt_reads.inc_by(storage.reads().take_corrupt_reads());
        if let Some(hot) = storage.tier() {
            self.hot.refresh(hot);
        }
    }

    /// All of them.
    pub(crate) fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }

    /// All of them in Prometheus' text format.
    pub(crate) fn render(&self) -> Vec<u8> {
        let mut text = Vec::new();
        // Writing to memory does not fail, and a broken page is better than a crashed process.
        let _ = TextEncoder::new().encode(&self.gather(), &mut text);
        text
    }
}

impl StoreObserver for Metrics {
    fn request(&self, op: StoreOp, outcome: RequestOutcome, bytes: u64, elapsed: Duration) {
        self.store_requests.with_label_values(&[op.as_str(), outcome.as_str()]).inc();
        self.store_seconds.with_label_values(&[op.as_str()]).observe(elapsed.as_secs_f64());
        self.store_bytes.with_label_values(&[op.as_str()]).inc_by(bytes);
    }

    fn event(&self, event: StoreEvent) {
        self.store_events.with_label_values(&[event.as_str()]).inc();
        match event {
            StoreEvent::BreakerOpened => self.store_breaker.inc(),
            StoreEvent::BreakerClosed => self.store_breaker.dec(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
