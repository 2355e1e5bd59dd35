//! One scope of one span: from its rows to its pieces.

use super::{
    CpuEncoder, EncoderScope,
    measure::ScopeErrors,
    quantise::{QuantisedSpan, direct_values, finest_values, quantise},
};
use crate::{
    ChunkInput, EncodeError,
    direct_rows::quantise_tiles::QuantiseTarget,
    exact_piece,
    lossless::{self, float_of},
    matrix::Matrix,
    prepared_scope::{PreparedScope, SectionPlan, rows_beneath},
    profile::{Predictor, Scope},
    rans::{FinestValues, LevelRows, PieceError, PiecePlan},
    span_ropes::SpanRopes,
};

/// The pieces of one scope and span; `None` is absent.
#[derive(Debug, Default)]
pub(super) struct SpanPieces {
    pub(super) exact: Option<Vec<u8>>,
    pub(super) anchors: Option<Vec<u8>>,
    pub(super) levels: Vec<Option<Vec<u8>>>,
    pub(super) lossless: Option<Vec<u8>>,
    pub(super) forced_exact: bool,
    /// The errors of the lossy levels, if measured.
    pub(super) errors: Option<ScopeErrors>,
}

impl SpanPieces {
    /// The piece of a level, lossy or exact.
    pub(super) fn at(&self, level: usize) -> Option<&Vec<u8>> {
        self.levels.get(level).map_or(self.lossless.as_ref(), Option::as_ref)
    }

    /// Drops the piece of the finest level, if the errors without it are known; they are then the span's.
    pub(super) fn leave_out_finest(&mut self) {
        let errors = self.errors.as_mut().filter(|errors| errors.finest_left_out().is_some());
        if let (Some(errors), Some(finest)) = (errors, self.levels.last_mut()) {
            errors.leave_out_finest();
            *finest = None;
        }
    }
}

/// One scope of one span of an input.
pub(super) struct SpanJob<'a> {
    pub(super) encoder: &'a CpuEncoder,
    pub(super) prepared: &'a PreparedScope,
    pub(super) analysis: &'a Matrix,
    pub(super) synthesis: &'a Matrix,
    pub(super) scope: &'a Scope,
    pub(super) input: &'a ChunkInput<'a>,
    pub(super) ropes: &'a SpanRopes<'a>,
    /// Tokens at the start of the span that are stored exactly.
    pub(super) exact: usize,
}

impl<'a> SpanJob<'a> {
    /// A scope, by its index, of the span that the ropes are of.
    pub(super) fn new(
        encoder: &'a CpuEncoder,
        scope: usize,
        input: &'a ChunkInput<'a>,
        ropes: &'a SpanRopes<'a>,
    ) -> Self {
        let EncoderScope { prepared, analysis, synthesis } = &encoder.scopes[scope];
        let exact = encoder.exact_tokens(input).saturating_sub(ropes.span.start).min(ropes.tokens());
        let scope = &encoder.profile.scopes[scope];
        Self { encoder, prepared, analysis, synthesis, scope, input, ropes, exact }
    }

    /// Its pieces and their errors. If a value is not finite or out of range, the whole span is stored
    /// exactly.
    ///
    /// # Errors
    /// [`EncodeError`] if a piece would exceed the format's limits, or a value the range of the cache's type.
    pub(super) fn pieces(&self) -> Result<SpanPieces, EncodeError> {
        let mut pieces = self.coded()?;
        pieces.errors = match pieces.forced_exact {
            true => Some(ScopeErrors::exact(self.prepared)),
            false => ScopeErrors::of(self),
        };
        Ok(pieces)
    }

