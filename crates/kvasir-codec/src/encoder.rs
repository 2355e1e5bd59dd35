//! The encoder on the CPU.

mod outline;

use std::{ops::Range, sync::Arc};

use kvasir_container::{ChunkBuilder, ChunkMeta, SectionId};
use kvasir_types::{CHUNK_TOKENS_MAX, Level, ModelSpec, ProfileHash, SPAN_TOKENS};
use rayon::prelude::*;

use crate::{
    ChunkEncoder, ChunkInput, EncodeError, KvSource, Profile, ProfileError,
    arch::RowKernel,
    bound::{
        BAND_ANCHORS, BAND_EXACT, BAND_LOSSLESS, BAND_MAIN, BoundScope, Matrix, SectionPlan,
        anchor_prediction, rows_beneath, split_anchors,
    },
    exact::{self, ExactDtype},
    limits::QUANTISED_MAX,
    lossless::{self, float_of},
    pool::Pool,
    profile::{CoefficientCoding, Predictor, Scope},
    rans::{Fine, PieceEncoder, PieceError, PiecePlan, Rows, blocks::Blocks},
    ropes::SpanRopes,
    rows::{
        fine::{Quantising, Steps},
        half::RowScratch,
        quantise_rows,
    },
};

pub use outline::CodedSpan;

/// Encodes chunks with one profile. Spans and scopes are coded in parallel on rayon's global pool.
#[derive(Debug, Clone)]
pub struct CpuEncoder {
    spec: Arc<ModelSpec>,
    profile: Arc<Profile>,
    scopes: Vec<(BoundScope, Matrix)>,
    exact_dtype: ExactDtype,
    pieces: PieceEncoder,
    values: Arc<Pool<Vec<i32>>>,
    blocks: Arc<Pool<Blocks>>,
}

/// What an encoder noticed besides the bytes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EncodeReport {
    /// Scope and span of everything stored exactly because a value was not finite or out of range.
    pub exact_spans: Vec<(usize, usize)>,
    /// Bits an element of the whole object over those of held-out text in training, head and tokens included. Well
    /// above 1 on chunks of the usual length the profile no longer fits what is stored: retrain it on this traffic.
    /// (Short chunks cost more an element wherever they come from.)
    pub drift: Option<f32>,
}

impl CpuEncoder {
    /// An encoder for a model.
    ///
    /// # Errors
    /// [`ProfileError`] where the profile is of another model.
    pub fn new(spec: Arc<ModelSpec>, profile: Arc<Profile>) -> Result<Self, ProfileError> {
        profile.check_model(&spec)?;
        let bind = |index: usize| {
            (BoundScope::new(&spec, &profile, index), Matrix::analysis(&profile.scopes[index]))
        };
        let scopes = (0..profile.scopes.len()).map(bind).collect();
        let exact_dtype = ExactDtype::of(spec.kv_dtype);
        let (values, blocks) = Default::default();
        Ok(Self { spec, profile, scopes, exact_dtype, pieces: PieceEncoder::best(), values, blocks })
    }

    /// The same encoder with other kernels: for tests and benchmarks, as [`new`](Self::new) takes the fastest.
    pub fn with_pieces(mut self, pieces: PieceEncoder) -> Self {
        self.pieces = pieces;
        self
    }

    /// As [`ChunkEncoder::encode`], and says what was stored exactly and need not have been.
    ///
    /// # Errors
    /// As [`ChunkEncoder::encode`].
    pub fn encode_with_report(&self, input: &ChunkInput<'_>) -> Result<(Vec<u8>, EncodeReport), EncodeError> {
        check_input(input)?;
        let tokens = input.tokens.len();
        let spans: Vec<_> = spans(tokens).collect();
        let ropes: Vec<_> = (spans.iter())
            .map(|span| SpanRopes::new(&self.spec, input.first_position, span.clone()))
            .collect();
        let tasks: Vec<_> = (0..self.scopes.len())
            .flat_map(|scope| (0..spans.len()).map(move |span| (scope, span)))
            .collect();
        let coded: Result<Vec<SpanPieces>, EncodeError> =
            tasks.par_iter().map(|&(scope, span)| self.encode_span(scope, input, &ropes[span])).collect();
        let coded = coded?;
        let forced = tasks.iter().zip(&coded).filter(|(_, pieces)| pieces.forced_exact);
        let exact_spans = forced.map(|(task, _)| *task).collect();
        let object = self.assemble(input, spans.len(), coded)?;
        let drift = self.drift(tokens, object.len());
        Ok((object, EncodeReport { exact_spans, drift }))
    }

