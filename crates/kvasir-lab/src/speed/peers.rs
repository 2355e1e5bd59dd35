//! Other entropy coders on the symbols of the base level, which decode symbols only, where ours makes rows; and zstd on rows,
//! whose job is ours but for the loss.

use std::hint::black_box;

use constriction::stream::{
    Decode as _, Encode as _,
    model::DefaultContiguousCategoricalEntropyModel as Model,
    queue::{DefaultRangeDecoder, DefaultRangeEncoder},
};
use half::bf16;

use super::{Work, workload::Chunk};
use crate::BenchError;

/// zstd's lowest level.
const ZSTD_LEVEL: i32 = 1;
/// Rows that are packed together: 256 KiB, which a core's second cache holds.
const PART_ELEMENTS: usize = 1 << 17;

pub(super) struct Peers<'a> {
    symbols: &'a [Vec<u8>],
    total: usize,
    model: Model,
    ranges: Vec<Vec<u32>>,
    zstd: Vec<Vec<u8>>,
}

fn failed(what: &'static str) -> BenchError {
    BenchError::OwnBytes { codec: "constriction", what }
}

impl<'a> Peers<'a> {
    pub(super) fn new(symbols: &'a [Vec<u8>]) -> Result<Self, BenchError> {
        // One table for all: the least work for a coder that is handed a model a symbol.
        let mut counts = [1f64; 16];
        symbols.iter().flatten().for_each(|s| counts[usize::from(*s)] += 1.0);
        let model =
            Model::from_floating_point_probabilities_fast(&counts, None).map_err(|()| failed("its model"))?;
        let ranges = symbols.iter().map(|piece| encode(&model, piece)).collect::<Result<Vec<_>, _>>()?;
        let zstd = symbols.iter().map(|piece| zstd::bulk::compress(piece, ZSTD_LEVEL));
        let zstd = zstd.collect::<Result<Vec<_>, _>>()?;
        let total = symbols.iter().map(Vec::len).sum();
        let peers = Self { symbols, total, model, ranges, zstd };
        let mut back = vec![0; peers.longest()];
        for (range, piece) in peers.ranges.iter().zip(symbols) {
            decode(&peers.model, range, &mut back[..piece.len()])?;
            if back[..piece.len()] != piece[..] {
                return Err(failed("the decoded symbols differ"));
            }
        }
        Ok(peers)
    }

    fn longest(&self) -> usize {
        self.symbols.iter().map(Vec::len).max().unwrap_or(0)
    }

    pub(super) fn works(&self) -> Vec<Work<'_>> {
        let bits = |bytes: usize| bytes as f64 * 8.0 / self.total.max(1) as f64;
        let range_bits = bits(self.ranges.iter().map(|r| 4 * r.len()).sum());
        let zstd_bits = bits(self.zstd.iter().map(Vec::len).sum());
        let (mut range_out, mut zstd_out) = (vec![0; self.longest()], vec![0; self.longest()]);
        let range_decode = move || {
            for (range, piece) in self.ranges.iter().zip(self.symbols) {
                decode(&self.model, range, &mut range_out[..piece.len()])?;
                black_box(&range_out);
            }
            Ok(())
        };
        let range_encode = move || {
            self.symbols
                .iter()
                .try_for_each(|piece| encode(&self.model, piece).map(|out| drop(black_box(out))))
        };
        let zstd_decode = move || {
            for piece in &self.zstd {
                zstd::bulk::decompress_to_buffer(piece, &mut zstd_out[..])?;
                black_box(&zstd_out);
            }
            Ok(())
        };
        let zstd_encode = move || {
            for piece in self.symbols {
                black_box(zstd::bulk::compress(piece, ZSTD_LEVEL)?);
            }
            Ok(())
        };
        vec![
            Work::new(("constriction", "direct", "decode"), self.total, Some(range_bits), range_decode),
            Work::new(("constriction", "direct", "encode"), self.total, Some(range_bits), range_encode),
            Work::new(("zstd", "direct", "decode"), self.total, Some(zstd_bits), zstd_decode),
            Work::new(("zstd", "direct", "encode"), self.total, Some(zstd_bits), zstd_encode),
        ]
    }
}

/// A chunk's rows in bf16 by byte planes, high bytes first: from what zstd made of them to rows again.
pub(super) fn rows(chunk: &Chunk) -> Result<Work<'_>, BenchError> {
    let rows: Vec<bf16> = chunk.kv.as_slice().iter().map(|x| bf16::from_f32(*x)).collect();
    let packed = rows.chunks(PART_ELEMENTS).map(|rows| zstd::bulk::compress(&split(rows), ZSTD_LEVEL));
    let packed = packed.collect::<Result<Vec<_>, _>>()?;
    let (mut bytes, mut out) = (vec![0; 2 * PART_ELEMENTS], vec![bf16::ZERO; rows.len()]);
    unpack(&packed, &mut bytes, &mut out)?;
    if out != rows {
        return Err(BenchError::OwnBytes { codec: "zstd", what: "the decoded rows differ" });
    }
    let stored = packed.iter().map(Vec::len).sum();
    let run = move || {
        unpack(&packed, &mut bytes, &mut out)?;
        black_box(&out);
        Ok(())
    };
    Ok(Work::of(chunk, ("zstd_rows", "decode"), Some(stored), run))
}

fn split(rows: &[bf16]) -> Vec<u8> {
    let bytes = |at: usize| rows.iter().map(move |x| x.to_bits().to_be_bytes()[at]);
    bytes(0).chain(bytes(1)).collect()
}

/// The inverse of compressing every part of [`split`] rows.
fn unpack(packed: &[Vec<u8>], bytes: &mut [u8], rows: &mut [bf16]) -> Result<(), BenchError> {
    for (packed, rows) in packed.iter().zip(rows.chunks_mut(PART_ELEMENTS)) {
        let bytes = &mut bytes[..2 * rows.len()];
        zstd::bulk::decompress_to_buffer(packed, bytes)?;
        let (high, low) = bytes.split_at(rows.len());
        for ((row, high), low) in rows.iter_mut().zip(high).zip(low) {
            *row = bf16::from_bits(u16::from_be_bytes([*high, *low]));
        }
    }
    Ok(())
}

fn encode(model: &Model, symbols: &[u8]) -> Result<Vec<u32>, BenchError> {
    let mut encoder = DefaultRangeEncoder::new();
    encoder
        .encode_iid_symbols(symbols.iter().map(|s| usize::from(*s)), model)
        .map_err(|_| failed("a symbol without probability"))?;
    Ok(encoder.into_compressed().unwrap_or_else(|never| match never {}))
}

fn decode(model: &Model, words: &[u32], out: &mut [u8]) -> Result<(), BenchError> {
    let mut decoder =
        DefaultRangeDecoder::from_compressed(words.to_vec()).unwrap_or_else(|never| match never {});
    let count = out.len();
    for (out, symbol) in out.iter_mut().zip(decoder.decode_iid_symbols(count, model)) {
        *out = symbol.map_err(|_| failed("its words"))? as u8;
    }
    Ok(())
}
