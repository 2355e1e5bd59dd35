//! The exact level of a profile: cells and tables of every element, counted on held-out contexts.

use std::sync::Arc;

use kvasir_codec::container::Head;
use kvasir_types::Loss;

use super::{
    TrainError,
    cluster::{cluster, half_more},
    data::Corpus,
};
use kvasir_codec::{
    ChunkEncoder, ChunkInput, CpuDecoder, CpuEncoder, DecodeError, LevelNote, Profile, ProfileError, Tokens,
    authoring::{
        ElementCoding, Elements, FloatFormat, Lossless, ProfileParts, SpanRopes, TextPredictor, float_of,
        rows_beneath,
    },
    rans::{ALPHABET, AliasTable, STAGE_TABLES_MAX, StageSymbol, TableBank},
};

/// Tables of exact levels; the others are the lossy levels'.
pub(super) const LOSSLESS_TABLES: usize = 24;
/// Factors of the current and of the previous token.
pub(super) const TOKEN_FACTORS: [usize; 2] = [64, 32];
/// Rounding of predictions if nothing is quantised, in root mean squares of a (layer, plane).
pub(super) const PREDICTION_STEP: f32 = 1.0 / 128.0;
/// Most tokens counted.
const TOKENS_MAX: usize = 8_192;
/// Widths of a cell that are tried, in powers of two about half the prediction's error.
const FLOORS: [i32; 4] = [-1, 0, 1, 2];
/// Bits after an escape, if it is short.
const ESCAPE_BITS: f64 = 8.0;

/// Adds an exact level above a profile's levels, or as the only one if it has none.
pub(super) fn add(corpus: &Corpus<'_>, mut parts: ProfileParts) -> Result<ProfileParts, TrainError> {
    let Some(float) = float_of(corpus.spec.kv_dtype) else {
        let why =
            "caches of f32 and of scaled int8 values cannot have an exact level: they are not 16-bit floats";
        return Err(TrainError::Recipe { field: "recipe", why: why.to_owned() });
    };
    let residual = !parts.levels.is_empty();
    let mut counts: Vec<_> = parts.scopes.iter().map(|scope| ElementCounts::new(scope.elements())).collect();
    each_segment(corpus, &parts, &mut |scope, tokens, values, predicted| {
        counts[scope].add_error(tokens, values, predicted);
    })?;
    counts.iter_mut().for_each(|counts| counts.choose_floors(float));
    each_segment(corpus, &parts, &mut |scope, tokens, values, predicted| {
        counts[scope].add_symbols(float, tokens, values, predicted);
    })?;
    let drafts: Vec<Vec<(u8, [f64; ALPHABET])>> = counts.iter().map(ElementCounts::best).collect();
    let symbols: Vec<[f64; ALPHABET]> = drafts.iter().flatten().map(|(_, symbols)| *symbols).collect();
    let (ids, sums) = cluster(&symbols, LOSSLESS_TABLES, half_more);
    let kept = parts.bank.stage_tables().to_vec();
    let first = kept.len();
    debug_assert!(first + sums.len() <= STAGE_TABLES_MAX);
    let tables = sums.iter().map(|counts| AliasTable::from_counts(&counts.map(|n| n as u64 + 1)));
    parts.bank = TableBank::new(kept.into_iter().chain(tables).collect(), parts.bank.trit_tables().to_vec())
        .map_err(|e| ProfileError::Invalid { field: "table bank", found: e.to_string() })?;
    parts.shifts.resize(parts.bank.stage_tables().len(), Default::default());
    let mut ids = ids.into_iter();
    for (scope, draft) in parts.scopes.iter_mut().zip(drafts) {
        let element = |(floor, _)| ElementCoding {
            table: (first + ids.next().unwrap_or(0)) as u8, // fewer than 128
            floor,
        };
        scope.lossless = Some(Lossless { residual, elements: draft.into_iter().map(element).collect() });
        scope.loss.push(0.0);
    }
    parts.levels.push(LevelNote { kl: Some(0.0), ..LevelNote::default() });
    Ok(parts)
}

/// The counts of one scope's elements.
struct ElementCounts {
    elements: usize,
    /// Sum of squared errors of the prediction.
    error: Vec<f64>,
    tokens: usize,
    /// `[element][candidate]`.
    floors: Vec<[u8; FLOORS.len()]>,
    symbols: Vec<[[f64; ALPHABET]; FLOORS.len()]>,
    raw_bits: Vec<[f64; FLOORS.len()]>,
}

impl ElementCounts {
    fn new(elements: usize) -> Self {
        Self {
            elements,
            error: vec![0.0; elements],
            tokens: 0,
            floors: vec![Default::default(); elements],
            symbols: vec![[[0.0; ALPHABET]; FLOORS.len()]; elements],
            raw_bits: vec![Default::default(); elements],
        }
    }

