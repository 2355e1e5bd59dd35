//! Writes the project's own bandwidth series:
//! `cargo run -p kvasir-replay --example generate_series > crates/kvasir-replay/assets/series.jsonl`

use std::io::Write;

use kvasir_replay::link::BandwidthSeries;
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

/// A slow walk with fades to a tenth: a radio link.
fn wireless(seed: u64) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut x, mut fade) = (5.0f64, 0u32);
    (0..600)
        .map(|_| {
            x = (x + 0.05 * (5.0 - x) + rng.random_range(-0.25..0.25)).clamp(3.0, 7.0);
            fade = if fade > 0 {
                fade - 1
            } else if rng.random_bool(0.02) {
                rng.random_range(4..30)
            } else {
                0
            };
            (x.exp() * if fade > 0 { 0.1 } else { 1.0 } * 10.0).round() / 10.0
        })
        .collect()
}

/// Levels that hold for seconds: routes and neighbours of a wide-area link.
fn wan(seed: u64) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut level, mut left) = (300.0f64, 0u32);
    (0..600)
        .map(|_| {
            if left == 0 {
                level = rng.random_range(40f64.ln()..900f64.ln()).exp();
                left = rng.random_range(10..80);
            }
            left -= 1;
            (level * rng.random_range(0.9..1.1) * 10.0).round() / 10.0
        })
        .collect()
}

/// Steady, with dips of a tick or a few to a few per cent: a busy host in a data centre.
fn cloud(seed: u64) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut dip = 0u32;
    (0..600)
        .map(|_| {
            dip = if dip > 0 {
                dip - 1
            } else if rng.random_bool(0.06) {
                rng.random_range(1..6)
            } else {
                0
            };
            let share = if dip > 0 { rng.random_range(0.02..0.2) } else { rng.random_range(0.85..1.0) };
            (1_000.0 * share * 10.0f64).round() / 10.0
        })
        .collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    let all = [
        ("kvasir", "drop-recover", drop_recover()),
        ("kvasir", "jitter", jitter(20_241)),
        ("kvasir", "sawtooth", sawtooth()),
        ("wireless", "fades-1", wireless(1)),
        ("wireless", "fades-2", wireless(2)),
        ("wan", "levels-1", wan(3)),
        ("wan", "levels-2", wan(4)),
        ("cloud", "dips-1", cloud(5)),
        ("cloud", "dips-2", cloud(6)),
    ];
    for (set, name, mbps) in all {
        writeln!(out, "{}", BandwidthSeries::steps(set, name, STEP, &mbps)?.to_jsonl())?;
    }
    Ok(())
}
