//! Tasks of the exact level: differences to cells, cells and raw bits to patterns, patterns to pages.

use kvasir_codec::{CpuDecoder, DecodeError, LosslessBytes};
use kvasir_kernels::{CellTask, Dtype, NONE, PatternTask, ScatterTask, Stream};
use kvasir_types::KvDtype;

use super::{DecodeBatch, DecodeSite};
use crate::{
    CudaError,
    lower::{StreamName, lower},
    resident::index_u32,
};

/// Raw bits are no stream of their piece: their errors come after those of its streams.
const RAW_BITS: usize = usize::MAX;

impl<'a> DecodeBatch<'a> {
    /// Adds a scope of a span at the exact level. Heads of other ranks are decoded too: where a value's raw bits begin
    /// depends on all values before it.
    pub(super) fn lossless_tasks(
        &mut self,
        cpu: &CpuDecoder,
        site: &DecodeSite<'_, 'a>,
        piece: &LosslessBytes<'a>,
        text: (&[u32], Option<u32>),
    ) -> Result<(), CudaError> {
        let span = site.span;
        let (Some(offsets), Some(dtype)) = (&site.offsets.lossless, pattern_dtype(cpu.spec().kv_dtype))
        else {
            return Err(DecodeError::Exact { scope: span.scope, span: span.span }.into());
        };
        let dtype = dtype as u32;
        let values =
            if span.levels.is_empty() { NONE } else { self.main_to_scratch(cpu, site, site.tokens)? };
        let cells = self.scratch(site, site.tokens)?;
        let coded = (piece.section, piece.coded);
        let placed = self.piece(cpu, site, Some(coded), &offsets.codings, site.tokens)?;
        let lowered = lower(&offsets.plan, span.span, site.tokens, &[placed]);
        self.decode_tasks(&lowered, site, offsets.first_coding, cells)?;

        let raw = self.bytes.push(piece.raw)?;
        let stream = index_u32(self.streams.len())?;
        self.streams.push(Stream { states: NONE, words: raw, word_count: piece.raw.len() as u32, end: 0 });
        let name = StreamName { section: piece.section, span: span.span, piece: raw, stream: RAW_BITS };
        self.names.push(Some((site.request, span.scope, name)));

        let known = span.exact.map_or(0, |(tokens, _)| tokens) as u32;
        let floors = offsets.floors;
        self.patterns.push(PatternTask {
            stream,
            cells,
            floors,
            elements: site.view.mean.len() as u32,
            tokens: site.tokens as u32,
            known,
            dtype,
            reserved: 0,
        });
        let predictor = self.text_predictor(site, text)?;
        let parts = self.head_parts(site, ScatterTask { values, ..predictor });
        self.cells.extend(parts.into_iter().map(|beneath| CellTask { beneath, cells, floors, known, dtype }));
        Ok(())
    }
}

/// The type of a cache's patterns; `None` if no exact level has it.
fn pattern_dtype(dtype: KvDtype) -> Option<Dtype> {
    match dtype {
        KvDtype::Bf16 => Some(Dtype::Bf16),
        KvDtype::F16 => Some(Dtype::F16),
        KvDtype::Fp8E4m3 => Some(Dtype::Fp8E4m3),
        KvDtype::F32 | KvDtype::Int8 => None,
    }
}