    fn add_error(&mut self, tokens: usize, values: &[f32], predicted: &[f32]) {
        let rows = values.chunks_exact(tokens).zip(predicted.chunks_exact(tokens));
        for (error, (values, predicted)) in self.error.iter_mut().zip(rows) {
            let square = |(x, r): (&f32, &f32)| f64::from(x - r).powi(2);
            *error += values.iter().zip(predicted).map(square).filter(|e| e.is_finite()).sum::<f64>();
        }
        self.tokens += tokens;
    }

    /// Candidates about half the root mean square of the error.
    fn choose_floors(&mut self, float: FloatFormat) {
        for (floors, error) in self.floors.iter_mut().zip(&self.error) {
            let width = 0.5 * (error / self.tokens.max(1) as f64).sqrt();
            let (exponent, _) = float.fields(float.bits(width as f32));
            *floors = FLOORS.map(|offset| (exponent.cast_signed() + offset).clamp(1, 255) as u8);
        }
    }

    fn add_symbols(&mut self, float: FloatFormat, tokens: usize, values: &[f32], predicted: &[f32]) {
        for element in 0..self.elements {
            for (value, predicted) in values[element * tokens..(element + 1) * tokens]
                .iter()
                .zip(&predicted[element * tokens..(element + 1) * tokens])
            {
                let value = float.bits(*value);
                for (candidate, floor) in self.floors[element].into_iter().enumerate() {
                    let (symbol, bits) = ElementCoding { table: 0, floor }.split(float, value, *predicted);
                    self.symbols[element][candidate][StageSymbol::of(symbol).index()] += 1.0;
                    self.raw_bits[element][candidate] += f64::from(bits);
                }
            }
        }
    }

    /// The candidate of every element that takes fewest bits, and its symbols.
    fn best(&self) -> Vec<(u8, [f64; ALPHABET])> {
        let cost = |element: usize, candidate: usize| {
            let symbols = &self.symbols[element][candidate];
            let total: f64 = symbols.iter().sum();
            let escapes = symbols[ALPHABET - 1] * ESCAPE_BITS;
            super::cluster::entropy(symbols) * total + escapes + self.raw_bits[element][candidate]
        };
        let best = |element: usize| {
            let candidates = 0..FLOORS.len();
            let best = candidates.min_by(|a, b| cost(element, *a).total_cmp(&cost(element, *b))).unwrap_or(0);
            (self.floors[element][best], self.symbols[element][best])
        };
        (0..self.elements).map(best).collect()
    }
}

/// Receives a scope, a number of tokens, their values, and the predictions of them, both `[element][token]`.
type SegmentVisitor<'a> = dyn FnMut(usize, usize, &[f32], &[f32]) + 'a;

/// Held-out segments, with the values beneath the exact level.
fn each_segment(
    corpus: &Corpus<'_>,
    parts: &ProfileParts,
    each: &mut SegmentVisitor<'_>,
) -> Result<(), TrainError> {
    let spec = Arc::new(corpus.spec.clone());
    let lossy = match parts.levels.len() {
        0 => None,
        _ => {
            let profile = Arc::new(Profile::assemble(parts.clone())?);
            let encoder = CpuEncoder::new(Arc::clone(&spec), Arc::clone(&profile))?;
            Some((encoder, CpuDecoder::new(Arc::clone(&spec), profile)?))
        }
    };
    let bound: Vec<_> = (parts.scopes.iter())
        .map(|scope| (scope, Elements::new(&spec, scope), TextPredictor::new(scope)))
        .collect();
    let mut left = TOKENS_MAX;
    for segment in &corpus.held_out {
        let (context, range) = (&corpus.contexts[segment.context], segment.tokens.clone());
        if range.len() > left {
            break;
        }
        left -= range.len();
        let text = &context.tokens[range.clone()];
        let preceding = range.start.checked_sub(1).map(|token| context.tokens[token]);
        let first_position = context.first_position + range.start as u64;
        let coded = match &lossy {
            None => None,
            Some((encoder, decoder)) => {
                let object = encoder.encode(&ChunkInput {
                    tokens: text,
                    preceding_token: preceding,
                    first_position,
                    link: kvasir_types::ChainLink::first([0; 32].into()),
                    beneath: Loss::NONE,
                    kv: &Tokens::from(&context.kv, range.start),
                })?;
                let head = Head::parse(&object).map_err(|e| TrainError::Check(DecodeError::from(e)))?;
                Some((decoder, object, head))
            }
        };
        let ropes = SpanRopes::new(&spec, first_position, 0..range.len());
        for (index, (scope, elements, words)) in bound.iter().enumerate() {
            let mut rows = Vec::new();
            elements.read(&context.kv, &range, &mut rows);
            let beneath = match &coded {
                Some((decoder, object, head)) => {
                    decoder.rows_beneath_lossless(head, object, index).map_err(TrainError::Check)?
                }
                None => rows_beneath(scope, elements, words, &ropes, (text, preceding), None),
            };
            let [values, predicted] = [rows, beneath].map(|rows| elements.by_element(range.len(), &rows));
            each(index, range.len(), &values, &predicted);
        }
    }
    Ok(())
}
