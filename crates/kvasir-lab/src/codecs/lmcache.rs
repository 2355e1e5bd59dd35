//! The CacheGen variant that LMCache ships (0.5.6, in-process engine): one scale a token, 31 or 15 levels, no anchors,
//! tables of the chunk itself, one stream a channel.
//!
//! Bytes are counted as its object holds them: 16-bit tables (33 entries as shipped) for every (plane, layer, channel), a 4-byte
//! length for every stream of 256 tokens, 16-bit scales, and the pickle around them at [`PICKLE_BYTES`].
//! Its bins are one fixed table; here they are swept by a factor.

use half::f16;
use kvasir_codec::KvBuffer;
use kvasir_types::{LevelError, Plane};

use super::{Chunk, Coded, KvCodec, arithmetic, channels, planes, set_channels};
use crate::BenchError;

/// Tokens of a GPU stream (`CACHEGEN_GPU_MAX_TOKENS_PER_CHUNK`).
const STREAM_TOKENS: usize = 256;
/// Overhead of pickle and torch's storage headers per object: class and field names, five tensors of about
/// 150 bytes each. A low estimate.
const PICKLE_BYTES: u64 = 1_000;

/// One rung of the sweep: half the levels of its "32 bins" layers (31 levels), and of its "16 bins" layers.
const RUNGS: [(i32, i32); 9] = [(1, 1), (2, 1), (3, 1), (5, 2), (7, 3), (10, 5), (15, 7), (22, 11), (31, 15)];

/// The LMCache variant, swept over its bins.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lmcache;

impl Lmcache {
    /// Half the levels, by LMCache's table for models it does not know: below ten layers all layers have 32 bins.
    fn half_levels(rung: usize, layers: usize, layer: usize, plane: Plane) -> i32 {
        let (wide, narrow) = RUNGS[rung];
        let is_wide = match plane {
            Plane::K => layers < 10 || layer < 10,
            Plane::V => layers < 10 || layer < 2,
        };
        if is_wide { wide } else { narrow }
    }
}

/// A plane's symbols `[token][channel]` and stored scales.
fn quantise(rows: &[f32], width: usize, half: i32) -> (Vec<u8>, Vec<f16>) {
    let mut symbols = Vec::with_capacity(rows.len());
    let mut scales = Vec::with_capacity(rows.len() / width);
    for row in rows.chunks_exact(width) {
        let most = f16::from_f32(row.iter().fold(0f32, |most, x| most.max(x.abs())));
        // the original divides by zero here
        let factor = if most.to_f32() > 0.0 { half as f32 / most.to_f32() } else { 0.0 };
        scales.push(most);
        symbols.extend(row.iter().map(|x| {
            let q = (x * factor).round_ties_even() as i32;
            (q.clamp(-half, half) + half) as u8
        }));
    }
    (symbols, scales)
}

/// Entries of a stored table, whatever its layer's bins: the most bins of any layer and one more (33 as shipped).
fn table_entries(rung: usize) -> usize {
    2 * RUNGS[rung].0 as usize + 3
}

/// A channel's table as stored: `cdf[i] = (0xFFFF − bins) · count / tokens + i`.
fn table(symbols: impl Iterator<Item = u8>, tokens: usize, entries: usize) -> Vec<u16> {
    let mut counts = vec![0usize; entries];
    symbols.for_each(|s| counts[usize::from(s)] += 1);
    let mut table = vec![0; entries];
    let mut sum = 0;
    for i in 1..entries {
        sum += counts[i - 1];
        table[i] = ((0xffff - (entries - 1)) * sum / tokens + i) as u16;
    }
    table
}

impl KvCodec for Lmcache {
    fn name(&self) -> &'static str {
        "lmcache"
    }

    fn levels(&self) -> usize {
        RUNGS.len()
    }

    fn code(&self, chunk: &Chunk<'_>) -> Result<Vec<Coded>, BenchError> {
        let layers = chunk.spec.layers.len();
        let tokens = chunk.tokens.len();
        let rung = |rung: usize| {
            let mut kv = KvBuffer::new(chunk.spec, tokens);
            let mut bytes = PICKLE_BYTES;
            for (layer, plane, width) in planes(chunk.spec) {
                let half = Self::half_levels(rung, layers, layer, plane);
                let rows = channels(chunk.spec, chunk.kv, layer, plane);
                let (symbols, scales) = quantise(&rows, width, half);
                let entries = table_entries(rung);
                let (streams, back) = code_channels(&symbols, (width, tokens), entries);
                // streams, their lengths, tables, scales
                bytes += (streams + 4 * width * tokens.div_ceil(STREAM_TOKENS)) as u64;
                bytes += (2 * width * entries + 2 * scales.len()) as u64;
                let mut rows = Vec::with_capacity(rows.len());
                for (row, scale) in back.chunks_exact(width).zip(&scales) {
                    rows.extend(
                        row.iter().map(|q| (i32::from(*q) - half) as f32 / half as f32 * scale.to_f32()),
                    );
                }
                set_channels(chunk.spec, &mut kv, layer, plane, &rows);
            }
            Coded { bytes, error: LevelError::UNKNOWN, kv }
        };
        Ok((0..RUNGS.len()).map(rung).collect())
    }
}

/// Bytes of all streams, and the symbols decoded from them.
fn code_channels(symbols: &[u8], (width, tokens): (usize, usize), entries: usize) -> (usize, Vec<u8>) {
    let mut back = vec![0; symbols.len()];
    let mut total = 0;
    for channel in 0..width {
        let of_channel = |from: usize| symbols[from * width + channel..].iter().step_by(width).copied();
        let table = table(of_channel(0), tokens, entries);
        for first in (0..tokens).step_by(STREAM_TOKENS) {
            let count = STREAM_TOKENS.min(tokens - first);
            let mut bytes = Vec::new();
            arithmetic::encode(&table, of_channel(first).take(count).map(usize::from), &mut bytes);
            let mut at = first * width + channel;
            arithmetic::decode(&table, &bytes, count, |symbol| {
                back[at] = symbol as u8;
                at += width;
            });
            total += bytes.len();
        }
    }
    (total, back)
}
