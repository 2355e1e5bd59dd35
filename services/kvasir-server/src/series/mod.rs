//! The last hour of this replica in memory: several of its metrics, sampled every few seconds.
//!
//! Nothing is counted twice: samples read the same metrics as Prometheus. Counters become rates.

mod sources;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use kvasir_api::Series;
use parking_lot::Mutex;
use prometheus::proto::MetricFamily;

use self::sources::{Kind, SOURCES, Source};
use crate::{limits, wall_clock::unix_ms};

/// The series of this replica since its start.
#[derive(Debug)]
pub(crate) struct SeriesLog {
    started_at_ms: u64,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    read_at: Instant,
    /// The sources' values at the last sample; `None` for sources that the replica does not have.
    readings: Vec<Option<Reading>>,
    points: VecDeque<Point>,
}

/// The values of all sources over one step.
#[derive(Debug)]
struct Point {
    at_ms: u64,
    values: Box<[Option<f64>]>,
}

/// The value of a source at one time.
#[derive(Debug, Clone, PartialEq)]
enum Reading {
    Number(f64),
    /// Upper bounds of a histogram's buckets, each with its cumulative count.
    Buckets(Vec<(f64, u64)>),
}

impl SeriesLog {
    pub(crate) fn new() -> Self {
        // All counters are zero at start, so the first point has rates as well.
        let readings = vec![None; SOURCES.len()];
        let log = Log { read_at: Instant::now(), readings, points: VecDeque::new() };
        Self { started_at_ms: unix_ms(), log: Mutex::new(log) }
    }

    /// When this replica started, in milliseconds since 1970.
    pub(crate) const fn started_at_ms(&self) -> u64 {
        self.started_at_ms
    }

    /// Takes a sample of the metrics, and drops the oldest point.
    pub(crate) fn take(&self, metrics: &[MetricFamily]) {
        let readings: Vec<_> = SOURCES.iter().map(|source| source.read(metrics)).collect();
        let (at_ms, now) = (unix_ms(), Instant::now());
        let mut log = self.log.lock();
        let elapsed = now.duration_since(log.read_at);
        let values = SOURCES.iter().zip(&readings).zip(&log.readings);
        let values =
            values.map(|((source, now), before)| source.value(now.as_ref()?, before.as_ref(), elapsed));
        let point = Point { at_ms, values: values.collect() };
        log.points.push_back(point);
        while log.points.len() > limits::SERIES_POINTS {
            log.points.pop_front();
        }
        (log.readings, log.read_at) = (readings, now);
    }

    /// The times of the points after `after_ms`, and the series over them.
    pub(crate) fn after(&self, after_ms: u64) -> (Vec<u64>, Vec<Series>) {
        let log = self.log.lock();
        let points: Vec<_> = log.points.iter().filter(|point| point.at_ms > after_ms).collect();
        let there = SOURCES.iter().enumerate().filter(|(index, _)| log.readings[*index].is_some());
        let series = there.map(|(index, source)| {
            let values = points.iter().map(|point| point.values[index]).collect();
            source.series(values)
        });
        (points.iter().map(|point| point.at_ms).collect(), series.collect())
    }
}

impl Source {
    /// The value over a step that began at `before` and lasted `elapsed`.
    fn value(&self, now: &Reading, before: Option<&Reading>, elapsed: Duration) -> Option<f64> {
        match (&self.kind, now) {
            (Kind::Level, Reading::Number(now)) => now.is_finite().then_some(*now),
            (Kind::Rate, Reading::Number(now)) => {
                let before = before.map_or(0.0, |before| before.number().unwrap_or_default());
                let seconds = elapsed.as_secs_f64();
                (seconds > 0.0).then(|| (now - before).max(0.0) / seconds)
            }
            (Kind::Quantile(quantile), Reading::Buckets(now)) => {
                quantile_between(before.and_then(Reading::buckets).unwrap_or_default(), now, *quantile)
            }
            _ => None,
        }
    }
}

impl Reading {
    const fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Buckets(_) => None,
        }
    }

    fn buckets(&self) -> Option<&[(f64, u64)]> {
        match self {
            Self::Buckets(buckets) => Some(buckets),
            Self::Number(_) => None,
        }
    }
}

/// A quantile of a histogram's new observations between two samples, assuming an even spread within a bucket;
/// `None` if there are none.
fn quantile_between(before: &[(f64, u64)], now: &[(f64, u64)], quantile: f64) -> Option<f64> {
    let came = |index: usize| -> Option<(f64, u64)> {
        let (bound, count) = now.get(index)?;
        Some((*bound, count.saturating_sub(before.get(index).map_or(0, |(_, count)| *count))))
    };
    let all = came(now.len().checked_sub(1)?)?.1;
    let rank = quantile * all as f64;
    let (mut below, mut lower) = (0, 0.0);
    for (bound, count) in (0..now.len()).filter_map(came) {
        if all > 0 && count as f64 >= rank {
            // The last bucket has no upper bound: its observations are at least its lower bound.
            let share = (rank - below as f64) / (count - below).max(1) as f64;
            return Some(if bound.is_finite() { lower + (bound - lower) * share } else { lower });
        }
        (below, lower) = (count, bound);
    }
    None
}

#[cfg(test)]
mod tests;
