//! Speed: from a chunk's bytes to bf16 rows and back, on every path of this CPU, beside other coders on the same data and
//! the `gemm` crate on the same product. All are timed in turns in one run; a row is the median of its rounds.

mod basis;
mod peers;
mod workload;

use std::{hint::black_box, sync::Arc, time::Instant};

use kvasir_codec::{
    Bf16Buffer, ChunkDecoder as _, ChunkEncoder as _, CpuDecoder, CpuEncoder, DecodePath, rans::PieceEncoder,
};
use kvasir_types::Level;
use rayon::ThreadPoolBuilder;
use serde::Serialize;

use self::{
    peers::Peers,
    workload::{Chunk, Workload},
};
use crate::BenchError;

/// Ranks of synthetic bases of wide scopes: the shipped profile's, and that of a target.
const WIDE_RANKS: [usize; 2] = [673, 1_024];

/// A measured rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeedRow {
    /// `scalar avx2 avx512 neon`, or `constriction zstd zstd_rows gemm`.
    pub path: String,
    /// `direct`; `basis`: what ships; `basis_unpredicted`: that without its predictor; `basis_wide` and `basis_heads`:
    /// synthetic bases of four layers and of single heads. `constriction` and `zstd` code the symbols of `direct`.
    pub profile: String,
    /// `decode decode_refine encode`, parts of an encode (`encode_…`), or `product`: that with a basis alone.
    pub op: String,
    /// The level that is decoded; an encoder makes all.
    pub level: Option<u8>,
    /// Coefficients of a scope with a basis.
    pub rank: Option<usize>,
    /// Threads that share the work.
    pub threads: usize,
    /// 10^9 elements per second: the median of `rounds`.
    pub gelem_per_s: f64,
    /// 10^9 operations a second of a product with a basis, 2 · rank for each element: those of coefficients that are zero
    /// count too, and the time is the whole row's, whatever else it does.
    pub gflop_per_s: Option<f64>,
    /// Bits per element read or written.
    pub bits: Option<f64>,
    /// The rate of every round. All rows take turns in a round.
    pub rounds: Vec<f64>,
}

/// A target and the measured value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeedVerdict {
    /// In words.
    pub target: String,
    /// The measured value: a rate in 10^9 elements per second, or the median over rounds of a ratio of two.
    pub measured: f64,
    /// Least that passes.
    pub at_least: f64,
    /// Whether it passes.
    pub pass: bool,
}

/// One thing to be timed.
struct Work<'a> {
    row: SpeedRow,
    elements: usize,
    run: Box<dyn FnMut() -> Result<(), BenchError> + Send + 'a>,
}

impl<'a> Work<'a> {
    /// On one thread, of no level.
    fn new(
        (path, profile, op): (&str, &str, &str),
        elements: usize,
        bits: Option<f64>,
        run: impl FnMut() -> Result<(), BenchError> + Send + 'a,
    ) -> Self {
        let row = SpeedRow {
            path: path.to_owned(),
            profile: profile.to_owned(),
            op: op.to_owned(),
            level: None,
            rank: None,
            threads: 1,
            gelem_per_s: 0.0,
            gflop_per_s: None,
            bits,
            rounds: Vec::new(),
        };
        Self { row, elements, run: Box::new(run) }
    }

    /// As [`new`](Self::new), of a chunk that has so many bytes.
    fn of(
        chunk: &Chunk,
        (path, op): (&str, &str),
        bytes: Option<usize>,
        run: impl FnMut() -> Result<(), BenchError> + Send + 'a,
    ) -> Self {
        let bits = bytes.map(|bytes| chunk.bits(bytes));
        let mut work = Self::new((path, chunk.kind, op), chunk.elements(), bits, run);
        work.row.rank = chunk.rank();
        work
    }

    /// The row, after the last round.
    fn row(self) -> SpeedRow {
        let mut row = self.row;
        row.gelem_per_s = median(row.rounds.clone());
        let multiplies = matches!(row.op.as_str(), "decode" | "encode_analysis" | "product");
        let rank = row.rank.filter(|_| multiplies && row.path != "zstd_rows");
        row.gflop_per_s = rank.map(|rank| row.gelem_per_s * 2.0 * rank as f64);
        row
    }
}

