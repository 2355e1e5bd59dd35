//! The encoder on the CPU.

mod assemble;
mod bound;
mod device_spans;
mod measure;
mod quantise;
mod span;

use std::{ops::Range, sync::Arc};

use kvasir_types::{CHUNK_TOKENS_MAX, ModelSpec, ProfileHash, SPAN_TOKENS};
use rayon::prelude::*;

use crate::{
    ChunkEncoder, ChunkInput, EncodeError, Profile, ProfileError, STARTER_RECIPE, TRANSPARENT_NOTE,
    buffer_pool::BufferPool,
    exact_piece::ExactDtype,
    matrix::Matrix,
    prepared_scope::PreparedScope,
    rans::{PieceEncoder, blocks::Blocks},
    span_ropes::SpanRopes,
};

use self::span::{SpanJob, SpanPieces};
pub use device_spans::CodedSpan;

/// Encodes chunks with one profile. Spans and scopes are coded in parallel on rayon's global pool.
#[derive(Debug, Clone)]
pub struct CpuEncoder {
    spec: Arc<ModelSpec>,
    profile: Arc<Profile>,
    scopes: Vec<EncoderScope>,
    exact_dtype: ExactDtype,
    /// Whether spans have no piece of the finest level where the chunk is `transparent` without it.
    leaves_out_finest: bool,
    pieces: PieceEncoder,
    values: Arc<BufferPool<Vec<i32>>>,
    blocks: Arc<BufferPool<Blocks>>,
}

/// A scope as an encoder needs it.
#[derive(Debug, Clone)]
struct EncoderScope {
    prepared: PreparedScope,
    analysis: Matrix,
    /// For measurements; empty if the profile has no reference powers.
    synthesis: Matrix,
}

/// Findings of an encoder in addition to the bytes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EncodeReport {
    /// Scope and span of everything stored exactly because a value was not finite or out of range, or because a model's first
    /// profile would not have been `transparent` there.
    pub exact_spans: Vec<(usize, usize)>,
}

impl CpuEncoder {
    /// An encoder for a model.
    ///
    /// # Errors
    /// [`ProfileError`] where the profile is of another model.
    pub fn new(spec: Arc<ModelSpec>, profile: Arc<Profile>) -> Result<Self, ProfileError> {
        profile.check_model(&spec)?;
        let bind = |index: usize| {
            let scope = &profile.scopes[index];
            EncoderScope {
                prepared: PreparedScope::new(&spec, &profile, index),
                analysis: Matrix::analysis(scope),
                synthesis: if scope.is_measured() { Matrix::synthesis(scope) } else { Matrix::Identity },
            }
        };
        let scopes = (0..profile.scopes.len()).map(bind).collect();
        let exact_dtype = ExactDtype::of(spec.kv_dtype);
        let is_lossy = profile.lossy_levels() == profile.level_count();
        let leaves_out_finest = is_lossy && profile.training().note == TRANSPARENT_NOTE;
        let (pieces, values, blocks) = (PieceEncoder::best(), Default::default(), Default::default());
        Ok(Self { spec, profile, scopes, exact_dtype, leaves_out_finest, pieces, values, blocks })
    }

    /// The same encoder with other kernels: for tests and benchmarks, as [`new`](Self::new) takes the fastest.
    pub fn with_pieces(mut self, pieces: PieceEncoder) -> Self {
        self.pieces = pieces;
        self
    }

    /// As [`ChunkEncoder::encode`], and reports what was stored exactly without need.
    ///
    /// # Errors
    /// As [`ChunkEncoder::encode`].
    pub fn encode_with_report(&self, input: &ChunkInput<'_>) -> Result<(Vec<u8>, EncodeReport), EncodeError> {
        check_input(input)?;
        let spans: Vec<_> = spans(input.tokens.len()).collect();
        let ropes: Vec<_> = (spans.iter())
            .map(|span| SpanRopes::new(&self.spec, input.first_position, span.clone()))
            .collect();
        let tasks: Vec<_> = (0..self.scopes.len())
            .flat_map(|scope| (0..spans.len()).map(move |span| (scope, span)))
            .collect();
        let coded: Result<Vec<SpanPieces>, EncodeError> = tasks
            .par_iter()
            .map(|&(scope, span)| SpanJob::new(self, scope, input, &ropes[span]).pieces())
            .collect();
        let mut coded = coded?;
        if self.profile.training().recipe == STARTER_RECIPE {
            self.keep_transparent(input, &ropes, &mut coded)?;
        }
        if self.leaves_out_finest {
            self.leave_out_finest(&mut coded, spans.len())?;
        }
        let forced = tasks.iter().zip(&coded).filter(|(_, pieces)| pieces.forced_exact);
        let exact_spans = forced.map(|(task, _)| *task).collect();
        let object = self.assemble(input, spans.len(), coded)?;
        Ok((object, EncodeReport { exact_spans }))
    }

    /// Tokens at the start of the chunk that are stored exactly.
    fn exact_tokens(&self, input: &ChunkInput<'_>) -> usize {
        let exact = (self.profile.exact_tokens() as u64).saturating_sub(input.first_position);
        (exact as usize).min(input.tokens.len()) // at most EXACT_TOKENS_MAX
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
    if !(input.beneath.kl.is_finite() && input.beneath.kl >= 0.0) {
        return Err(EncodeError::KlBeneath);
    }
    Ok(())
}

/// The spans of a chunk as token ranges.
pub(crate) fn spans(tokens: usize) -> impl Iterator<Item = Range<usize>> {
    (0..tokens).step_by(SPAN_TOKENS).map(move |start| start..(start + SPAN_TOKENS).min(tokens))
}
