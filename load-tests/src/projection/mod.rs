//! A projection to larger installations: arithmetic over numbers that each say where they are from. It is a projection, not a
//! measurement.

mod bill;
mod inputs;
mod size;

use std::{fmt::Write as _, path::PathBuf};

use anyhow::Result;
use clap::Args;
use kvasir_plot::{Page, number};
use serde::{Deserialize, Serialize};

use self::{
    inputs::{Inputs, TRACES},
    size::ProjectedSize,
};
use crate::{
    process::usage::{self, Machine},
    report,
};

/// Projects to 100 replicas, 1 and 33 PB, 400 Gb/s, from the results of the other commands and published prices.
#[derive(Debug, Args)]
pub(crate) struct ProjectArguments {
    /// Folder with peers-alone.json, namespace-1m.json, scale-out.json, replay-conversation-whole.json and replay-agentic.json; missing
    /// values are assumed and marked as such.
    #[arg(long, default_value = "load-tests/results")]
    results: PathBuf,
    /// Folder for projection.json and projection.html.
    #[arg(long, default_value = "target/load")]
    pub(crate) out: PathBuf,
    /// Rate of reads from all replicas together, in Gb/s.
    #[arg(long, default_value_t = 400.0)]
    gbits: f64,
    /// Interval between two passes of the collector in seconds, as `gc.interval`.
    #[arg(long, default_value_t = 600.0)]
    gc_interval_s: f64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Projection {
    what: String,
    machine: Machine,
    calibration: Inputs,
    model: Vec<String>,
    rows: Vec<ProjectedSize>,
}

/// Replicas and chunks, from a test bed to the largest named in the question.
const SIZES: [(f64, f64); 4] = [(4.0, 1e6), (16.0, 5e6), (100.0, 30e6), (100.0, 1e9)];

/// What the arithmetic takes for granted.
const MODEL: [&str; 9] = [
    "reads are of whole chunks, in ranges; a chunk is written in parts",
    "what is written for each byte that is read, and how many chunks a prompt has, is as in the replay of the trace: that of the \
     conversations is one hour that begins with an empty store, so it overstates writes",
    "hot tiers find what adaptive finds of the trace, at the share of all chunks that fits into all of them together",
    "each core reads and writes at the rate measured here, with any number of connections; a CPU share above 1 means that so few \
     replicas cannot do it, and links are not counted",
    "up to rows_members_max replicas: every replica reads the journal every journal_interval_s, and every batch is read by every \
     other replica",
    "more replicas: all together read removals journal_reads_per_s times a second, each at least every journal_interval_max_s, and \
     counts every journal_counts_every_s; every journal_stored_turns of these turns each writes what it stored, and one reads that, \
     for quotas; each has rows of an equal share of the chunks",
    "of removals each read lists the batches of the last removals_window_s, and all that are kept in removals_slices every \
     removals_listed_every_s; the log of what was stored, whose batches the first pass over everything after journal_retention_s \
     deletes, is listed replica by replica where it has more than journal_pages_max pages; who marks what is evicted announces it \
     meanwhile; who deletes announces gone_waiting_max objects at a time, and at the end of each pass; each of more replicas than \
     rows_members_max verifies the tails that it knows in the units of others every known_tails_every_s, one after the other and at most \
     one for each lookup, then marks them, and announces them meanwhile; whoever appends removals asks for their date, which is one of \
     the reads; deletions of batches cost nothing and are no part of the requests, nor are readers of events and removals by request",
    "the collector waits gc_interval_s between passes: one replica lists everything, work_units or fewer list their shares of one \
     model, which is that of the only tenant; the bill is of listings only, without what they find to do; the owner of a unit \
     deletes chunks and looks under some of the tombstones that are kept, as few as listed_bits allow, collected_at_once at a time, \
     then marks what was chosen to be evicted, one intent after the other, while its tenant has some of tenant_actions_of_a_pass \
     left; a pass over everything chooses among at most objects_to_choose_from, and then does the same as an owner",
    "everything is in one region; the sum is for one zone, beside it what traffic between three costs",
];

/// The table for all sizes.
pub(crate) fn project(arguments: &ProjectArguments) -> Result<Projection> {
    let inputs = Inputs::new(arguments);
    let size = |trace| SIZES.map(|(replicas, chunks)| ProjectedSize::new(&inputs, trace, replicas, chunks));
    let rows: Vec<ProjectedSize> = TRACES.iter().flat_map(size).collect();
    let what = "a projection from measurements on small machines and published prices, not a measurement";
    let model = MODEL.map(str::to_owned).to_vec();
    Ok(Projection { what: what.to_owned(), machine: usage::machine(), calibration: inputs, model, rows })
}

type Line = (&'static str, fn(&ProjectedSize) -> f64);

/// Lines of the table.
const LINES: [Line; 43] = [
    ("replicas", |r| r.replicas),
    ("index by routes", |r| f64::from(u8::from(r.routes))),
    ("chunks", |r| r.chunks),
    ("stored, PB", |r| r.petabytes),
    ("reads, Gb/s", |r| r.gbits),
    ("chunk reads/s", |r| r.reads_per_s),
    ("chunk writes/s", |r| r.writes_per_s),
    ("lookups/s", |r| r.lookups_per_s),
    ("hot hit ratio", |r| r.hit_ratio),
    ("CPU of a replica, share", |r| r.cpu_share),
    ("store reads/s", |r| r.store_gets_per_s),
    ("store writes/s", |r| r.store_puts_per_s),
    ("store traffic, Gb/s", |r| r.store_gbits),
    ("journal appends/s", |r| r.journal_appends_per_s),
    ("journal listings/s", |r| r.journal_listings_per_s),
    ("journal reads/s", |r| r.journal_reads_per_s),
    ("journal requests/s", ProjectedSize::journal_requests_per_s),
    ("journal deletions/s", |r| r.journal_deletions_per_s),
    ("requests/s of a quiet replica", |r| r.quiet_replica_requests_per_s),
    ("index, GB", |r| r.index_gb),
    ("index of a replica, GB", |r| r.index_gb_of_a_replica),
    ("rebuild of an index, h", |r| r.rebuild_h),
    ("GC, listing everything, h", |r| r.gc_pass_h),
    ("GC, a share, h", |r| r.gc_share_h),
    ("GC listings, everything", |r| r.gc_listings),
    ("GC, chunks/s it can collect", |r| r.gc_chunks_per_s_max),
    ("$/month: storage", |r| r.bill.storage),
    ("GET of chunks", |r| r.bill.chunk_gets),
    ("PUT of chunks", |r| r.bill.chunk_puts),
    ("LIST of PUTs", |r| r.bill.put_listings),
    ("LIST of lookups", |r| r.bill.lookup_listings),
    ("journal, PUT", |r| r.bill.journal_appends),
    ("journal, LIST", |r| r.bill.journal_listings),
    ("journal, GET", |r| r.bill.journal_reads),
    ("collector, LIST", |r| r.bill.collector_listings),
    ("egress, store to replicas", |r| r.bill.store_to_replica),
    ("replicas", |r| r.bill.replicas),
    ("all requests", |r| r.bill.requests()),
    ("all requests of the journal", |r| {
        r.bill.journal_appends + r.bill.journal_listings + r.bill.journal_reads
    }),
    ("sum, one zone", |r| r.bill.sum),
    ("$ a stored TB and month", |r| r.bill.sum / r.petabytes / 1e3),
    ("$ a TB read", |r| r.bill.sum / (r.gbits / 8e3 * 30.4 * 86_400.0)),
    ("traffic between 3 zones, more", |r| r.bill.between_zones),
];

impl Projection {
    /// The table, with its inputs, as text.
    pub(crate) fn lines(&self) -> String {
        let mut text = format!("{}\n\ninputs:\n", self.what);
        for (name, input) in self.calibration.iter() {
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(text, "  {name} = {} ({})", number(input.value), input.origin);
        }
        text += "model:\n";
        self.model.iter().for_each(|line| _ = writeln!(text, "  {line}"));
        let traces: String = self.rows.iter().map(|row| format!("{:>13}", row.trace)).collect();
        let _ = writeln!(text, "\n{:<30}{traces}", "");
        for (name, of) in LINES {
            let values: String = self.rows.iter().map(|row| format!("{:>13}", number(of(row)))).collect();
            let _ = writeln!(text, "{name:<30}{values}");
        }
        text.trim_end().to_owned()
    }

    /// The same as a page.
    pub(crate) fn page(&self) -> String {
        let mut page = Page::new("Projection", &self.what);
        page.paragraph(&report::machine(&self.machine));
        page.heading("Inputs");
        let inputs = self
            .calibration
            .iter()
            .map(|(name, input)| vec![name.clone(), number(input.value), input.origin.clone()]);
        page.table(&report::table(&["input", "value", "origin"], inputs));
        page.heading("Model");
        self.model.iter().for_each(|line| page.paragraph(line));
        page.heading("Sizes");
        let traces = self.rows.iter().map(|row| row.trace.as_str());
        let columns: Vec<&str> = [""].into_iter().chain(traces).collect();
        let line = |(name, of): Line| {
            [name.to_owned()].into_iter().chain(self.rows.iter().map(|size| number(of(size)))).collect()
        };
        page.table(&report::table(&columns, LINES.into_iter().map(line)));
        page.finish(report::FOOTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn projected() -> Projection {
        let nowhere = PathBuf::from("there is no such folder");
        let arguments =
            ProjectArguments { results: nowhere.clone(), out: nowhere, gbits: 400.0, gc_interval_s: 600.0 };
        project(&arguments).expect("arithmetic")
    }

    #[test]
    fn every_line_has_a_number_and_the_bill_adds_up() {
        for row in projected().rows {
            for (name, of) in LINES {
                assert!(of(&row).is_finite(), "{name} of {row:?}");
            }
            let lines = LINES.iter().skip_while(|(name, _)| !name.starts_with("$/month")).take(11);
            let sum: f64 = lines.map(|(_, of)| of(&row)).sum();
            assert!((sum / row.bill.sum - 1.0).abs() < 1e-9, "{sum} of {row:?}");
        }
    }

    #[test]
    fn a_petabyte_is_billed_by_tiers() {
        let row = &projected().rows[2];
        // 51,200 GB at 0.023, 460,800 at 0.022 and the rest at 0.021, as S3 counts GB.
        let rest = row.petabytes * 1e15 / f64::from(1 << 30) - 512_000.0;
        let usd = 51_200.0 * 0.023 + 460_800.0 * 0.022 + rest * 0.021;
        assert!((row.bill.storage - usd).abs() < 0.01, "{} and {usd}", row.bill.storage);
    }
}