/// Measures everything in turns, `rounds` times, on one thread unless a row says otherwise.
///
/// # Errors
/// [`BenchError`]: something does not read back what it wrote.
pub fn codec_speed(rounds: usize, progress: &mut dyn FnMut(f32)) -> Result<Vec<SpeedRow>, BenchError> {
    let pool = |threads| ThreadPoolBuilder::new().num_threads(threads).build().map_err(std::io::Error::other);
    let (one, two) = (pool(1)?, pool(2)?);
    let (workload, shipped) = (Workload::new()?, Chunk::shipped()?);
    let peers = Peers::new(&workload.symbols)?;
    let mut bases = vec![basis::unpredicted(&shipped)?];
    for rank in WIDE_RANKS {
        bases.push(basis::wide(&shipped, rank)?);
    }
    bases.push(basis::heads(&shipped)?);
    let (base, direct) = (workload.base, &workload.chunk);
    let (paths, pieces) = (DecodePath::available(), PieceEncoder::available());
    let mut works = decoders(direct, &paths, &[("decode", base), ("decode_refine", Level(base.0 + 1))])?;
    works.extend(encoders(direct, &pieces)?);
    works.push(peers::rows(direct)?);
    works.extend(peers.works());
    works.extend(with_basis(&shipped, &paths, &pieces)?);
    works.push(peers::rows(&shipped)?);
    for chunk in &bases {
        works.extend(with_basis(chunk, &[DecodePath::best()], &[PieceEncoder::best()])?);
    }
    for round in 0..rounds {
        for work in &mut works {
            let pool = if work.row.threads == 1 { &one } else { &two };
            let seconds = pool.install(|| {
                let start = Instant::now();
                (work.run)().map(|()| start.elapsed().as_secs_f64())
            })?;
            work.row.rounds.push(work.elements as f64 / seconds / 1e9);
        }
        progress((round + 1) as f32 / rounds as f32);
    }
    Ok(works.into_iter().map(Work::row).collect())
}

/// All rows of a chunk with a basis, on the given paths.
fn with_basis<'a>(
    chunk: &'a Chunk,
    paths: &[DecodePath],
    pieces: &[PieceEncoder],
) -> Result<Vec<Work<'a>>, BenchError> {
    let levels: Vec<_> =
        (0..chunk.profile.level_count()).map(|level| ("decode", Level(level as u8))).collect();
    let mut works = decoders(chunk, paths, &levels)?;
    works.push(basis::product(chunk)?);
    // Threads share spans: of an odd number one of two has more.
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    if cores > 1 && chunk.spans().count().is_multiple_of(2) {
        let mut two = decoders(chunk, &[DecodePath::best()], &[("decode", chunk.profile.top_level())])?;
        two.extend(encoders(chunk, &[PieceEncoder::best()])?);
        two.iter_mut().for_each(|work| work.row.threads = 2);
        works.extend(two);
    }
    works.extend(encoders(chunk, pieces)?);
    works.extend(basis::stages(chunk)?);
    Ok(works)
}

fn decoders<'a>(
    chunk: &'a Chunk,
    paths: &[DecodePath],
    ops: &[(&str, Level)],
) -> Result<Vec<Work<'a>>, BenchError> {
    let mut works = Vec::new();
    for path in paths {
        let decoder = CpuDecoder::new(chunk.spec.clone(), chunk.profile.clone())?.with_path(*path);
        let decoder = Arc::new(decoder);
        for &(op, level) in ops {
            let decoder = Arc::clone(&decoder);
            let prefix = &chunk.object[..chunk.bytes_at(level)];
            let mut rows = Bf16Buffer::new(&chunk.spec, chunk.tokens.len());
            let run = move || {
                decoder.decode(&chunk.head, prefix, level, 0..chunk.tokens.len(), &mut rows)?;
                black_box(rows.as_slice());
                Ok(())
            };
            let mut work = Work::of(chunk, (path.name(), op), Some(prefix.len()), run);
            work.row.level = Some(level.0);
            works.push(work);
        }
    }
    Ok(works)
}

fn encoders<'a>(chunk: &'a Chunk, pieces: &[PieceEncoder]) -> Result<Vec<Work<'a>>, BenchError> {
    let mut works = Vec::new();
    for pieces in pieces {
        let encoder = CpuEncoder::new(chunk.spec.clone(), chunk.profile.clone())?.with_pieces(*pieces);
        let run = move || {
            black_box(encoder.encode(&chunk.input())?);
            Ok(())
        };
        works.push(Work::of(chunk, (pieces.name(), "encode"), Some(chunk.object.len()), run));
    }
    Ok(works)
}

/// Rows of one path, of a profile and an operation, in order.
fn of<'a>(rows: &'a [SpeedRow], path: &str, profile: &str, op: &str) -> Vec<&'a SpeedRow> {
    rows.iter().filter(|row| row.path == path && row.profile == profile && row.op == op).collect()
}