    fn coded(&self) -> Result<SpanPieces, EncodeError> {
        if self.prepared.levels.is_empty() {
            // Nothing but the exact level.
            return Ok(match self.lossless(None)? {
                None => self.all_exact()?,
                lossless => SpanPieces { exact: self.exact_prefix()?, lossless, ..SpanPieces::default() },
            });
        }
        if let Some(pieces) = self.pieces_of_blocks()? {
            return Ok(pieces);
        }
        let Some(values) = self.values() else { return self.all_exact() };
        let mut lossless = None;
        if self.scope.lossless.is_some() {
            lossless = self.lossless(Some(&finest_values(self.scope, self.prepared, &values)))?;
            if lossless.is_none() {
                return self.all_exact();
            }
        }
        let mut blocks = self.encoder.blocks.take();
        let narrow = self.encoder.pieces.takes_blocks()
            && values.main_tokens > 0
            && blocks.fill(values.main_tokens, &values.main);
        let fine = if narrow { FinestValues::Narrow(&blocks) } else { FinestValues::Wide(&values.main) };
        let anchors = FinestValues::Wide(&values.anchors);
        let pieces = SpanPieces {
            exact: self.exact_prefix()?,
            anchors: self.section(&self.prepared.anchors, anchors, values.anchor_tokens, 0)?,
            levels: self.levels(fine, values.main_tokens)?,
            lossless,
            ..SpanPieces::default()
        };
        self.encoder.values.give(values.main);
        self.encoder.blocks.give(blocks);
        Ok(pieces)
    }

    /// The pieces of a direct scope whose values are converted from rows to blocks of 16 bits in one pass;
    /// `None` if the scope is not direct, the encoder does not support blocks, or a value does not fit.
    fn pieces_of_blocks(&self) -> Result<Option<SpanPieces>, EncodeError> {
        if !self.is_direct() || !self.encoder.pieces.takes_blocks() || self.scope.lossless.is_some() {
            return Ok(None);
        }
        let tokens = self.ropes.tokens();
        let mut blocks = self.encoder.blocks.take();
        blocks.reset(self.prepared.elements.count(), tokens);
        let fit = self.direct_values(QuantiseTarget::Narrow(&mut blocks, 0));
        let levels = fit.then(|| self.levels(FinestValues::Narrow(&blocks), tokens)).transpose()?;
        self.encoder.blocks.give(blocks);
        let Some(levels) = levels else { return Ok(None) };
        Ok(Some(SpanPieces { exact: self.exact_prefix()?, levels, ..SpanPieces::default() }))
    }

    /// Whether coefficients are elements, and predicted by their mean.
    fn is_direct(&self) -> bool {
        matches!((self.analysis, &self.scope.predictor), (Matrix::Identity, Predictor::Mean))
    }

    /// As [`direct_values`].
    fn direct_values(&self, to: QuantiseTarget<'_>) -> bool {
        direct_values(self.prepared, &self.scope.mean, self.ropes, self.exact, self.input.kv, to)
    }

    /// Values at the finest level; `None` if one is not finite or out of range.
    fn values(&self) -> Option<QuantisedSpan> {
        let tokens = self.ropes.tokens();
        if self.is_direct() {
            let mut main = self.encoder.values.take();
            main.resize(self.prepared.elements.count() * tokens, 0);
            let fit = self.direct_values(QuantiseTarget::Wide(&mut main));
            return fit.then_some(QuantisedSpan {
                anchors: Vec::new(),
                anchor_tokens: 0,
                main,
                main_tokens: tokens,
            });
        }
        let (mut raw, finite) = self.read(tokens);
        if !finite {
            return None;
        }
        let mut elements = vec![0.0; tokens * self.analysis.stride(self.prepared.elements.count())];
        let rotations = self.ropes.rotations();
        self.prepared.elements.normalise(&self.scope.mean, rotations, tokens, &mut raw, &mut elements);
        let mut coefficients = vec![0.0; self.scope.rank() * tokens];
        self.analysis.analyse(tokens, &elements, &mut coefficients);
        let (text, preceding) = (self.input.tokens, self.input.preceding_token);
        let predictions = self.prepared.text.predict(self.scope, text, preceding, &self.ropes.span);
        quantise(self.scope, tokens, self.exact, &coefficients, predictions)
    }

    /// Rows of the span's first tokens, `[member][token][element]`, and whether all are finite.
    fn read(&self, tokens: usize) -> (Vec<f32>, bool) {
        let mut raw = Vec::new();
        let start = self.ropes.span.start;
        let finite = self.prepared.elements.read(self.input.kv, &(start..start + tokens), &mut raw);
        (raw, finite)
    }

