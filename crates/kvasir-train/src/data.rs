//! Training data as a stream of spans: un-roped, normalised, without attention sinks and without spans that
//! hold non-finite values. Every pass reads the contexts again, so memory does not grow with their number.

use std::ops::Range;

use kvasir_types::{ModelSpec, Plane, SPAN_TOKENS};
use rayon::prelude::*;

use super::TrainingContext;
use crate::TrainError;
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
    /// Checks and divides contexts. Whole contexts are held out if there are enough of them, else their ends.
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
        for (index, context) in contexts.iter().enumerate() {
            for segment in segments(index, context.tokens.len()) {
                corpus.place(segment, contexts.len());
            }
        }
        let found = corpus.fit_tokens().min(corpus.held_out_tokens() * (HELD_OUT_SHARE - 1));
        check_count(if elements == 0 { 0 } else { found })?;
        Ok(corpus)
    }

    /// Checks that [`stream`](Self::stream) leaves enough tokens of a scope in both parts.
    pub(super) fn check_finite(&self, scope: &Scope) -> Result<(), TrainError> {
        let (elements, mut raw) = (Elements::new(self.spec, scope), Vec::new());
        // Few tokens are enough, so little of a healthy corpus is read.
        let mut count = |segments: &[Segment], enough: usize| {
            let mut found = 0;
            for segment in segments {
                if found >= enough {
                    break;
                }
                let range = self.coded(segment);
                let kv = &self.contexts[segment.context].kv;
                if !range.is_empty() && elements.read(kv, &range, &mut raw) {
                    found += range.len();
                }
            }
            found
        };
        let fit = count(&self.fit, TOKENS_MIN);
        let held_out = count(&self.held_out, TOKENS_MIN.div_ceil(HELD_OUT_SHARE - 1));
        check_count(fit.min(held_out * (HELD_OUT_SHARE - 1)))
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
        let first_position = self.contexts[segment.context].first_position;
        // A context that begins later has fewer exact tokens, or none.
        let exact_tokens = (self.exact_tokens as u64).saturating_sub(first_position) as usize;
        let start = segment.tokens.start.max(exact_tokens);
        start..segment.tokens.end.max(start)
    }

    /// `None` if the segment has a non-finite value, or only exact tokens.
    fn block(&self, scope: &Scope, elements: &Elements, segment: &Segment) -> Option<Block> {
        let (context, range) = (&self.contexts[segment.context], self.coded(segment));
        let tokens = range.len();
        let mut raw = Vec::new();
        if tokens == 0 || !elements.read(&context.kv, &range, &mut raw) {
            return None;
        }
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

/// Checks that tokens are enough for statistics.
fn check_count(found: usize) -> Result<(), TrainError> {
    if found < TOKENS_MIN { Err(TrainError::TooFewTokens { needed: TOKENS_MIN, found }) } else { Ok(()) }
}

/// Cuts a context at span boundaries; short contexts into shorter pieces, so that some can be held out.
fn segments(context: usize, tokens: usize) -> impl Iterator<Item = Segment> {
    let step = SPAN_TOKENS.min(tokens.div_ceil(HELD_OUT_SHARE)).max(1);
    (0..tokens).step_by(step).map(move |start| Segment { context, tokens: start..(start + step).min(tokens) })
}
