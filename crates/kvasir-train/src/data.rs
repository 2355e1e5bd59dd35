//! Training data as a stream of spans: un-roped, normalised, without attention sinks and without spans that
//! hold values that are not finite. Every pass reads the contexts again, so memory does not grow with their
//! number.

use std::ops::Range;

use kvasir_types::{ModelSpec, Plane, SPAN_TOKENS};
use rayon::prelude::*;

use super::{TrainError, TrainingContext, non_finite::NonFinite};
use kvasir_codec::authoring::{Elements, Rotations, Scope};

/// Spans in flight at a time.
const BATCH_SPANS: usize = 8;
/// One token of five is held out.
const HELD_OUT_SHARE: usize = 5;
/// Fewest tokens from which statistics can be computed.
const TOKENS_MIN: usize = 32;

/// At most a span of one context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) context: usize,
    pub(super) tokens: Range<usize>,
}

/// Normalised rows of a segment with their tokens.
#[derive(Debug)]
pub(super) struct Block {
    /// `[token][element]`.
    pub(super) elements: Vec<f32>,
    pub(super) current: Vec<u32>,
    pub(super) previous: Vec<Option<u32>>,
}

/// The contexts, divided into a training part and a held-out part.
#[derive(Debug)]
pub(super) struct Corpus<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) contexts: &'a [TrainingContext],
    pub(super) fit: Vec<Segment>,
    pub(super) held_out: Vec<Segment>,
    exact_tokens: usize,
    /// KL a unit of NMSE, by `2 · layer + plane`, about 1 on average.
    weights: Vec<f32>,
}

impl<'a> Corpus<'a> {
    /// Checks and divides contexts. Whole contexts are held out if there are enough of them, else their ends. Spans
    /// of which a value is not finite, exact tokens aside, are in neither part.
    pub(super) fn new(
        spec: &'a ModelSpec,
        contexts: &'a [TrainingContext],
        exact_tokens: usize,
        weights: &[f32],
    ) -> Result<Self, TrainError> {
        spec.validate()?;
        let elements = spec.elements_per_token();
        for (index, context) in contexts.iter().enumerate() {
            let (tokens, kv_tokens) = (context.tokens.len(), context.kv.tokens());
            if tokens != kv_tokens || context.kv.as_slice().len() != elements * tokens {
                return Err(TrainError::Mismatch { context: index, tokens, kv_tokens });
            }
        }
        let mut corpus = Self {
            spec,
            contexts,
            fit: Vec::new(),
            held_out: Vec::new(),
            exact_tokens,
            weights: weights.to_vec(),
        };
        let left_out = non_finite(spec, contexts, exact_tokens);
        for (index, context) in contexts.iter().enumerate() {
            for segment in segments(index, context.tokens.len()) {
                let is_finite = |tokens| NonFinite::find(spec, index, &context.kv, tokens).is_none();
                if left_out.is_none() || is_finite(&corpus.coded(&segment)) {
                    corpus.place(segment, contexts.len());
                }
            }
        }
        let coded = |part: &[Segment]| part.iter().map(|segment| corpus.coded(segment).len()).sum::<usize>();
        let found = coded(&corpus.fit).min(coded(&corpus.held_out) * (HELD_OUT_SHARE - 1));
        let found = if elements == 0 { 0 } else { found };
        if found < TOKENS_MIN {
            return Err(TrainError::TooFewTokens { needed: TOKENS_MIN, found, left_out });
        }
        Ok(corpus)
    }

    fn place(&mut self, segment: Segment, contexts: usize) {
        let whole = contexts >= HELD_OUT_SHARE;
        let held_out = if whole {
            segment.context % HELD_OUT_SHARE == HELD_OUT_SHARE - 1
        } else {
            segment.tokens.start >= self.contexts[segment.context].tokens.len() * 4 / HELD_OUT_SHARE
        };
        if held_out { self.held_out.push(segment) } else { self.fit.push(segment) }
    }

