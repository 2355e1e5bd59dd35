//! Writes the project's own bandwidth series:
//! `cargo run -p kvasir-sim --example generate_series > crates/kvasir-sim/assets/series.jsonl`

use std::io::Write;

use kvasir_sim::link::BandwidthSeries;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Seconds between points.
const STEP: f64 = 0.05;

fn drop_recover() -> Vec<f64> {
    let at = |t: f64| if (0.25..1.5).contains(&t) { 100.0 } else { 1000.0 };
    (0..60).map(|i| at(f64::from(i) * STEP)).collect()
}

/// A walk in log bandwidth that is pulled back to its middle, with short dips: cross traffic on a WAN.
fn jitter(seed: u64) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (low, high) = (80f64.ln(), 800f64.ln());
    let middle = f64::midpoint(low, high);
    let mut x = middle;
    (0..600)
        .map(|_| {
            x += 0.08 * (middle - x) + rng.random_range(-0.35..0.35);
            x = x.clamp(low, high);
            let dip = if rng.random_bool(0.03) { 0.4 } else { 1.0 };
            ((x.exp() * dip).max(80.0) * 10.0).round() / 10.0
        })
        .collect()
}

/// Half a second up, a quarter down: a link shared with a batch job.
fn sawtooth() -> Vec<f64> {
    (0..300).map(|i| if i % 15 < 10 { 400.0 } else { 40.0 }).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    let all = [("drop-recover", drop_recover()), ("jitter", jitter(20_241)), ("sawtooth", sawtooth())];
    for (name, mbps) in all {
        writeln!(out, "{}", BandwidthSeries::steps("kvasir", name, STEP, &mbps)?.to_jsonl())?;
    }
    Ok(())
}
