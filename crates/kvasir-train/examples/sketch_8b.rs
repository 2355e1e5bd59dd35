//! Principal components at the shape of an 8B model's all-layer scope (32 layers × 2 planes × 8 heads × 128
//! elements), on synthetic rows of known rank: memory, time and loss of the trainer's randomised SVD.
//!
//! ```text
//! cargo run --release -p kvasir-train --example sketch_8b -- [RANK] [ROWS]
//! ```
#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::time::Instant;

use kvasir_train::Sketch;

const ELEMENTS: usize = 32 * 2 * 8 * 128;
const BATCH: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<usize>());
    let rank = arguments.next().transpose()?.unwrap_or(128);
    let rows = arguments.next().transpose()?.unwrap_or(10 * rank);
    let mixing: Vec<f32> = (0..rank as u64).flat_map(|seed| normals(seed, ELEMENTS)).collect();
    let start = Instant::now();
    let mut sketch = Sketch::new(ELEMENTS, rank);
    (0..rows / BATCH).for_each(|index| sketch.add(&batch(&mixing, rank, index)));
    let mut inside = sketch.finish();
    (0..rows / BATCH).for_each(|index| inside.add(&batch(&mixing, rank, index)));
    let (basis, spectrum) = inside.finish(rank).ok_or("no decomposition")?;
    println!(
        "{rows} rows of {ELEMENTS} elements, rank {rank}: {:.1} s, spectrum {:.3e} to {:.3e}",
        start.elapsed().as_secs_f64(),
        spectrum[0],
        spectrum[rank - 1]
    );
    let fresh = batch(&mixing, rank, usize::MAX / 2);
    let (mut power, mut kept) = (0f64, 0f64);
    for row in fresh.chunks_exact(ELEMENTS) {
        power += row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        for direction in basis.chunks_exact(ELEMENTS) {
            kept += row.iter().zip(direction).map(|(x, d)| f64::from(x * d)).sum::<f64>().powi(2);
        }
    }
    println!("power of fresh rows outside the basis: {:.2e} (noise put in: 1e-4)", 1.0 - kept / power);
    Ok(())
}

/// Rows of unit power in the hidden directions, and noise of a ten-thousandth of it.
fn batch(mixing: &[f32], rank: usize, index: usize) -> Vec<f32> {
    let hidden = normals(0xabcd_0000 + index as u64, BATCH * rank);
    let mut rows = normals(0xef01_0000 + index as u64, BATCH * ELEMENTS);
    rows.iter_mut().for_each(|x| *x *= 0.01);
    for (row, hidden) in rows.chunks_exact_mut(ELEMENTS).zip(hidden.chunks_exact(rank)) {
        for (amount, direction) in hidden.iter().zip(mixing.chunks_exact(ELEMENTS)) {
            let amount = amount / (rank as f32).sqrt();
            row.iter_mut().zip(direction).for_each(|(x, d)| *x += amount * d);
        }
    }
    rows
}

/// Nearly Gaussian numbers of variance 1.
fn normals(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (uniform() + uniform() + uniform() + uniform()) * 3f32.sqrt()).collect()
}
