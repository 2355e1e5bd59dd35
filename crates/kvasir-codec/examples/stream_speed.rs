//! Speed of the entropy stage on this CPU, one core: every decoder on the same pieces, in turns, in one run.
//!
//! `cargo run --release -p kvasir-codec --example stream_speed` prints JSON rows `{path, op, gelem_per_s, bits}`: the
//! best of the rounds, in 10^9 coefficients a second, of a synthetic Laplacian source with 64 tables.
#![allow(clippy::print_stdout, reason = "an example talks on stdout")]

use std::{hint::black_box, time::Instant};

use kvasir_codec::rans::{
    AliasTable, Coding, PieceDecoder, PieceEncoder, PiecePlan, StageSymbol, TableBank, TritTable, coarsen,
    digit, encode_piece,
};

const COEFFICIENTS: usize = 512;
const TOKENS: usize = 256;
const ROUNDS: usize = 40;

/// Laplacian values of the given standard deviation in steps, at the finer of two levels.
fn source(sigma: f64, seed: u64) -> Vec<i32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    };
    let mut value = |c: usize| {
        let u = uniform();
        let spread = sigma * (0.5 + (c % 64) as f64 / 64.0);
        (-u.signum() * (1.0 - 2.0 * u.abs()).ln() * spread / 2f64.sqrt()).round() as i32
    };
    (0..COEFFICIENTS * TOKENS).map(|i| value(i / TOKENS)).collect()
}

struct Level {
    codings: Vec<Coding>,
    values: Vec<i32>,
    bytes: Vec<u8>,
}

impl Level {
    fn plan(&self) -> PiecePlan<'_> {
        PiecePlan { coefficients: &self.codings, tokens: TOKENS }
    }
}

/// The base and its refinement under one bank fitted to them.
fn levels(fine: Vec<i32>) -> Result<(TableBank, [Level; 2]), Box<dyn std::error::Error>> {
    let base: Vec<i32> = fine.iter().map(|&v| coarsen(v)).collect();
    let (mut stages, mut trits) = (vec![[0; 16]; 64], vec![[[0; 3]; 2]; 64]);
    for (i, (&fine, &base)) in fine.iter().zip(&base).enumerate() {
        let table = i / TOKENS % 64;
        stages[table][StageSymbol::of(base).index()] += 1;
        let folded = if base < 0 { -digit(fine) } else { digit(fine) };
        trits[table][TritTable::context(base)][(folded + 1) as usize] += 1;
    }
    let stages = stages.iter().map(AliasTable::from_counts).collect();
    let bank = TableBank::new(stages, trits.iter().map(TritTable::from_counts).collect())?;
    let table = |c: usize| (c % 64) as u8;
    let stage =
        (0..COEFFICIENTS).map(|c| Coding::Stage { table: table(c), trits: 0, trit_table: 0 }).collect();
    let trit = (0..COEFFICIENTS).map(|c| Coding::Trit { table: table(c) }).collect();
    let level = |codings, values| -> Result<Level, kvasir_codec::rans::PieceError> {
        let mut level = Level { codings, values, bytes: Vec::new() };
        let mut bytes = Vec::new();
        encode_piece(&bank, &level.plan(), &level.values, &mut bytes)?;
        level.bytes = bytes;
        Ok(level)
    };
    let levels = [level(stage, base)?, level(trit, fine)?];
    Ok((bank, levels))
}

fn seconds<T, E: std::fmt::Debug>(work: impl FnOnce() -> Result<T, E>) -> f64 {
    let start = Instant::now();
    work().expect("a good piece");
    start.elapsed().as_secs_f64()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let elements = (COEFFICIENTS * TOKENS) as f64;
    let mut rows = Vec::new();
    for sigma in [1.5, 3.0, 6.0] {
        let (bank, levels) = levels(source(sigma, 1))?;
        let [base, fine] = &levels;
        let decoders = PieceDecoder::available();
        let mut best = vec![[f64::INFINITY; 2]; decoders.len()];
        let encoders = PieceEncoder::available();
        let mut encode = vec![[f64::INFINITY; 2]; encoders.len()];
        let mut values = vec![0; COEFFICIENTS * TOKENS];
        let mut out = Vec::new();
        for _ in 0..ROUNDS {
            for (decoder, best) in decoders.iter().zip(&mut best) {
                let decode = |level: &Level, values: &mut [i32]| {
                    black_box(decoder.decode_piece(&bank, &level.plan(), black_box(&level.bytes), values))
                };
                best[0] = best[0].min(seconds(|| decode(base, &mut values)));
                assert!(values == base.values, "{} decodes wrongly", decoder.name());
                let refine = seconds(|| decode(base, &mut values).and_then(|()| decode(fine, &mut values)));
                best[1] = best[1].min(refine);
                assert!(values == fine.values, "{} refines wrongly", decoder.name());
            }
            for (encoder, best) in encoders.iter().zip(&mut encode) {
                for (level, best) in levels.iter().zip(best) {
                    out.clear();
                    let run = || encoder.encode_piece(&bank, &level.plan(), &level.values, &mut out);
                    *best = best.min(seconds(run));
                    assert!(out == level.bytes, "{} encodes otherwise", encoder.name());
                }
            }
        }
        let bits = |bytes: usize| bytes as f64 * 8.0 / elements;
        let both = bits(base.bytes.len() + fine.bytes.len());
        for (decoder, [decode, refine]) in decoders.iter().zip(best) {
            rows.push((decoder.name(), "decode", elements / decode, bits(base.bytes.len())));
            rows.push((decoder.name(), "decode_refine", elements / refine, both));
        }
        for (encoder, [encode, refine]) in encoders.iter().zip(encode) {
            rows.push((encoder.name(), "encode", elements / encode, bits(base.bytes.len())));
            rows.push((encoder.name(), "encode_refine", elements / (encode + refine), both));
        }
    }
    let row = |(path, op, rate, bits): (&str, &str, f64, f64)| {
        format!(
            "{{\"path\":\"{path}\",\"op\":\"{op}\",\"gelem_per_s\":{:.3},\"bits\":{bits:.3}}}",
            rate / 1e9
        )
    };
    println!("[{}]", rows.into_iter().map(row).collect::<Vec<_>>().join(",\n "));
    Ok(())
}
