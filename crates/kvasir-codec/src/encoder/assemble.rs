//! A chunk's pieces, in fetch order, to its object.

use kvasir_container::{ChunkBuilder, ChunkMeta, Measured, SectionId};
use kvasir_types::{Level, Loss};

use super::{CpuEncoder, measure, span::SpanPieces};
use crate::{
    ChunkInput, EncodeError,
    prepared_scope::{BAND_ANCHORS, BAND_EXACT, BAND_LOSSLESS, BAND_MAIN},
};

impl CpuEncoder {
    /// Puts the pieces into fetch order.
    pub(super) fn assemble(
        &self,
        input: &ChunkInput<'_>,
        spans: usize,
        mut coded: Vec<SpanPieces>,
    ) -> Result<Vec<u8>, EncodeError> {
        let meta = ChunkMeta {
            model_id: self.profile.model_id(),
            profile_hash: self.profile.hash(),
            link: input.link,
            first_position: input.first_position,
            preceding_token: input.preceding_token,
            level_count: self.profile.level_count() as u8,
            exact_tokens: self.exact_tokens(input) as u8,
            kl_beneath: input.beneath.kl as f32,
        };
        let mut builder = ChunkBuilder::new(meta, input.tokens.to_vec())?;
        let errors: Vec<_> = coded.iter_mut().map(|pieces| pieces.errors.take()).collect();
        if let Some(levels) = measure::measured(&self.spec, &self.profile, spans, &errors) {
            let Loss { error: beneath, hops, .. } = input.beneath;
            builder.extension(&Measured { beneath, hops, levels }.to_extension())?;
        }
        for level in 0..self.profile.level_count() {
            let length = |pieces: &SpanPieces| pieces.at(level).map_or(0, Vec::len);
            let bytes: Vec<usize> = coded.chunks_exact(spans).map(|c| c.iter().map(length).sum()).collect();
            for scope in self.fetch_order(level, &bytes) {
                let coded = &mut coded[scope * spans..(scope + 1) * spans];
                let id = |band| SectionId { scope: scope as u16, band, level: Level(level as u8), flags: 0 };
                if level == 0 {
                    if coded.iter().any(|pieces| pieces.exact.is_some()) {
                        builder
                            .section(id(BAND_EXACT), coded.iter_mut().map(|p| p.exact.take()).collect())?;
                    }
                    if !self.scopes[scope].prepared.anchors.codings.is_empty() {
                        let anchors = coded.iter_mut().map(|p| p.anchors.take()).collect();
                        builder.section(id(BAND_ANCHORS), anchors)?;
                    }
                }
                let (band, pieces) = if level < self.profile.lossy_levels() {
                    (BAND_MAIN, coded.iter_mut().map(|p| p.levels[level].take()).collect())
                } else {
                    (BAND_LOSSLESS, coded.iter_mut().map(|p| p.lossless.take()).collect())
                };
                builder.section(id(band), pieces)?;
            }
        }
        Ok(builder.finish()?)
    }

    /// Scopes in fetch order: by layer in level 0; in higher levels by the predicted loss that a byte
    /// removes, so that a reader who stops between two levels gets the best quality.
    fn fetch_order(&self, level: usize, bytes: &[usize]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.scopes.len()).collect();
        if level > 0 {
            let gain = |scope: usize| {
                let loss = &self.profile.scopes[scope].loss;
                (loss[level - 1] - loss[level]) / bytes[scope].max(1) as f32
            };
            order.sort_by(|a, b| gain(*b).total_cmp(&gain(*a)).then(a.cmp(b)));
        }
        order
    }
}