    /// Bits an element over what training found; `None` where it found nothing.
    fn drift(&self, tokens: usize, bytes: usize) -> Option<f32> {
        let expected = self.profile.levels().last()?.bits_per_element;
        let elements = (tokens * self.spec.elements_per_token()) as f32;
        (expected > 0.0).then(|| bytes as f32 * 8.0 / elements / expected)
    }

    /// Scopes in fetch order: by layer in level 0, above it by how much predicted loss a byte takes away, so that a
    /// reader who stops between two levels stops well.
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

    /// Tokens at the start of the chunk that are stored exactly.
    fn exact_tokens(&self, input: &ChunkInput<'_>) -> usize {
        let exact = (self.profile.exact_tokens() as u64).saturating_sub(input.first_position);
        (exact as usize).min(input.tokens.len()) // at most EXACT_TOKENS_MAX
    }

    fn encode_span(
        &self,
        scope: usize,
        input: &ChunkInput<'_>,
        ropes: &SpanRopes<'_>,
    ) -> Result<SpanPieces, EncodeError> {
        let (bound, analysis) = &self.scopes[scope];
        let scope = &self.profile.scopes[scope];
        let (span, tokens) = (&ropes.span, ropes.tokens());
        let read = |tokens: usize| {
            let mut raw = Vec::new();
            let finite = bound.elements.read(input.kv, &(span.start..span.start + tokens), &mut raw);
            (raw, finite)
        };
        let exact_piece = |tokens: usize| {
            let ((raw, _), whole) = (read(tokens), 0..tokens);
            let members = bound.elements.members(tokens, &whole, &raw);
            exact::encode(self.exact_dtype, tokens, members.flat_map(|m| m.rows.iter().copied()))
        };
        let exact = self.exact_tokens(input).saturating_sub(span.start).min(tokens);
        let exact_span = || SpanPieces {
            exact: Some(exact_piece(tokens)),
            anchors: None,
            levels: vec![None; bound.levels.len()],
            lossless: None,
            forced_exact: true,
        };
        let stored = || (exact > 0).then(|| exact_piece(exact));
        let text = (input.tokens, input.preceding_token);
        let lossless_over = |values: Option<&[i32]>| {
            let predicted = rows_beneath(scope, &bound.elements, &bound.text, ropes, text, values);
            self.encode_lossless(bound.index, (tokens, exact), &read(tokens).0, &predicted)
        };
        if bound.levels.is_empty() {
            // Nothing but the exact level.
            return match lossless_over(None) {
                None => Ok(exact_span()),
                Some(piece) => Ok(SpanPieces {
                    exact: stored(),
                    anchors: None,
                    levels: Vec::new(),
                    lossless: Some(piece?),
                    forced_exact: false,
                }),
            };
        }
        let coded = |values: Fine<'_>, tokens: usize| {
            let top = bound.levels.len() - 1;
            let level = |(level, plan): (usize, &SectionPlan)| {
                encode_section(self.pieces, &self.profile.bank, plan, values, tokens, (top - level) as u32)
            };
            bound.levels.iter().enumerate().map(level).collect::<Result<Vec<_>, _>>()
        };
        let is_direct = matches!((analysis, &scope.predictor), (Matrix::Identity, Predictor::Mean));
        let takes_blocks = self.pieces.takes_blocks();
        let mut blocks = self.blocks.take();
        if is_direct && takes_blocks && scope.lossless.is_none() {
            blocks.reset(bound.elements.count(), tokens);
            let to = Quantising::Narrow(&mut blocks, 0);
            if direct_values(bound, &scope.mean, ropes, exact, input.kv, to) {
                let (anchors, levels) = (None, coded(Fine::Narrow(&blocks), tokens)?);
                self.blocks.give(blocks);
                return Ok(SpanPieces {
                    exact: stored(),
                    anchors,
                    levels,
                    lossless: None,
                    forced_exact: false,
                });
            }
        }
        let values = if is_direct {
            let mut main = self.values.take();
            main.resize(bound.elements.count() * tokens, 0);
            direct_values(bound, &scope.mean, ropes, exact, input.kv, Quantising::Wide(&mut main))
                .then_some(Quantised { anchors: Vec::new(), anchor_tokens: 0, main, main_tokens: tokens })
        } else {
            let (mut raw, finite) = read(tokens);
            if !finite {
                return Ok(exact_span());
            }
            let mut elements = vec![0.0; raw.len()];
            bound.elements.normalise(&scope.mean, ropes.rotations(), tokens, &mut raw, &mut elements);
            let mut coefficients = vec![0.0; scope.rank() * tokens];
            analysis.analyse(tokens, &elements, &mut coefficients);
            let predictions = bound.text.predict(scope, input.tokens, input.preceding_token, span);
            quantise(scope, tokens, exact, &coefficients, predictions)
        };
        let Some(values) = values else {
            return Ok(exact_span());
        };
        let lossless = match &scope.lossless {
            None => None,
            Some(_) => match lossless_over(Some(&finest_values(scope, bound, &values))) {
                None => return Ok(exact_span()),
                Some(piece) => Some(piece?),
            },
        };
        let fine = if takes_blocks && values.main_tokens > 0 && blocks.fill(values.main_tokens, &values.main)
        {
            Fine::Narrow(&blocks)
        } else {
            Fine::Wide(&values.main)
        };
        let (anchors, anchor_tokens) = (Fine::Wide(&values.anchors), values.anchor_tokens);
        let pieces = SpanPieces {
            exact: stored(),
            anchors: encode_section(
                self.pieces,
                &self.profile.bank,
                &bound.anchors,
                anchors,
                anchor_tokens,
                0,
            )?,
            levels: coded(fine, values.main_tokens)?,
            lossless,
            forced_exact: false,
        };
        self.values.give(values.main);
        self.blocks.give(blocks);
        Ok(pieces)
    }

    /// The piece of the exact level over what the levels beneath give, both `[member][token][element]`; `None` where the
    /// cache's type does not hold the values.
    fn encode_lossless(
        &self,
        scope: usize,
        (tokens, known): (usize, usize),
        rows: &[f32],
        predicted: &[f32],
    ) -> Option<Result<Vec<u8>, PieceError>> {
        let lossless = self.profile.scopes[scope].lossless.as_ref()?;
        let elements = &self.scopes[scope].0.elements;
        let predicted = elements.by_element(tokens, predicted);
        let span = lossless::Span { tokens, known, predicted: &predicted };
        let values = elements.by_element(tokens, rows);
        lossless::encode(&self.profile.bank, lossless, float_of(self.spec.kv_dtype)?, &span, &values)
    }

    /// Puts the pieces into fetch order.
    fn assemble(
        &self,
        input: &ChunkInput<'_>,
        spans: usize,
        mut coded: Vec<SpanPieces>,
    ) -> Result<Vec<u8>, EncodeError> {
        let meta = ChunkMeta {
            model_id: self.profile.model_id(),
            profile_hash: self.profile.hash(),
            parent_hash: input.parent_hash,
            first_position: input.first_position,
            preceding_token: input.preceding_token,
            level_count: self.profile.level_count() as u8,
            exact_tokens: self.exact_tokens(input) as u8,
            kl_beneath: input.kl_beneath,
        };
        let mut builder = ChunkBuilder::new(meta, input.tokens.to_vec())?;
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
                    if !self.scopes[scope].0.anchors.codings.is_empty() {
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
}

impl ChunkEncoder for CpuEncoder {
    fn encode(&self, input: &ChunkInput<'_>) -> Result<Vec<u8>, EncodeError> {
        self.encode_with_report(input).map(|(object, _)| object)
    }

    fn profile_hash(&self) -> ProfileHash {
        self.profile.hash()
    }

    fn level_count(&self) -> usize {
        self.profile.level_count()
    }
}

fn check_input(input: &ChunkInput<'_>) -> Result<(), EncodeError> {
    let tokens = input.tokens.len();
    if !(1..=CHUNK_TOKENS_MAX).contains(&tokens) {
        return Err(EncodeError::Tokens { tokens, max: CHUNK_TOKENS_MAX });
    }
    if !(input.kl_beneath.is_finite() && input.kl_beneath >= 0.0) {
        return Err(EncodeError::KlBeneath);
    }
    Ok(())
}

/// The spans of a chunk as token ranges.
pub(crate) fn spans(tokens: usize) -> impl Iterator<Item = Range<usize>> {
    (0..tokens).step_by(SPAN_TOKENS).map(move |start| start..(start + SPAN_TOKENS).min(tokens))
}

/// The pieces of one scope and span; `None` is absent.
#[derive(Debug)]
struct SpanPieces {
    exact: Option<Vec<u8>>,
    anchors: Option<Vec<u8>>,
    levels: Vec<Option<Vec<u8>>>,
    lossless: Option<Vec<u8>>,
    forced_exact: bool,
}

impl SpanPieces {
    /// The piece of a level, lossy or exact.
    fn at(&self, level: usize) -> Option<&Vec<u8>> {
        self.levels.get(level).map_or(self.lossless.as_ref(), Option::as_ref)
    }
}

/// Values of the finest lossy level as a decoder has them: those of coefficients that are never coded are 0.
fn finest_values(scope: &Scope, bound: &BoundScope, values: &Quantised) -> Vec<i32> {
    let mut main = values.main.clone();
    let silent = scope.coding.iter().map(|coding| coding.entry == CoefficientCoding::NEVER);
    for (row, _) in main.chunks_exact_mut(values.main_tokens).zip(silent).filter(|(_, silent)| *silent) {
        row.fill(0);
    }
    bound.reconstruct(bound.levels.len() - 1, values.main_tokens, &mut main);
    main
}

/// Quantised values of one scope and span, `[coefficient][token]`.
#[derive(Debug, PartialEq)]
pub(crate) struct Quantised {
    pub(crate) anchors: Vec<i32>,
    pub(crate) anchor_tokens: usize,
    /// At the finest level, less the prediction; exact tokens are 0.
    pub(crate) main: Vec<i32>,
    pub(crate) main_tokens: usize,
}

/// Quantises coefficients, `[coefficient][token]` in units of the finest step; `None` where a value is out of
/// range. `predictions` is of the same shape; the first `exact` tokens are masked.
pub(crate) fn quantise(
    scope: &Scope,
    tokens: usize,
    exact: usize,
    coefficients: &[f32],
    mut predictions: Vec<i32>,
) -> Option<Quantised> {
    let (anchor_list, main_list) = split_anchors(&scope.predictor, tokens);
    let mut anchors = Vec::with_capacity(anchor_list.len() * scope.rank());
    if let Predictor::AnchorFirst { group, anchor_ratio, .. } = &scope.predictor {
        let rows = coefficients.chunks_exact(tokens).zip(predictions.chunks_exact_mut(tokens));
        for (row, predicted) in rows {
            for &token in &anchor_list {
                let anchor = round(row[token] * *anchor_ratio as f32)?;
                let end = (token + group).min(tokens);
                predicted[token..end].fill(anchor_prediction(anchor, *anchor_ratio));
                anchors.push(anchor);
            }
        }
    }
    let mut main = Vec::with_capacity(main_list.len() * scope.rank());
    for (row, predicted) in coefficients.chunks_exact(tokens).zip(predictions.chunks_exact(tokens)) {
        for &token in &main_list {
            let value = if token < exact { 0 } else { round(row[token] - predicted[token] as f32)? };
            main.push(value);
        }
    }
    Some(Quantised { anchors, anchor_tokens: anchor_list.len(), main, main_tokens: main_list.len() })
}

/// As [`quantise`] for a scope whose coefficients are its elements and whose prediction is the mean, head by head; the same
/// values in one pass, to buffers that may have served others. `false` where a value is not finite, too.
fn direct_values(
    bound: &BoundScope,
    mean: &[f32],
    ropes: &SpanRopes<'_>,
    masked: usize,
    source: &dyn KvSource,
    mut to: Quantising<'_>,
) -> bool {
    let (kernel, mut scratch) = (RowKernel::best(), RowScratch::default());
    let tokens = ropes.tokens();
    let mut raw = Vec::new();
    bound.elements.views().all(|member| {
        let range = member.start..member.start + member.dim;
        let rows = match source.held(member.layer, member.plane, member.head, ropes.span.clone()) {
            Some(rows) if rows.len() == member.dim * tokens => rows,
            _ => {
                raw.resize(member.dim * tokens, 0.0);
                source.read(member.layer, member.plane, member.head, ropes.span.clone(), &mut raw);
                &raw
            }
        };
        // Others are out of range if they are not.
        if !rows[..masked * member.dim].iter().all(|x| x.is_finite()) {
            return false;
        }
        let steps = Steps { mean: &mean[range.clone()], inverse: 1.0 / member.gain, masked };
        let turns = member.rope.and_then(|rope| ropes.turns().get(rope));
        quantise_rows(kernel, &steps, turns, tokens, rows, to.elements(range, tokens), &mut scratch)
    })
}

/// To the nearest integer, ties to even; `None` beyond [`QUANTISED_MAX`] and for NaN.
fn round(value: f32) -> Option<i32> {
    (value.abs() <= QUANTISED_MAX as f32).then(|| value.round_ties_even() as i32)
}

/// The piece of a section whose values lie `up` levels below `fine`; `None` where it would say nothing.
fn encode_section(
    pieces: PieceEncoder,
    bank: &crate::rans::TableBank,
    plan: &SectionPlan,
    fine: Fine<'_>,
    tokens: usize,
    up: u32,
) -> Result<Option<Vec<u8>>, PieceError> {
    if tokens == 0 || plan.codings.is_empty() {
        return Ok(None);
    }
    let mut piece = Vec::new();
    let rows = Rows { fine, tokens, listed: Some(&plan.coefficients), up };
    pieces.encode_rows(bank, &PiecePlan { coefficients: &plan.codings, tokens }, &rows, &mut piece)?;
    Ok((!piece.is_empty()).then_some(piece))
}
