//! The first and last stages of the encoder, for encoders whose middle stages run elsewhere (the
//! `kvasir-cuda` crate): scopes as flat data before them, pieces to an object after them.

use kvasir_types::{ModelSpec, SPAN_TOKENS};

use super::{CpuEncoder, check_input, span::SpanPieces};
use crate::{
    ChunkInput, EncodeError, EncodeReport, Profile, ScopeView, decoder::view_of, exact_piece, matrix::Matrix,
};

/// The pieces of one scope and span; `None` is absent.
#[derive(Debug, Clone, Default)]
pub struct CodedSpan {
    /// The output of [`CpuEncoder::exact_piece`]: for the chunk's exact tokens, or for the whole span.
    pub exact: Option<Vec<u8>>,
    /// The anchors.
    pub anchors: Option<Vec<u8>>,
    /// One entry per level. All absent if the whole span is exact.
    pub levels: Vec<Option<Vec<u8>>>,
    /// Whether the whole span is exact because a value was not finite or out of range.
    pub forced_exact: bool,
}

impl CpuEncoder {
    /// The model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Scopes of the profile.
    pub fn scope_count(&self) -> usize {
        self.scopes.len()
    }

    /// A scope as flat data; `None` if the profile has no such scope.
    pub fn scope_view(&self, scope: usize) -> Option<ScopeView<'_>> {
        Some(view_of(&self.scopes.get(scope)?.prepared, self.profile.scopes.get(scope)?))
    }

    /// The analysis matrix of a scope, `[coefficient][element]`; `None` if coefficients are elements.
    pub fn analysis_matrix(&self, scope: usize) -> Option<&[f32]> {
        match &self.scopes.get(scope)?.analysis {
            Matrix::Identity => None,
            Matrix::Dense(matrix) => Some(matrix),
        }
    }

    /// Tokens at the start of the chunk that are stored exactly, after its shape was checked.
    ///
    /// # Errors
    /// [`EncodeError::Tokens`], [`EncodeError::KlBeneath`].
    pub fn exact_prefix(&self, input: &ChunkInput<'_>) -> Result<usize, EncodeError> {
        check_input(input)?;
        Ok(self.exact_tokens(input))
    }

    /// The piece that holds `rows` exactly: `[member][token][element]` of the first `tokens` tokens of a
    /// span.
    ///
    /// # Errors
    /// [`EncodeError::Value`].
    pub fn exact_piece(&self, tokens: usize, rows: &[f32]) -> Result<Vec<u8>, EncodeError> {
        exact_piece::encode(self.exact_dtype, tokens, rows.iter().copied())
    }

    /// Puts pieces, `[scope][span]`, together as [`encode`](crate::ChunkEncoder::encode) does. `input.kv` is not read.
    ///
    /// # Errors
    /// As [`encode`](crate::ChunkEncoder::encode).
    ///
    /// # Panics
    /// Where `coded` has not one entry a scope and span, or an entry not one piece a lossy level.
    pub fn assemble_spans(
        &self,
        input: &ChunkInput<'_>,
        coded: Vec<CodedSpan>,
    ) -> Result<(Vec<u8>, EncodeReport), EncodeError> {
        check_input(input)?;
        let spans = input.tokens.len().div_ceil(SPAN_TOKENS);
        assert_eq!(coded.len(), spans * self.scopes.len(), "one entry a scope and span");
        assert!(coded.iter().all(|span| span.levels.len() == self.profile.lossy_levels()));
        let forced = coded.iter().enumerate().filter(|(_, span)| span.forced_exact);
        let exact_spans = forced.map(|(index, _)| (index / spans, index % spans)).collect();
        let pieces = coded.into_iter().map(|span| SpanPieces {
            exact: span.exact,
            anchors: span.anchors,
            levels: span.levels,
            lossless: None,
            forced_exact: span.forced_exact,
            errors: None,
        });
        let object = self.assemble(input, spans, pieces.collect())?;
        Ok((object, EncodeReport { exact_spans }))
    }
}
