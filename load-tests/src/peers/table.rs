//! The result of a comparison.

use std::collections::{BTreeMap, BTreeSet};

use kvasir_plot::{Bar, Bars, Page, number};
use serde::{Deserialize, Serialize};

use crate::{process::usage::Machine, report, speed::stats::median};

/// One measurement of a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PeerMeasurement {
    pub(crate) gb_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    #[serde(deserialize_with = "report::finite_or_nan")]
    pub(crate) cpu_s_per_gb: f64,
    pub(crate) resident_mib: f64,
    pub(crate) requests: u64,
}

/// Rounds of every server, in order.
pub(super) type Rounds = Vec<Vec<PeerMeasurement>>;

/// One server at one size: medians over the rounds.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct PeerResult {
    server: String,
    operation: String,
    megabytes: usize,
    #[serde(deserialize_with = "report::finite_or_nan")]
    gb_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// CPU seconds of the server's processes, children included, per 10^9 bytes served.
    #[serde(deserialize_with = "report::finite_or_nan")]
    cpu_s_per_gb: f64,
    /// The inverse: the rate that one core of the server could serve.
    #[serde(deserialize_with = "report::finite_or_nan")]
    gb_per_cpu_s: f64,
    resident_mib: f64,
    rounds: Vec<PeerMeasurement>,
}

/// One server compared with another: medians of the rounds' quotients.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Quotient {
    of: String,
    to: String,
    operation: String,
    megabytes: usize,
    #[serde(deserialize_with = "report::finite_or_nan")]
    gb_per_cpu_s: f64,
    #[serde(deserialize_with = "report::finite_or_nan")]
    gb_per_s: f64,
    /// In bytes per CPU second.
    wanted: Option<f64>,
    held: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Comparison {
    what: String,
    machine: Machine,
    seed: u64,
    connections: usize,
    seconds: f64,
    rows: Vec<PeerResult>,
    quotients: Vec<Quotient>,
    skipped: BTreeMap<String, String>,
}

/// The servers that are compared, and what is wanted of the first one's reads relative to the second's, in bytes per CPU second. nginx
/// reads from the page cache, as the service does from its hot disk; its rounds of reads from memory are of two kinds.
const PAIRS: [(&str, &str, Option<f64>); 7] = [
    ("kvasir", "nginx", None),
    ("kvasir", "minio", None),
    ("kvasir", "redis", Some(1.0)),
    ("kvasir", "lmcache", Some(1.0)),
    ("kvasir", "lmcache over minio", None),
    ("kvasir from disk", "nginx", Some(0.9)),
    ("kvasir over TLS", "nginx over TLS", Some(1.0)),
];

fn row(server: &str, operation: &str, megabytes: usize, rounds: Vec<PeerMeasurement>) -> PeerResult {
    let of = |value: fn(&PeerMeasurement) -> f64| median(&rounds.iter().map(value).collect::<Vec<_>>());
    PeerResult {
        server: server.to_owned(),
        operation: operation.to_owned(),
        megabytes,
        gb_per_s: of(|m| m.gb_per_s),
        p50_ms: of(|m| m.p50_ms),
        p99_ms: of(|m| m.p99_ms),
        cpu_s_per_gb: of(|m| m.cpu_s_per_gb),
        gb_per_cpu_s: of(|m| m.cpu_s_per_gb.recip()),
        resident_mib: of(|m| m.resident_mib),
        rounds,
    }
}

fn quotient(of: &PeerResult, to: &PeerResult, wanted: Option<f64>) -> Quotient {
    let over_pairs = |value: fn((&PeerMeasurement, &PeerMeasurement)) -> f64| {
        median(&of.rounds.iter().zip(&to.rounds).map(value).collect::<Vec<_>>())
    };
    let gb_per_cpu_s = over_pairs(|(a, b)| b.cpu_s_per_gb / a.cpu_s_per_gb);
    let wanted = wanted.filter(|_| of.operation == "get");
    Quotient {
        of: of.server.clone(),
        to: to.server.clone(),
        operation: of.operation.clone(),
        megabytes: of.megabytes,
        gb_per_cpu_s,
        gb_per_s: over_pairs(|(a, b)| a.gb_per_s / b.gb_per_s),
        wanted,
        held: wanted.is_none_or(|wanted| gb_per_cpu_s >= wanted),
    }
}

