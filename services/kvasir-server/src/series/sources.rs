//! The metrics kept as series, and how each is read.

use kvasir_api::{Series, routes};
use prometheus::proto::{LabelPair, Metric, MetricFamily};

use super::Reading;

/// How a metric becomes a series.
#[derive(Debug)]
pub(super) enum Kind {
    /// A counter: its increase per second.
    Rate,
    /// A gauge.
    Level,
    /// A histogram: this quantile of the step's observations.
    Quantile(f64),
}

/// The source of one series.
#[derive(Debug)]
pub(super) struct Source {
    name: &'static str,
    labels: &'static [(&'static str, &'static str)],
    unit: &'static str,
    pub(super) kind: Kind,
    pub(super) metric: &'static str,
    /// Selects the metric's lines by their labels.
    counts: fn(&Labels<'_>) -> bool,
}

/// Labels of a metric's line.
pub(super) struct Labels<'a>(&'a [LabelPair]);

impl Labels<'_> {
    fn get(&self, name: &str) -> &str {
        self.0.iter().find(|label| label.name() == name).map_or("", LabelPair::value)
    }
}

/// Class of a request, as pages group them; `None` for probes and for the pages themselves.
fn class(labels: &Labels<'_>) -> Option<&'static str> {
    let reads = matches!(labels.get("method"), "GET" | "HEAD");
    Some(match labels.get("route") {
        routes::LIVEZ | routes::READYZ | routes::METRICS | routes::SERIES => return None,
        route if route.starts_with(routes::CONSOLE) || route.starts_with(routes::DOCS) => return None,
        routes::LOOKUP | routes::OBJECTS_LOOKUP => "lookup",
        routes::OBJECTS_READ | routes::CHUNK_OBJECT_URL => "read",
        routes::CHUNK | routes::CHUNK_OBJECT | routes::OBJECT if reads => "read",
        routes::CHUNK | routes::OBJECT if labels.get("method") == "PUT" => "write",
        routes::OBJECTS_WRITE | routes::UPLOADS | routes::UPLOAD_COMMIT => "write",
        "s3:GetObject" | "s3:HeadObject" => "read",
        "s3:PutObject" | "s3:UploadPart" | "s3:CompleteMultipartUpload" => "write",
        _ => "other",
    })
}

macro_rules! sources {
    ($($name:literal {$($label:literal: $value:literal),*} $unit:literal $kind:expr, $metric:literal, $counts:expr;)*) => {
        &[$(Source {
            name: $name,
            labels: &[$(($label, $value)),*],
            unit: $unit,
            kind: $kind,
            metric: $metric,
            counts: $counts,
        }),*]
    };
}

const RATE: Kind = Kind::Rate;
const LEVEL: Kind = Kind::Level;
const MEDIAN: Kind = Kind::Quantile(0.5);
const P99: Kind = Kind::Quantile(0.99);

/// All series. docs/api.md describes them.
pub(super) const SOURCES: &[Source] = sources! {
    "requests" {"class": "lookup"} "per_second" RATE, "kvasir_http_requests_total", |l| class(l) == Some("lookup");
    "requests" {"class": "read"} "per_second" RATE, "kvasir_http_requests_total", |l| class(l) == Some("read");
    "requests" {"class": "write"} "per_second" RATE, "kvasir_http_requests_total", |l| class(l) == Some("write");
    "requests" {"class": "other"} "per_second" RATE, "kvasir_http_requests_total", |l| class(l) == Some("other");
    "errors" {"status": "4xx"} "per_second" RATE, "kvasir_http_requests_total", |l| l.get("status").starts_with('4');
    "errors" {"status": "5xx"} "per_second" RATE, "kvasir_http_requests_total", |l| l.get("status").starts_with('5');
    "lookup_tokens" {"result": "asked"} "per_second" RATE, "kvasir_lookup_tokens_total", |l| l.get("result") == "asked";
    "lookup_tokens" {"result": "matched"} "per_second" RATE, "kvasir_lookup_tokens_total", |l| l.get("result") == "matched";
    "loads" {"slo": "met"} "per_second" RATE, "kvasir_loads_total", |l| l.get("slo") == "met";
    "loads" {"slo": "missed"} "per_second" RATE, "kvasir_loads_total", |l| l.get("slo") == "missed";
    "load_bytes" {"level": "0"} "bytes_per_second" RATE, "kvasir_load_bytes_total", |l| l.get("level") == "0";
    "load_bytes" {"level": "1"} "bytes_per_second" RATE, "kvasir_load_bytes_total", |l| l.get("level") == "1";
    "load_bytes" {"level": "2"} "bytes_per_second" RATE, "kvasir_load_bytes_total", |l| l.get("level") == "2";
    "load_bytes" {"level": "3"} "bytes_per_second" RATE, "kvasir_load_bytes_total", |l| l.get("level") == "3";
    "load_bytes" {"level": "4"} "bytes_per_second" RATE, "kvasir_load_bytes_total", |l| l.get("level") == "4";
    "load_bytes" {"level": "5"} "bytes_per_second" RATE, "kvasir_load_bytes_total", |l| l.get("level") == "5";
    "load_bytes" {"level": "6"} "bytes_per_second" RATE, "kvasir_load_bytes_total", |l| l.get("level") == "6";
    "load_bytes" {"level": "7"} "bytes_per_second" RATE, "kvasir_load_bytes_total", |l| l.get("level") == "7";
    "served_bytes" {"medium": "cpu"} "bytes_per_second" RATE, "kvasir_hot_served_bytes_total", |l| l.get("medium") == "cpu";
    "served_bytes" {"medium": "disk"} "bytes_per_second" RATE, "kvasir_hot_served_bytes_total", |l| l.get("medium") == "disk";
    "served_bytes" {"medium": "object"} "bytes_per_second" RATE, "kvasir_hot_served_bytes_total", |l| l.get("medium") == "object";
    "sent_bytes" {} "bytes_per_second" RATE, "kvasir_http_sent_bytes_total", |_| true;
    "received_bytes" {} "bytes_per_second" RATE, "kvasir_http_received_bytes_total", |_| true;
    "store_requests" {"outcome": "ok"} "per_second" RATE, "kvasir_store_requests_total", |l| l.get("outcome") != "error";
    "store_requests" {"outcome": "failed"} "per_second" RATE, "kvasir_store_requests_total", |l| l.get("outcome") == "error";
    "store_seconds" {"op": "get", "quantile": "0.5"} "seconds" MEDIAN, "kvasir_store_request_duration_seconds", |l| l.get("op") == "get";
    "store_seconds" {"op": "get", "quantile": "0.99"} "seconds" P99, "kvasir_store_request_duration_seconds", |l| l.get("op") == "get";
    "store_seconds" {"op": "put", "quantile": "0.5"} "seconds" MEDIAN, "kvasir_store_request_duration_seconds", |l| l.get("op") == "put";
    "store_seconds" {"op": "put", "quantile": "0.99"} "seconds" P99, "kvasir_store_request_duration_seconds", |l| l.get("op") == "put";
    "breaker_open" {} "count" LEVEL, "kvasir_store_breaker_open", |_| true;
    "connections" {} "count" LEVEL, "kvasir_http_connections", |_| true;
    "hot_bytes" {"medium": "cpu"} "bytes" LEVEL, "kvasir_hot_bytes", |l| l.get("medium") == "cpu";
    "hot_bytes" {"medium": "disk"} "bytes" LEVEL, "kvasir_hot_bytes", |l| l.get("medium") == "disk";
    "hot_capacity_bytes" {"medium": "cpu"} "bytes" LEVEL, "kvasir_hot_capacity_bytes", |l| l.get("medium") == "cpu";
    "hot_capacity_bytes" {"medium": "disk"} "bytes" LEVEL, "kvasir_hot_capacity_bytes", |l| l.get("medium") == "disk";
    "estimated_hit_ratio" {"memory": "0.5"} "ratio" LEVEL, "kvasir_hot_estimated_hit_ratio", |l| l.get("memory") == "0.5";
    "estimated_hit_ratio" {"memory": "1"} "ratio" LEVEL, "kvasir_hot_estimated_hit_ratio", |l| l.get("memory") == "1";
    "estimated_hit_ratio" {"memory": "2"} "ratio" LEVEL, "kvasir_hot_estimated_hit_ratio", |l| l.get("memory") == "2";
    "estimated_hit_ratio" {"memory": "4"} "ratio" LEVEL, "kvasir_hot_estimated_hit_ratio", |l| l.get("memory") == "4";
};

impl Source {
    /// The metric's value; `None` if it has none.
    pub(super) fn read(&self, metrics: &[MetricFamily]) -> Option<Reading> {
        let family = metrics.iter().find(|family| family.name() == self.metric)?;
        let lines = family.get_metric().iter().filter(|line| (self.counts)(&Labels(line.get_label())));
        match self.kind {
            Kind::Rate => {
                lines.map(|line| line.get_counter().get_value()).reduce(|a, b| a + b).map(Reading::Number)
            }
            Kind::Level => {
                lines.map(|line| line.get_gauge().get_value()).reduce(|a, b| a + b).map(Reading::Number)
            }
            Kind::Quantile(_) => lines.map(buckets).next().map(Reading::Buckets),
        }
    }

    /// The series with these values.
    pub(super) fn series(&self, values: Vec<Option<f64>>) -> Series {
        let labels = self.labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Series { name: self.name.to_owned(), labels: labels.collect(), unit: self.unit.to_owned(), values }
    }
}

/// A histogram's buckets, plus one without an upper bound.
fn buckets(line: &Metric) -> Vec<(f64, u64)> {
    let histogram = line.get_histogram();
    let bounded =
        histogram.get_bucket().iter().map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
    let all = (f64::INFINITY, histogram.get_sample_count());
    bounded.filter(|(bound, _)| bound.is_finite()).chain([all]).collect()
}