    /// The contexts' tokens.
    pub(super) fn texts(&self) -> impl Iterator<Item = &[u32]> {
        self.contexts.iter().map(|context| context.tokens.as_slice())
    }

    /// The cost of an error of a plane relative to the average plane.
    pub(super) fn weight(&self, layer: usize, plane: Plane) -> f32 {
        self.weights.get(2 * layer + plane as usize).copied().unwrap_or(1.0)
    }

    /// Tokens fitted.
    pub(super) fn fit_tokens(&self) -> usize {
        self.fit.iter().map(|s| s.tokens.len()).sum()
    }

    /// Tokens held out.
    pub(super) fn held_out_tokens(&self) -> usize {
        self.held_out.iter().map(|s| s.tokens.len()).sum()
    }

    /// Streams segments through a scope's normalisation (its mean and gains) into `each`, in order.
    pub(super) fn stream(&self, scope: &Scope, segments: &[Segment], mut each: impl FnMut(Block)) {
        let elements = Elements::new(self.spec, scope);
        for batch in segments.chunks(BATCH_SPANS) {
            let blocks: Vec<_> =
                batch.par_iter().filter_map(|segment| self.block(scope, &elements, segment)).collect();
            blocks.into_iter().for_each(&mut each);
        }
    }

    /// The tokens of a segment that are not stored exactly.
    fn coded(&self, segment: &Segment) -> Range<usize> {
        coded(&self.contexts[segment.context], segment, self.exact_tokens)
    }

    /// `None` if the segment has only exact tokens.
    fn block(&self, scope: &Scope, elements: &Elements, segment: &Segment) -> Option<Block> {
        let (context, range) = (&self.contexts[segment.context], self.coded(segment));
        let tokens = range.len();
        if tokens == 0 {
            return None;
        }
        let mut raw = Vec::new();
        elements.read(&context.kv, &range, &mut raw);
        let mut out = vec![0.0; raw.len()];
        let rotations = Rotations::new(&self.spec.ropes, context.first_position, &range);
        elements.normalise(&scope.mean, &rotations, tokens, &mut raw, &mut out);
        let before = |token: usize| token.checked_sub(1).map(|t| context.tokens[t]);
        Some(Block {
            elements: out,
            current: context.tokens[range.clone()].to_vec(),
            previous: range.map(before).collect(),
        })
    }
}

fn coded(context: &TrainingContext, segment: &Segment, exact_tokens: usize) -> Range<usize> {
    // A context that begins later has fewer exact tokens, or none.
    let exact_tokens = (exact_tokens as u64).saturating_sub(context.first_position) as usize;
    let start = segment.tokens.start.max(exact_tokens);
    start..segment.tokens.end.max(start)
}

/// What training on these contexts leaves out, given the number of the profile's exact tokens, which may have any values;
/// `None` if all others are finite.
pub fn non_finite(spec: &ModelSpec, contexts: &[TrainingContext], exact_tokens: usize) -> Option<NonFinite> {
    let mut left_out: Option<NonFinite> = None;
    for (index, context) in contexts.iter().enumerate() {
        // Nearly always so, and seen in one pass.
        if context.kv.as_slice().iter().all(|x| x.is_finite()) {
            continue;
        }
        for segment in segments(index, context.tokens.len()) {
            let coded = coded(context, &segment, exact_tokens);
            if let Some(found) = NonFinite::find(spec, index, &context.kv, &coded) {
                left_out.get_or_insert(found).tokens += segment.tokens.len();
            }
        }
    }
    left_out
}

/// Cuts a context at span boundaries; short contexts into shorter pieces, so that some can be held out.
fn segments(context: usize, tokens: usize) -> impl Iterator<Item = Segment> {
    let step = SPAN_TOKENS.min(tokens.div_ceil(HELD_OUT_SHARE)).max(1);
    (0..tokens).step_by(step).map(move |start| Segment { context, tokens: start..(start + step).min(tokens) })
}