impl Comparison {
    /// Of nothing yet.
    pub(super) fn new(machine: Machine, seed: u64, connections: usize, seconds: f64) -> Self {
        let what = "GET and PUT of whole values, closed loop; every byte of a GET compared by the client, every PUT of a new \
                    value and acknowledged: on disk by kvasir and MinIO, in memory by Redis and LMCache. kvasir from disk and \
                    over TLS are processes of their own over the same store, the first with a hot tier that has no memory";
        let (rows, quotients, skipped) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { what: what.to_owned(), machine, seed, connections, seconds, rows, quotients, skipped }
    }

    /// Adds the results of the targets at one size.
    pub(super) fn add(
        &mut self,
        megabytes: usize,
        names: &[&str],
        read: Rounds,
        written: Rounds,
        skipped: BTreeMap<String, String>,
    ) {
        for (operation, rounds) in [("get", read), ("put", written)] {
            let rows = names.iter().zip(rounds).filter(|(_, rounds)| !rounds.is_empty());
            let rows: Vec<_> = rows.map(|(name, rounds)| row(name, operation, megabytes, rounds)).collect();
            let row_of = |name: &str| rows.iter().find(|row| row.server == name);
            for (of, to, wanted) in PAIRS {
                if let (Some(of), Some(to)) = (row_of(of), row_of(to)) {
                    self.quotients.push(quotient(of, to, wanted));
                }
            }
            self.rows.extend(rows);
        }
        self.skipped.extend(skipped);
    }

    /// The table, as text.
    pub(crate) fn lines(&self) -> String {
        let mut text = format!(
            "{:<18} {:<3} {:>4} {:>8} {:>8} {:>8} {:>10} {:>8}\n",
            "server", "", "MB", "GB/s", "p50 ms", "p99 ms", "CPU s/GB", "RSS MiB"
        );
        for row in &self.rows {
            text += &format!(
                "{:<18} {:<3} {:>4} {:>8.2} {:>8.2} {:>8.2} {:>10.3} {:>8.0}\n",
                row.server,
                row.operation,
                row.megabytes,
                row.gb_per_s,
                row.p50_ms,
                row.p99_ms,
                row.cpu_s_per_gb,
                row.resident_mib
            );
        }
        for q in &self.quotients {
            let mark = match (q.wanted, q.held) {
                (None, _) => "    ",
                (_, true) => "ok  ",
                (_, false) => "FAIL",
            };
            let wanted = q.wanted.map(|wanted| format!(" (wanted {wanted})")).unwrap_or_default();
            text += &format!(
                "{mark} {} / {} at {} of {} MB: {:.2} in GB per CPU second{wanted}, {:.2} in GB/s\n",
                q.of, q.to, q.operation, q.megabytes, q.gb_per_cpu_s, q.gb_per_s
            );
        }
        for (name, reason) in &self.skipped {
            text += &format!("SKIPPED {name}: {reason}\n");
        }
        text.trim_end().to_owned()
    }