    /// The piece that holds the span's first tokens exactly.
    fn exact_piece(&self, tokens: usize) -> Result<Vec<u8>, EncodeError> {
        let ((raw, _), whole) = (self.read(tokens), 0..tokens);
        // A profile with an exact level stores bit for bit, or not at all.
        if self.scope.lossless.is_some() {
            self.check_held(&raw)?;
        }
        let members = self.prepared.elements.members(tokens, &whole, &raw);
        exact_piece::encode(self.encoder.exact_dtype, tokens, members.flat_map(|m| m.rows.values()))
    }

    /// The piece of the exact tokens; `None` if there are none.
    fn exact_prefix(&self) -> Result<Option<Vec<u8>>, EncodeError> {
        (self.exact > 0).then(|| self.exact_piece(self.exact)).transpose()
    }

    /// The whole span, stored exactly.
    fn all_exact(&self) -> Result<SpanPieces, EncodeError> {
        Ok(SpanPieces {
            exact: Some(self.exact_piece(self.ropes.tokens())?),
            levels: vec![None; self.prepared.levels.len()],
            forced_exact: true,
            ..SpanPieces::default()
        })
    }

    /// As [`all_exact`](Self::all_exact), for a span whose values the cache's type can hold; `None`
    /// otherwise.
    ///
    /// # Errors
    /// As [`pieces`](Self::pieces).
    pub(super) fn exactly(&self) -> Result<Option<SpanPieces>, EncodeError> {
        let (rows, _) = self.read(self.ropes.tokens());
        let holds = rows.iter().all(|value| self.encoder.exact_dtype.holds(*value));
        let errors = Some(ScopeErrors::exact(self.prepared));
        holds.then(|| Ok(SpanPieces { errors, ..self.all_exact()? })).transpose()
    }

    /// Refuses rows with a value that the cache's type would round.
    fn check_held(&self, rows: &[f32]) -> Result<(), EncodeError> {
        let unheld = rows.iter().find(|value| !self.encoder.exact_dtype.holds(**value));
        unheld.map_or(Ok(()), |value| Err(EncodeError::Value { value: value.to_string() }))
    }

    /// The piece of every lossy level, coarsest first.
    fn levels(&self, fine: FinestValues<'_>, tokens: usize) -> Result<Vec<Option<Vec<u8>>>, PieceError> {
        let top = self.prepared.levels.len().saturating_sub(1);
        let level =
            |(level, plan): (usize, &SectionPlan)| self.section(plan, fine, tokens, (top - level) as u32);
        self.prepared.levels.iter().enumerate().map(level).collect()
    }

    /// The piece of a section whose values are `up` levels below `fine`; `None` if it would be empty.
    fn section(
        &self,
        plan: &SectionPlan,
        fine: FinestValues<'_>,
        tokens: usize,
        up: u32,
    ) -> Result<Option<Vec<u8>>, PieceError> {
        if tokens == 0 || plan.codings.is_empty() {
            return Ok(None);
        }
        let mut piece = Vec::new();
        let rows = LevelRows { fine, tokens, listed: Some(&plan.coefficients), up };
        let codings = PiecePlan { coefficients: &plan.codings, tokens };
        self.encoder.pieces.encode_rows(&self.encoder.profile.bank, &codings, &rows, &mut piece)?;
        Ok((!piece.is_empty()).then_some(piece))
    }

    /// The piece of the exact level over the values of the levels beneath (`values`, if any); `None` if the
    /// scope has no such level, or the cache's type cannot hold the rows.
    fn lossless(&self, values: Option<&[i32]>) -> Result<Option<Vec<u8>>, PieceError> {
        let float = float_of(self.encoder.spec.kv_dtype);
        let (Some(lossless), Some(float)) = (&self.scope.lossless, float) else { return Ok(None) };
        let (elements, tokens) = (&self.prepared.elements, self.ropes.tokens());
        let text = (self.input.tokens, self.input.preceding_token);
        let beneath = rows_beneath(self.scope, elements, &self.prepared.text, self.ropes, text, values);
        let predicted = elements.by_element(tokens, &beneath);
        let span = lossless::LosslessSpan { tokens, known: self.exact, predicted: &predicted };
        let rows = elements.by_element(tokens, &self.read(tokens).0);
        lossless::encode(&self.encoder.profile.bank, lossless, float, &span, &rows).transpose()
    }
}
