//! What a comparison came to.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Rounds, client::Measured};
use crate::proc::Machine;

/// One server at one size: medians over the rounds.
#[derive(Debug, Clone, Serialize)]
struct Row {
    server: &'static str,
    operation: &'static str,
    megabytes: usize,
    gb_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// CPU seconds of the server's processes, children included, per 10^9 bytes served.
    cpu_s_per_gb: f64,
    /// And the other way round: what one core of the server could serve.
    gb_per_cpu_s: f64,
    resident_mib: f64,
    rounds: Vec<Measured>,
}

/// What one server came to beside another: medians of the rounds' quotients.
#[derive(Debug, Clone, Serialize)]
struct Quotient {
    of: &'static str,
    to: &'static str,
    operation: &'static str,
    megabytes: usize,
    gb_per_cpu_s: f64,
    gb_per_s: f64,
    /// In bytes per CPU second.
    wanted: Option<f64>,
    held: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    what: &'static str,
    machine: Machine,
    seed: u64,
    connections: usize,
    seconds: f64,
    rows: Vec<Row>,
    quotients: Vec<Quotient>,
    skipped: BTreeMap<String, String>,
}

/// What reads of the service have to reach beside each, in bytes per CPU second.
const WANTED: [(&str, f64); 2] = [("nginx", 0.8), ("redis", 1.0)];

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn row(server: &'static str, operation: &'static str, megabytes: usize, rounds: Vec<Measured>) -> Row {
    let of = |value: fn(&Measured) -> f64| median(rounds.iter().map(value));
    Row {
        server,
        operation,
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

fn quotient(of: &Row, to: &Row) -> Quotient {
    let pairs = || of.rounds.iter().zip(&to.rounds);
    let gb_per_cpu_s = median(pairs().map(|(a, b)| b.cpu_s_per_gb / a.cpu_s_per_gb));
    let wanted = WANTED.iter().find(|(name, _)| of.operation == "get" && *name == to.server);
    let wanted = wanted.map(|(_, wanted)| *wanted);
    Quotient {
        of: of.server,
        to: to.server,
        operation: of.operation,
        megabytes: of.megabytes,
        gb_per_cpu_s,
        gb_per_s: median(pairs().map(|(a, b)| a.gb_per_s / b.gb_per_s)),
        wanted,
        held: wanted.is_none_or(|wanted| gb_per_cpu_s >= wanted),
    }
}

impl Comparison {
    /// Of nothing yet.
    pub(super) fn new(machine: Machine, seed: u64, connections: usize, seconds: f64) -> Self {
        let what = "GET and PUT of whole values, closed loop; every byte of a GET compared by the client, every PUT of a new \
                    value and acknowledged: on disk by kvasir and MinIO, in memory by Redis and LMCache";
        let (rows, quotients, skipped) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { what, machine, seed, connections, seconds, rows, quotients, skipped }
    }

    /// Takes in what the targets, the first of which is the service, came to at one size.
    pub(super) fn add(
        &mut self,
        megabytes: usize,
        names: &[&'static str],
        read: Rounds,
        written: Rounds,
        skipped: BTreeMap<String, String>,
    ) {
        for (operation, rounds) in [("get", read), ("put", written)] {
            let rows = names.iter().zip(rounds).filter(|(_, rounds)| !rounds.is_empty());
            let rows: Vec<_> = rows.map(|(name, rounds)| row(name, operation, megabytes, rounds)).collect();
            if let Some((service, others)) = rows.split_first() {
                self.quotients.extend(others.iter().map(|other| quotient(service, other)));
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

    /// The table, as a page.
    pub(crate) fn html(&self) -> String {
        let machine = serde_json::to_string(&self.machine).unwrap_or_default();
        let body = format!(
            "<p>{}</p><p>{}</p><pre>{}</pre>",
            self.what,
            crate::svg::escape(&machine),
            crate::svg::escape(&self.lines())
        );
        crate::report::page("Peers", &body)
    }

    /// Whether every target held.
    pub(crate) fn passed(&self) -> bool {
        self.quotients.iter().all(|quotient| quotient.held)
    }
}
