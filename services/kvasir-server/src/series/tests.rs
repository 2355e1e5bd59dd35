use kvasir_store::observe::{RequestOutcome, StoreObserver, StoreOp};

use super::*;
use crate::metrics::Metrics;

/// The series of that name and label value, over all points.
fn values(log: &SeriesLog, name: &str, label: &str) -> Option<Vec<Option<f64>>> {
    let (_, series) = log.after(0);
    let found = series.into_iter().find(|series| {
        series.name == name && (label.is_empty() || series.labels.values().any(|value| value == label))
    });
    found.map(|series| series.values)
}

/// A turn that took ten seconds.
fn turn(log: &SeriesLog, metrics: &Metrics) {
    log.log.lock().read_at -= Duration::from_secs(10);
    log.take(&metrics.gather());
}

fn rounded(values: Option<Vec<Option<f64>>>) -> Option<Vec<Option<f64>>> {
    // A turn takes a little longer than ten seconds here.
    let round = |value: f64| (value * 10.0).round() / 10.0;
    values.map(|values| values.into_iter().map(|value| value.map(round)).collect())
}

#[test]
fn counters_are_rates_from_the_first_point_on() {
    let (log, metrics) = (SeriesLog::new(), Metrics::new());
    for _ in 0..50 {
        metrics.request_ends(kvasir_api::routes::LOOKUP, "POST", 200, Duration::ZERO);
    }
    turn(&log, &metrics);
    metrics.request_ends(kvasir_api::routes::CHUNK, "PUT", 503, Duration::ZERO);
    metrics.request_ends(kvasir_api::routes::LIVEZ, "GET", 200, Duration::ZERO);
    turn(&log, &metrics);
    assert_eq!(rounded(values(&log, "requests", "lookup")), Some(vec![Some(5.0), Some(0.0)]));
    assert_eq!(rounded(values(&log, "requests", "write")), Some(vec![None, Some(0.1)]));
    assert_eq!(rounded(values(&log, "errors", "5xx")), Some(vec![None, Some(0.1)]));
    assert_eq!(values(&log, "requests", "other"), None, "a probe is no request");
    assert_eq!(values(&log, "hot_bytes", "cpu"), None, "there is no hot tier");
    assert_eq!(values(&log, "breaker_open", ""), Some(vec![Some(0.0); 2]));
}

#[test]
fn a_quantile_is_of_what_came_in_the_step() {
    let (log, metrics) = (SeriesLog::new(), Metrics::new());
    let get = |ms| metrics.request(StoreOp::Get, RequestOutcome::Ok, 1, Duration::from_millis(ms));
    (0..100).for_each(|_| get(4));
    turn(&log, &metrics);
    turn(&log, &metrics);
    (0..99).for_each(|_| get(4));
    (0..3).for_each(|_| get(200_000));
    turn(&log, &metrics);
    let median = values(&log, "store_seconds", "0.5").expect("it is there");
    let is_within = |value: Option<f64>| value.is_some_and(|value| (0.0025..=0.005).contains(&value));
    assert!(is_within(median[0]) && is_within(median[2]), "{median:?}");
    assert_eq!(median[1], None, "nothing was asked of the store");
    let p99 = values(&log, "store_seconds", "0.99").expect("it is there");
    assert_eq!(p99[2], Some(120.0), "the last bound: it took at least that long");
}

#[test]
fn the_log_is_bounded_and_read_from_any_time_on() {
    let (log, metrics) = (SeriesLog::new(), Metrics::new());
    for at_ms in 1..=2 * limits::SERIES_POINTS as u64 {
        log.take(&metrics.gather());
        log.log.lock().points.back_mut().expect("one").at_ms = at_ms;
    }
    let (times, series) = log.after(0);
    assert_eq!((times.len(), times[0]), (limits::SERIES_POINTS, limits::SERIES_POINTS as u64 + 1));
    assert!(series.iter().all(|series| series.values.len() == times.len()));
    let (times, series) = log.after(2 * limits::SERIES_POINTS as u64 - 3);
    assert_eq!(times.len(), 3);
    assert!(series.iter().all(|series| series.values.len() == 3));
    assert!(log.after(u64::MAX).0.is_empty());
}

/// A source whose metric is renamed would be silent.
#[test]
fn every_source_names_a_metric_that_is_documented() {
    let page = include_str!("../../docs/metrics.md");
    for source in SOURCES {
        assert!(page.contains(&format!("| `{}` |", source.metric)), "{source:?}");
    }
}
