//! Writes a synthetic request trace in the Bailian format, without the kinds of requests and their turns:
//! `cargo run --release -p kvasir-replay --example generate_trace -- SEED REQUESTS > trace.jsonl`

use std::io::{BufWriter, Write};

use kvasir_replay::trace::SyntheticTrace;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut trace = SyntheticTrace { labels: false, ..SyntheticTrace::default() };
    if let Some(seed) = arguments.next() {
        trace.seed = seed.parse()?;
    }
    if let Some(requests) = arguments.next() {
        trace.requests = requests.parse()?;
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    trace.write(&mut out)?;
    out.flush()?;
    Ok(())
}
