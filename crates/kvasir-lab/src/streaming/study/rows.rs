//! The results of a study.

use std::time::Duration;

use serde::Serialize;

use crate::streaming::{Outcome, Sharing};

/// A set counts if `cachegen` violates the SLO more often than this.
const COUNTED_VIOLATIONS: f64 = 0.02;

/// The document that `--json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StreamReport {
    /// One row per policy, set, ladder and SLO.
    pub rows: Vec<StreamRow>,
    /// `progressive` against `cachegen` per ladder.
    pub summary: Vec<Summary>,
}

/// Means over the cells (sets and SLOs) of one ladder in which `cachegen` violates more than 2 %.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The ladder.
    pub ladder: String,
    /// The policy.
    pub policy: String,
    /// Cells that count.
    pub cells: usize,
    /// Requests in them.
    pub requests: usize,
    /// Mean share of requests that missed an SLO that the oracle meets.
    pub avoidable_violation_rate: f64,
    /// 95 % confidence interval of that share.
    pub avoidable_interval: [f64; 2],
    /// The largest share of a cell.
    pub avoidable_violation_rate_max: f64,
    /// In how many cells it is above `cachegen`'s.
    pub worse_than_cachegen: usize,
    /// Mean quality.
    pub quality: f64,
}

impl StreamReport {
    /// Rows and the figures derived from them.
    pub fn new(rows: Vec<StreamRow>) -> Self {
        let reference = |row: &StreamRow| rows.iter().find(|r| r.policy == "cachegen" && r.is_beside(row));
        let counted =
            |row: &&StreamRow| reference(row).is_some_and(|r| r.violation_rate > COUNTED_VIOLATIONS);
        let mut names: Vec<(&str, &str)> = Vec::new();
        for row in &rows {
            if !names.contains(&(&row.ladder, &row.policy)) {
                names.push((&row.ladder, &row.policy));
            }
        }
        let summary = names.into_iter().filter_map(|(ladder, policy)| {
            let own: Vec<&StreamRow> =
                rows.iter().filter(|r| r.ladder == ladder && r.policy == policy).filter(counted).collect();
            let mean = |value: fn(&StreamRow) -> f64| {
                own.iter().map(|row| value(row)).sum::<f64>() / own.len().max(1) as f64
            };
            let worse = |row: &&&StreamRow| {
                reference(row).is_some_and(|r| row.avoidable_violation_rate > r.avoidable_violation_rate)
            };
            let requests = own.iter().map(|row| row.requests).sum();
            let avoidable = own.iter().map(|row| row.avoidable()).sum();
            (!own.is_empty()).then(|| Summary {
                ladder: ladder.to_owned(),
                policy: policy.to_owned(),
                cells: own.len(),
                requests,
                avoidable_interval: interval(avoidable, requests),
                avoidable_violation_rate: mean(|row| row.avoidable_violation_rate),
                avoidable_violation_rate_max: own
                    .iter()
                    .map(|r| r.avoidable_violation_rate)
                    .fold(0.0, f64::max),
                worse_than_cachegen: own.iter().filter(worse).count(),
                quality: mean(|row| row.quality),
            })
        });
        let summary = summary.collect();
        Self { rows, summary }
    }
}

/// One policy on one set of links.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StreamRow {
    /// The policy.
    pub policy: String,
    /// The set of links.
    pub set: String,
    /// The size ladder (the `int8` policy has its own sizes in any).
    pub ladder: String,
    /// How the requests of a case share the link ([`Sharing::name`]).
    pub sharing: &'static str,
    /// The SLO in milliseconds.
    pub slo_ms: f64,
    /// Requests run.
    pub requests: usize,
    /// Share that missed the SLO.
    pub violation_rate: f64,
    /// Share that missed it although the oracle meets it.
    pub avoidable_violation_rate: f64,
    /// 95 % confidence interval of that share.
    pub avoidable_interval: [f64; 2],
    /// Median TTFT in milliseconds.
    pub ttft_ms_p50: f64,
    /// 95th percentile of the TTFT in milliseconds.
    pub ttft_ms_p95: f64,
    /// The longest TTFT in milliseconds.
    pub ttft_ms_max: f64,
    /// Mean over requests of the token mean of 1 − loss.
    pub quality: f64,
    /// Mean bytes on the wire per request.
    pub bytes: f64,
}

/// Wilson's 95 % interval of the share `count` / `of`.
fn interval(count: usize, of: usize) -> [f64; 2] {
    const Z: f64 = 1.96;
    let (n, p) = (of.max(1) as f64, count as f64 / of.max(1) as f64);
    let middle = p + Z * Z / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    [middle - half, middle + half].map(|share| (share / (1.0 + Z * Z / n)).clamp(0.0, 1.0))
}

impl StreamRow {
    /// Requests that missed an SLO that the oracle meets.
    fn avoidable(&self) -> usize {
        (self.avoidable_violation_rate * self.requests as f64).round() as usize
    }

    fn is_beside(&self, other: &Self) -> bool {
        self.set == other.set && self.ladder == other.ladder && self.slo_ms == other.slo_ms
    }

    pub(super) fn of(
        policy: &str,
        set: &str,
        ladder: &str,
        sharing: Sharing,
        slo: Duration,
        outcomes: &[Outcome],
        possible: &[bool],
    ) -> Self {
        let count = outcomes.len().max(1) as f64;
        let mut ttfts: Vec<f64> = outcomes.iter().map(|o| o.ttft.as_secs_f64() * 1e3).collect();
        ttfts.sort_by(f64::total_cmp);
        let quantile = |q: f64| {
            let rank = (q * ttfts.len() as f64).ceil() as usize;
            ttfts.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        let missed = outcomes.iter().filter(|o| !o.met).count();
        let avoidable = outcomes.iter().zip(possible).filter(|(o, possible)| !o.met && **possible).count();
        Self {
            policy: policy.to_owned(),
            set: set.to_owned(),
            ladder: ladder.to_owned(),
            sharing: sharing.name(),
            slo_ms: slo.as_secs_f64() * 1e3,
            requests: outcomes.len(),
            violation_rate: missed as f64 / count,
            avoidable_violation_rate: avoidable as f64 / count,
            avoidable_interval: interval(avoidable, outcomes.len()),
            ttft_ms_p50: quantile(0.5),
            ttft_ms_p95: quantile(0.95),
            ttft_ms_max: quantile(1.0),
            quality: outcomes.iter().map(|o| o.quality).sum::<f64>() / count,
            bytes: outcomes.iter().map(|o| o.bytes as f64).sum::<f64>() / count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_books() {
        // Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20.
        for (count, of, low, high) in
            [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)]
        {
            let found = interval(count, of);
            assert!((found[0] - low).abs() < 1e-4 && (found[1] - high).abs() < 1e-4, "{found:?}");
        }
    }
}
