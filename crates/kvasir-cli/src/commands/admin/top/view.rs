//! The view of `kvasir admin top`: rates between two samples, and totals.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use super::sample::Sample;
use crate::output::{bytes, columns};

/// One view.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct View {
    /// Whether the replica is ready for traffic.
    ready: bool,
    /// Open connections.
    connections: u64,
    /// Requests per second.
    requests_per_s: f64,
    /// Requests per second that failed with an error of the service or the store.
    errors_per_s: f64,
    /// Requests per second, by route.
    routes: BTreeMap<String, f64>,
    /// Tokens looked up per second.
    asked_tokens_per_s: f64,
    /// Tokens matched per second.
    hit_tokens_per_s: f64,
    /// Share of all tokens ever looked up that matched.
    hit_ratio: Option<f64>,
    /// Body bytes sent per second.
    sent_bytes_per_s: f64,
    /// Body bytes received per second.
    received_bytes_per_s: f64,
    /// Bytes served since start, by the medium that held them: `cpu`, `disk`, `object`.
    served_bytes_by_medium: BTreeMap<String, f64>,
    /// Estimated hit ratio, by bytes, of recent requests if memory were this many times its present size.
    estimated_hit_ratio_by_memory: BTreeMap<String, f64>,
    /// Bytes that clients loaded, by level, as they report.
    loaded_bytes_by_level: BTreeMap<String, f64>,
    /// Of these, bytes read directly from the store.
    loaded_direct_bytes: f64,
    /// Loads that clients reported.
    loads: f64,
    /// Share of them that met their SLO.
    slo_attainment: Option<f64>,
    /// Chunk objects in the hot index.
    index_rows: f64,
}

impl View {
    /// Builds a view from two samples that were taken `elapsed` apart.
    pub(super) fn between(before: &Sample, now: &Sample, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64().max(1e-3);
        // A counter that fell means that the service restarted in between.
        let rate = |name: &str, labels: &[(&str, &str)]| {
            (now.sum(name, labels) - before.sum(name, labels)).max(0.0) / seconds
        };
        let requests = "kvasir_http_requests_total";
        let earlier = before.by(requests, "route");
        let routes = now.by(requests, "route").into_iter().filter_map(|(route, count)| {
            let rate = (count - earlier.get(&route).unwrap_or(&0.0)).max(0.0) / seconds;
            (rate > 0.0).then_some((route, rate))
        });
        let (asked, matched) = (("result", "asked"), ("result", "matched"));
        let tokens = "kvasir_lookup_tokens_total";
        let loads = now.by("kvasir_loads_total", "slo");
        let all: f64 = loads.values().sum();
        let share = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
        let errors = ["500", "502", "503"].map(|status| rate(requests, &[("status", status)]));
        let mut served = now.by("kvasir_hot_served_bytes_total", "medium");
        if served.is_empty() {
            // Without a hot tier, all bytes come from the store.
            served.insert("object".to_owned(), now.sum("kvasir_http_sent_bytes_total", &[]));
        }
        let mut estimated = now.by("kvasir_hot_estimated_hit_ratio", "memory");
        // Before the first read there is no data for an estimate.
        estimated.retain(|_, ratio| ratio.is_finite());
        Self {
            ready: now.sum("kvasir_ready", &[]) > 0.0,
            connections: now.sum("kvasir_http_connections", &[]) as u64,
            requests_per_s: rate(requests, &[]),
            errors_per_s: errors.iter().sum(),
            routes: routes.collect(),
            asked_tokens_per_s: rate(tokens, &[asked]),
            hit_tokens_per_s: rate(tokens, &[matched]),
            hit_ratio: share(now.sum(tokens, &[matched]), now.sum(tokens, &[asked])),
            sent_bytes_per_s: rate("kvasir_http_sent_bytes_total", &[]),
            received_bytes_per_s: rate("kvasir_http_received_bytes_total", &[]),
            served_bytes_by_medium: served,
            estimated_hit_ratio_by_memory: estimated,
            loaded_bytes_by_level: now.by("kvasir_load_bytes_total", "level"),
            loaded_direct_bytes: now.sum("kvasir_load_direct_bytes_total", &[]),
            loads: all,
            slo_attainment: share(loads.get("met").copied().unwrap_or(0.0), all),
            index_rows: now.sum("kvasir_index_rows", &[]),
        }
    }

