//! Speed on one core: from a chunk's bytes to bf16 rows and back, on every path of this CPU, compared with
//! the decode rate of other entropy coders on the same symbols. All are timed alternately in one run; a row
//! is the best of its rounds.

mod peers;
mod workload;

use std::{hint::black_box, time::Instant};

use kvasir_codec::{
    Bf16Buffer, ChunkDecoder as _, ChunkEncoder as _, CpuDecoder, CpuEncoder, DecodePath, rans::PieceEncoder,
};
use kvasir_types::Level;
use serde::Serialize;

use self::{
    peers::Peers,
    workload::{Chunk, Workload},
};
use crate::BenchError;

/// A measured rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeedRow {
    /// `scalar avx2 avx512 neon`, or `constriction zstd`.
    pub path: String,
    /// The kind of the profile, `direct` or `basis`; other coders code the symbols of `direct`.
    pub profile: String,
    /// `decode decode_refine encode`.
    pub op: String,
    /// The level that is decoded; an encoder makes all.
    pub level: Option<u8>,
    /// 10^9 elements per second.
    pub gelem_per_s: f64,
    /// Bits per element read or written.
    pub bits: f64,
}

/// A target and the measured value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeedVerdict {
    /// In words.
    pub target: String,
    /// The measured value: a rate in 10^9 elements per second, or a ratio of two.
    pub measured: f64,
    /// Least that passes.
    pub at_least: f64,
    /// Whether it passes.
    pub pass: bool,
}

/// One thing to be timed.
struct Work<'a> {
    path: &'static str,
    profile: &'static str,
    op: &'static str,
    level: Option<Level>,
    elements: usize,
    bits: f64,
    run: Box<dyn FnMut() -> Result<(), BenchError> + Send + 'a>,
    best: f64,
}

/// Measures every path in turns, `rounds` times, on one thread.
///
/// # Errors
/// [`BenchError`]: something does not read back what it wrote.
pub fn codec_speed(
    rounds: usize,
    progress: &mut (dyn FnMut(f32) + Send),
) -> Result<Vec<SpeedRow>, BenchError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().map_err(std::io::Error::other)?;
    pool.install(|| measure(rounds, progress))
}

fn measure(rounds: usize, progress: &mut (dyn FnMut(f32) + Send)) -> Result<Vec<SpeedRow>, BenchError> {
    let (workload, shipped) = (Workload::new()?, Chunk::shipped()?);
    let peers = Peers::new(&workload.symbols)?;
    let (base, chunk) = (workload.base, &workload.chunk);
    let mut works = decoders(chunk, &[("decode", base), ("decode_refine", Level(base.0 + 1))])?;
    works.extend(encoders(chunk)?);
    let levels = (0..shipped.profile.level_count()).map(|level| ("decode", Level(level as u8)));
    works.extend(decoders(&shipped, &levels.collect::<Vec<_>>())?);
    works.extend(encoders(&shipped)?);
    works.extend(peers.works());
    for round in 0..rounds {
        for work in &mut works {
            let start = Instant::now();
            (work.run)()?;
            work.best = work.best.min(start.elapsed().as_secs_f64());
        }
        progress((round + 1) as f32 / rounds as f32);
    }
    let row = |work: &Work<'_>| SpeedRow {
        path: work.path.to_owned(),
        profile: work.profile.to_owned(),
        op: work.op.to_owned(),
        level: work.level.map(|level| level.0),
        gelem_per_s: work.elements as f64 / work.best / 1e9,
        bits: work.bits,
    };
    Ok(works.iter().map(row).collect())
}

fn decoders<'a>(chunk: &'a Chunk, ops: &[(&'static str, Level)]) -> Result<Vec<Work<'a>>, BenchError> {
    let mut works = Vec::new();
    for path in DecodePath::available() {
        let decoder = CpuDecoder::new(chunk.spec.clone(), chunk.profile.clone())?.with_path(path);
        for &(op, level) in ops {
            let decoder = decoder.clone();
            let prefix = &chunk.object[..chunk.bytes_at(level)];
            let mut rows = Bf16Buffer::new(&chunk.spec, chunk.tokens.len());
            let run = move || {
                decoder.decode(&chunk.head, prefix, level, 0..chunk.tokens.len(), &mut rows)?;
                black_box(rows.as_slice());
                Ok(())
            };
            works.push(Work {
                path: path.name(),
                profile: chunk.kind,
                op,
                level: Some(level),
                elements: chunk.elements(),
                bits: chunk.bits(prefix.len()),
                run: Box::new(run),
                best: f64::INFINITY,
            });
        }
    }
    Ok(works)
}

fn encoders(chunk: &Chunk) -> Result<Vec<Work<'_>>, BenchError> {
    let mut works = Vec::new();
    for pieces in PieceEncoder::available() {
        let encoder = CpuEncoder::new(chunk.spec.clone(), chunk.profile.clone())?.with_pieces(pieces);
        let run = move || {
            black_box(encoder.encode(&chunk.input())?);
            Ok(())
        };
        works.push(Work {
            path: pieces.name(),
            profile: chunk.kind,
            op: "encode",
            level: None,
            elements: chunk.elements(),
            bits: chunk.bits(chunk.object.len()),
            run: Box::new(run),
            best: f64::INFINITY,
        });
    }
    Ok(works)
}

/// Compares the rows with the targets; targets of paths that this CPU lacks are omitted.
pub fn speed_verdicts(rows: &[SpeedRow]) -> Vec<SpeedVerdict> {
    let direct = || rows.iter().filter(|row| row.profile == "direct");
    let rate = |path: &str, op: &str| direct().find(|r| r.path == path && r.op == op).map(|r| r.gelem_per_s);
    let best = |op: &str| ["avx512", "avx2", "neon", "scalar"].into_iter().find_map(|path| rate(path, op));
    let over = |peer: &str| best("decode").zip(rate(peer, "decode")).map(|(ours, theirs)| ours / theirs);
    let targets = [
        ("AVX-512, complete decode", rate("avx512", "decode"), 2.0),
        ("AVX-512, with a trit level on top", rate("avx512", "decode_refine"), 1.2),
        ("AVX2, complete decode", rate("avx2", "decode"), 1.0),
        ("scalar, complete decode", rate("scalar", "decode"), 0.2),
        ("encode", best("encode"), 0.5),
        ("complete decode over constriction's range decoder", over("constriction"), 20.0),
        ("complete decode over zstd -1 on one symbol a byte", over("zstd"), 2.0),
    ];
    let verdict = |(target, measured, at_least): (&str, Option<f64>, f64)| {
        let measured = measured?;
        Some(SpeedVerdict { target: target.to_owned(), measured, at_least, pass: measured >= at_least })
    };
    targets.into_iter().filter_map(verdict).collect()
}