    /// The page of the comparison.
    pub(crate) fn page(&self) -> String {
        let mut page = Page::new("Peers", &self.what);
        page.paragraph(&report::machine(&self.machine));
        page.paragraph(&format!(
            "{} connections, {} s a measurement, seed {}; medians over the rounds.",
            self.connections, self.seconds, self.seed
        ));
        for operation in ["get", "put"] {
            let of_operation = || self.rows.iter().filter(|row| row.operation == operation);
            let sizes: BTreeSet<usize> = of_operation().map(|row| row.megabytes).collect();
            for megabytes in sizes {
                let title = format!("{operation} of {megabytes} MB");
                page.heading(&title);
                let bar = |row: &PeerResult| Bar {
                    label: row.server.clone(),
                    value: row.gb_per_cpu_s,
                    text: format!("{} GB", number(row.gb_per_cpu_s)),
                    ours: row.server.starts_with("kvasir"),
                };
                let bars = of_operation().filter(|row| row.megabytes == megabytes).map(bar).collect();
                let description = format!("{title}: GB per CPU second of the server");
                let svg = Bars { description: description.clone(), bars, limit: None }.to_svg();
                page.drawing(&svg, &description);
            }
        }
        page.heading("All servers");
        let columns =
            ["server", "op", "MB", "GB/s", "p50, ms", "p99, ms", "CPU s/GB", "GB/CPU s", "resident, MiB"];
        let row = |row: &PeerResult| {
            let figures =
                [row.gb_per_s, row.p50_ms, row.p99_ms, row.cpu_s_per_gb, row.gb_per_cpu_s, row.resident_mib];
            let words = [row.server.clone(), row.operation.clone(), row.megabytes.to_string()];
            words.into_iter().chain(figures.map(number)).collect()
        };
        page.table(&report::table(&columns, self.rows.iter().map(row)));
        page.heading("Quotients");
        page.paragraph("Medians of the rounds' quotients: the first server's figure over the second's.");
        let columns = ["servers", "op", "MB", "GB/CPU s", "GB/s", "at least", ""];
        let row = |q: &Quotient| {
            let held = match (q.wanted, q.held) {
                (None, _) => "",
                (_, true) => "held",
                (_, false) => "MISSED",
            };
            vec![
                format!("{} / {}", q.of, q.to),
                q.operation.clone(),
                q.megabytes.to_string(),
                number(q.gb_per_cpu_s),
                number(q.gb_per_s),
                q.wanted.map(number).unwrap_or_default(),
                held.to_owned(),
            ]
        };
        page.table(&report::table(&columns, self.quotients.iter().map(row)));
        report::skipped(&mut page, &self.skipped);
        page.finish(report::FOOTER)
    }

    /// Whether every target held.
    pub(crate) fn passed(&self) -> bool {
        self.quotients.iter().all(|quotient| quotient.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::usage;

    #[test]
    fn reads_from_memory_from_disk_and_over_tls_are_each_held_to_their_own_bound() {
        let round = |cpu_s_per_gb| {
            let (gb_per_s, p50_ms, p99_ms, resident_mib, requests) = (1.0, 1.0, 1.0, 1.0, 1);
            vec![PeerMeasurement { gb_per_s, p50_ms, p99_ms, cpu_s_per_gb, resident_mib, requests }]
        };
        let names = ["kvasir", "nginx", "lmcache", "kvasir from disk", "kvasir over TLS", "nginx over TLS"];
        let read: Rounds = [0.3, 0.2, 0.25, 0.22, 0.5, 0.6].into_iter().map(round).collect();
        let written = vec![round(2.0), Vec::new(), round(1.0), Vec::new(), Vec::new(), Vec::new()];
        let mut comparison = Comparison::new(usage::machine(), 1, 2, 1.0);
        comparison.add(4, &names, read, written, BTreeMap::new());
        let quotients = comparison.quotients.iter();
        let quotients: Vec<_> =
            quotients.map(|q| (&*q.of, &*q.to, &*q.operation, q.wanted, q.held)).collect();
        let expected = [
            ("kvasir", "nginx", "get", None, true),
            ("kvasir", "lmcache", "get", Some(1.0), false),
            ("kvasir from disk", "nginx", "get", Some(0.9), true),
            ("kvasir over TLS", "nginx over TLS", "get", Some(1.0), true),
            ("kvasir", "lmcache", "put", None, true),
        ];
        assert_eq!(quotients, expected);
    }
}
