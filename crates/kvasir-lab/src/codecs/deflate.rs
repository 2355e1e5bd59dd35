//! Our symbols through Deflate: the value of the entropy coder alone.
//!
//! Same transform, same quantiser, same head and exact tokens. The values of a level's coded pieces are
//! written instead as one byte each, coefficient by coefficient over the whole chunk, in one Deflate stream
//! at its best setting. This favours Deflate: one stream for everything, no checksums per piece, and each
//! level is stored alone, not nested.

use std::io::{Read as _, Write as _};

use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};
use kvasir_codec::{
    PredictorView,
    rans::{PieceDecoder, PiecePlan},
};
use kvasir_container::Head;
use kvasir_types::Level;

use super::{Chunk, Coded, KvCodec, ProfileCodec};
use crate::BenchError;

/// The symbols of a [`ProfileCodec`] through Deflate.
#[derive(Debug)]
pub struct SymbolsThroughDeflate<'a>(pub &'a ProfileCodec);

/// Deflates at the best setting.
pub(crate) fn deflate(bytes: &[u8]) -> Result<Vec<u8>, BenchError> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// The inverse of [`deflate`].
pub(crate) fn inflate(bytes: &[u8]) -> Result<Vec<u8>, BenchError> {
    let mut out = Vec::new();
    DeflateDecoder::new(bytes).read_to_end(&mut out)?;
    Ok(out)
}

/// Appends a value as one byte, or as 255 and four bytes if it is beyond ±127.
fn put(value: i32, out: &mut Vec<u8>) {
    let zigzag = (value << 1 ^ value >> 31) as u32;
    match u8::try_from(zigzag) {
        Ok(byte) if byte < u8::MAX => out.push(byte),
        _ => {
            out.push(u8::MAX);
            out.extend_from_slice(&zigzag.to_le_bytes());
        }
    }
}

impl SymbolsThroughDeflate<'_> {
    /// Bytes of a level: everything of the object's prefix but the coded pieces, and their values deflated.
    fn level_bytes(&self, head: &Head, object: &[u8], level: Level) -> Result<u64, BenchError> {
        let decoder = self.0.decoder();
        let bank = decoder.profile().bank();
        let tokens = head.tokens.len();
        let scopes: Vec<_> = (0..decoder.scope_count()).map(|scope| (scope, level)).collect();
        let (mut values, mut replaced) = (vec![Vec::new(); scopes.len()], 0u64);
        for span in decoder.scope_spans(head, object, &scopes, 0..tokens)? {
            let Some(view) = decoder.scope_view(span.scope) else { continue };
            if matches!(view.predictor, PredictorView::Anchors { .. }) {
                return Err(BenchError::Unsupported { what: "anchors through Deflate" });
            }
            let count = span.tokens.len();
            let mut rows = vec![0i32; view.rank * count];
            for ((coefficients, codings), piece) in view.levels.iter().zip(&span.levels) {
                let bytes = piece.map_or(&[][..], |(_, bytes)| bytes);
                replaced += bytes.len() as u64;
                let mut ordered: Vec<i32> = Vec::with_capacity(codings.len() * count);
                coefficients.iter().for_each(|c| ordered.extend(&rows[c * count..(c + 1) * count]));
                let plan = PiecePlan { coefficients: codings, tokens: count };
                PieceDecoder::best().decode_piece(bank, &plan, bytes, &mut ordered)?;
                for (c, row) in coefficients.iter().zip(ordered.chunks_exact(count)) {
                    rows[c * count..(c + 1) * count].copy_from_slice(row);
                }
            }
            // coefficient-major over the whole chunk: neighbours in the stream are neighbours in time
            let of_scope: &mut Vec<Vec<i32>> = &mut values[span.scope];
            of_scope.resize_with(view.rank, Vec::new);
            of_scope.iter_mut().zip(rows.chunks_exact(count)).for_each(|(all, row)| all.extend(row));
        }
        let mut symbols = Vec::new();
        values.iter().flatten().flatten().for_each(|value| put(*value, &mut symbols));
        let deflated = deflate(&symbols)?;
        if inflate(&deflated)? != symbols {
            return Err(BenchError::OwnBytes { codec: "kvasir_deflate", what: "inflating" });
        }
        let prefix = head.level_bytes(level).unwrap_or(object.len() as u64);
        Ok(prefix - replaced + deflated.len() as u64)
    }
}

impl KvCodec for SymbolsThroughDeflate<'_> {
    fn name(&self) -> &'static str {
        "kvasir_deflate"
    }

    fn variant(&self) -> &str {
        self.0.variant()
    }

    fn levels(&self) -> usize {
        self.0.levels()
    }

    fn profile_bytes(&self) -> u64 {
        self.0.profile_bytes()
    }

    fn code(&self, chunk: &Chunk<'_>) -> Result<Vec<Coded>, BenchError> {
        let object = self.0.encode(chunk)?;
        let head = Head::parse(&object)?;
        let level = |level: usize| {
            let level = Level(level as u8);
            let coded = self.0.decode(chunk.spec, &object, level)?;
            Ok(Coded { bytes: self.level_bytes(&head, &object, level)?, ..coded })
        };
        (0..self.levels()).map(level).collect()
    }
}