/// Those of the fastest path that has any, on so many threads.
fn fastest<'a>(rows: &'a [SpeedRow], profile: &str, op: &str, threads: usize) -> Vec<&'a SpeedRow> {
    let paths = ["avx512", "avx2", "neon", "scalar"].into_iter();
    let rows = paths.map(|path| of(rows, path, profile, op)).find(|rows| !rows.is_empty());
    let mut rows = rows.unwrap_or_default();
    rows.retain(|row| row.threads == threads);
    rows
}

/// How many times as fast one row is as another.
fn times_as_fast(row: Option<&SpeedRow>, other: Option<&SpeedRow>) -> Option<f64> {
    let rounds = row?.rounds.iter().zip(&other?.rounds);
    Some(median(rounds.map(|(row, other)| row / other).collect()))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Compares the rows with the targets; targets of paths that this CPU lacks are omitted.
pub fn speed_verdicts(rows: &[SpeedRow]) -> Vec<SpeedVerdict> {
    let rate = |path: &str, op: &str| of(rows, path, "direct", op).first().map(|row| row.gelem_per_s);
    let first = |profile: &str, op: &str| fastest(rows, profile, op, 1).first().copied();
    // Levels ascend, and so do ranks.
    let last = |profile: &str, op: &str, threads: usize| fastest(rows, profile, op, threads).pop();
    let over =
        |peer: &str| times_as_fast(first("direct", "decode"), of(rows, peer, "direct", "decode").pop());
    let finest = |profile: &str, op: &str| last(profile, op, 1).map(|row| row.gelem_per_s);
    let coarsest_over_finest =
        |profile: &str| times_as_fast(first(profile, "decode"), last(profile, "decode", 1));
    let two_over_one = |profile: &str| times_as_fast(last(profile, "decode", 2), last(profile, "decode", 1));
    let gemm = of(rows, "gemm", "basis_wide", "product").pop();
    let targets = [
        ("AVX-512, complete decode", rate("avx512", "decode"), 2.0),
        ("AVX-512, with a trit level on top", rate("avx512", "decode_refine"), 1.2),
        ("AVX2, complete decode", rate("avx2", "decode"), 1.0),
        ("scalar, complete decode", rate("scalar", "decode"), 0.2),
        ("encode", finest("direct", "encode"), 0.5),
        ("complete decode over constriction's range decoder", over("constriction"), 20.0),
        ("complete decode over zstd -1 on one symbol a byte", over("zstd"), 2.0),
        ("complete decode over zstd -1 to bf16 rows", over("zstd_rows"), 2.0),
        ("basis, finest level", finest("basis", "decode"), 0.09),
        ("basis, coarsest level over finest", coarsest_over_finest("basis"), 4.0),
        (
            "basis without its predictor, coarsest level over finest",
            coarsest_over_finest("basis_unpredicted"),
            4.0,
        ),
        ("basis, encode", finest("basis", "encode"), 0.08),
        ("bases of heads, finest level", finest("basis_heads", "decode"), 0.4),
        (
            "rank 1,024, whole decode over gemm's product",
            times_as_fast(last("basis_wide", "decode", 1), gemm),
            0.75,
        ),
        ("rank 1,024, two threads over one", two_over_one("basis_wide"), 1.8),
        ("bases of heads, two threads over one", two_over_one("basis_heads"), 1.8),
    ];
    let verdict = |(target, measured, at_least): (&str, Option<f64>, f64)| {
        let measured = measured?;
        Some(SpeedVerdict { target: target.to_owned(), measured, at_least, pass: measured >= at_least })
    };
    targets.into_iter().filter_map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_rows_in_the_same_round() {
        let row = |path: &str, level: u8, rounds: [f64; 3]| SpeedRow {
            level: Some(level),
            rounds: rounds.to_vec(),
            ..Work::new((path, "basis", "decode"), 0, None, || Ok(())).row()
        };
        // The second round was disturbed: the medians alone would say 4.
        let rows = [
            row("scalar", 0, [9.0; 3]),
            row("avx2", 0, [8.0, 4.0, 10.0]),
            row("avx2", 3, [2.0, 1.0, 5.0]),
            row("avx2", 4, [4.0, 2.0, 2.0]),
        ];
        let verdicts = speed_verdicts(&rows);
        let ratio = verdicts.iter().find(|verdict| verdict.target == "basis, coarsest level over finest");
        assert_eq!(ratio.map(|verdict| (verdict.measured, verdict.pass)), Some((2.0, false)));
    }
}