    /// As a screen of text.
    pub(super) fn text(&self, url: &str) -> String {
        let percent = |share: Option<f64>| share.map_or("-".to_owned(), |s| format!("{:.1} %", s * 100.0));
        let size = |count: f64| bytes(count.max(0.0) as u64);
        let ready = if self.ready { "ready" } else { "not ready" };
        let mut rows = vec![
            vec![format!("kvasir {url}"), ready.to_owned(), format!("{} connections", self.connections)],
            vec![
                "requests/s".to_owned(),
                format!("{:.1}", self.requests_per_s),
                format!("{:.1} errors/s", self.errors_per_s),
            ],
            vec![
                "tokens/s".to_owned(),
                format!("{:.0} asked", self.asked_tokens_per_s),
                format!("{:.0} hit ({} of all)", self.hit_tokens_per_s, percent(self.hit_ratio)),
            ],
            vec![
                "bytes/s".to_owned(),
                format!("{} out", size(self.sent_bytes_per_s)),
                format!("{} in", size(self.received_bytes_per_s)),
            ],
            vec![
                "SLO".to_owned(),
                format!("{} met", percent(self.slo_attainment)),
                format!("of {:.0} loads reported", self.loads),
            ],
            vec!["index".to_owned(), format!("{:.0} objects", self.index_rows), String::new()],
        ];
        let section = |rows: &mut Vec<Vec<String>>, title: &str, parts: &BTreeMap<String, f64>| {
            let all: f64 = parts.values().sum();
            for (name, count) in parts {
                let share = if all > 0.0 { percent(Some(count / all)) } else { "-".to_owned() };
                rows.push(vec![format!("{title} {name}"), size(*count), share]);
            }
        };
        section(&mut rows, "served from", &self.served_bytes_by_medium);
        for (memory, ratio) in &self.estimated_hit_ratio_by_memory {
            rows.push(vec![
                format!("hot memory x {memory}"),
                percent(Some(*ratio)),
                "would be hits".to_owned(),
            ]);
        }
        section(&mut rows, "loaded level", &self.loaded_bytes_by_level);
        for (route, rate) in &self.routes {
            rows.push(vec![format!("  {route}"), format!("{rate:.1}/s"), String::new()]);
        }
        columns(&rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_and_ratios_are_of_all() {
        let before = Sample::parse("kvasir_http_requests_total{route=\"/v1/lookup\",status=\"200\"} 10\n");
        let now = Sample::parse(
            "kvasir_http_requests_total{route=\"/v1/lookup\",status=\"200\"} 30\n\
             kvasir_lookup_tokens_total{result=\"asked\"} 400\nkvasir_lookup_tokens_total{result=\"matched\"} 300\n\
             kvasir_loads_total{slo=\"met\"} 9\nkvasir_loads_total{slo=\"missed\"} 1\nkvasir_ready 1\n\
             kvasir_hot_estimated_hit_ratio{memory=\"2\"} 0.625\nkvasir_hot_estimated_hit_ratio{memory=\"4\"} NaN\n\
             kvasir_load_bytes_total{level=\"0\"} 75\nkvasir_load_bytes_total{level=\"1\"} 25\n",
        );
        let view = View::between(&before, &now, Duration::from_secs(2));
        assert_eq!((view.requests_per_s, view.hit_ratio, view.slo_attainment), (10.0, Some(0.75), Some(0.9)));
        let text = view.text("http://x/");
        for part in [
            "10.0",
            "75.0 %",
            "90.0 % met",
            "loaded level 0",
            "hot memory x 2",
            "62.5 %",
            "/v1/lookup",
            "ready",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains("hot memory x 4"), "{text}");
        let restarted = View::between(&now, &before, Duration::from_secs(1));
        assert_eq!(restarted.requests_per_s, 0.0);
    }
}
