//! Prints a stream study as a table: `cargo run --release -p kvasir-sim --example stream -- random:0.1-10 200 500,1000`
//! or with a series file in place of the range (each series scaled to means of 0.2–10 Gb/s).

use std::{io::Write, path::Path, time::Duration};

use kvasir_sim::{
    link::BandwidthSeries,
    net::study::{Bandwidth, SERIES_MEAN_GBPS, StreamStudy},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let source = arguments.next().unwrap_or_else(|| "random:0.1-10".into());
    let contexts = arguments.next().map_or(Ok(50), |n| n.parse())?;
    let slos = arguments.next().unwrap_or_else(|| "500,1000".into());
    let slos = slos.split(',').map(|ms| ms.parse().map(Duration::from_millis)).collect::<Result<_, _>>()?;
    let bandwidth = match Bandwidth::parse_random(&source) {
        Ok(random) => random,
        Err(_) => Bandwidth::Series(BandwidthSeries::read_file(Path::new(&source))?, Some(SERIES_MEAN_GBPS)),
    };
    let mut study = StreamStudy::paper(bandwidth, contexts, slos);
    if let Some(n) = arguments.next() {
        study.concurrent = n.parse()?;
    }
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:38} {:6} {:6} {:18} {:>6} {:>6} {:>7} {:>7} {:>7} {:>6}",
        "set", "ladder", "slo", "policy", "viol%", "avoid%", "p50 ms", "p95 ms", "quality", "MB"
    )?;
    for row in study.run().rows {
        writeln!(
            out,
            "{:38} {:6} {:6} {:18} {:6.1} {:6.1} {:7.0} {:7.0} {:7.4} {:6.0}",
            row.set,
            row.ladder,
            row.slo_ms,
            row.policy,
            row.violation_rate * 100.0,
            row.avoidable_violation_rate * 100.0,
            row.ttft_ms_p50,
            row.ttft_ms_p95,
            row.quality,
            row.bytes / 1e6
        )?;
    }
    Ok(())
}
