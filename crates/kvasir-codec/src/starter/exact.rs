//! The first profile of a model whose caches are to come back bit for bit.
//!
//! An element is predicted by its mean. Its cells are as wide as the power of two next below that prediction's usual error, but
//! for errors below the type's smallest normal number. So all elements whose errors lie in the same part of an octave are spread
//! alike in their cells, and share a table.

use kvasir_types::{ModelSpec, SPAN_TOKENS};

use super::{STARTER_SINKS, STARTER_TOKENS_MAX, StarterError, measure::note_levels, parts_of};
use crate::{
    KvSource, LevelNote, Profile, ProfileError,
    authoring::{
        CoefficientCoding, ElementCoding, Elements, Lossless, Scope, SpanRopes, TextPredictor, float_of,
        rows_beneath,
    },
    rans::{ALPHABET, AliasTable, StageSymbol, TableBank},
};

/// Parts of an octave.
const TABLES: usize = 4;

/// As [`starter`](super::starter), with one level, which is the cache bit for bit whatever is encoded: text that
/// differs from the sample costs bits.
///
/// # Errors
/// As [`starter`](super::starter); [`StarterError::Profile`] for a cache whose type has no exact level.
pub fn exact_starter(
    spec: &ModelSpec,
    tokens: &[u32],
    first_position: u64,
    kv: &dyn KvSource,
) -> Result<Profile, StarterError> {
    let without = || ProfileError::Invalid {
        field: "exact level",
        found: format!("that of a cache of {:?}", spec.kv_dtype),
    };
    let float = float_of(spec.kv_dtype).ok_or_else(without)?;
    let tokens = &tokens[..tokens.len().min(STARTER_TOKENS_MAX)];
    let mut parts = parts_of(spec, tokens, first_position, kv)?;
    // Every symbol occurs sooner or later.
    let mut counts = [[1u64; ALPHABET]; TABLES];
    for scope in &mut parts.scopes {
        scope.coding.fill(CoefficientCoding::ABSENT);
        scope.loss = vec![0.0];
        let spans = spans(spec, scope, tokens, first_position, kv);
        let element = |index: usize| {
            let pairs = || spans.iter().flat_map(move |span| span.element(index));
            let square = |(value, predicted): (f32, f32)| f64::from(value - predicted).powi(2);
            let error = (pairs().map(square).sum::<f64>() / pairs().count().max(1) as f64).sqrt();
            let octave = error.log2();
            // Not the error itself, which the type may round up to the next power of two.
            let (exponent, _) = float.fields(float.bits(octave.floor().exp2() as f32));
            let coding = ElementCoding {
                table: ((TABLES as f64 * (octave - octave.floor())) as u8).min(TABLES as u8 - 1),
                floor: exponent.clamp(1, 255) as u8,
            };
            for (value, predicted) in pairs() {
                let (symbol, _) = coding.split(float, float.bits(value), predicted);
                counts[usize::from(coding.table)][StageSymbol::of(symbol).index()] += 1;
            }
            coding
        };
        let elements = (0..scope.elements()).map(element).collect();
        scope.lossless = Some(Lossless { residual: false, elements });
    }
    let tables = counts.iter().map(AliasTable::from_counts).collect();
    parts.bank = TableBank::new(tables, Vec::new()).expect("fewer tables than a bank holds");
    parts.shifts = vec![Default::default(); TABLES];
    parts.levels = vec![LevelNote::default()];
    let mut parts = note_levels(spec, parts, tokens, first_position, kv)?.parts();
    parts.scopes.iter_mut().for_each(|scope| scope.loss.fill(0.0));
    parts.levels.iter_mut().for_each(|level| level.kl = Some(0.0));
    Ok(Profile::assemble(parts)?)
}

/// A span of the sample: values and what is predicted for them, both `[element][token]`.
struct Span {
    tokens: usize,
    values: Vec<f32>,
    predicted: Vec<f32>,
}

impl Span {
    /// The values of an element with their predictions.
    fn element(&self, index: usize) -> impl Iterator<Item = (f32, f32)> {
        let row = index * self.tokens..(index + 1) * self.tokens;
        self.values[row.clone()].iter().copied().zip(self.predicted[row].iter().copied())
    }
}

/// The sample without sinks; spans with a value that is not finite are left out.
fn spans(
    spec: &ModelSpec,
    scope: &Scope,
    tokens: &[u32],
    first_position: u64,
    kv: &dyn KvSource,
) -> Vec<Span> {
    let (elements, text) = (Elements::new(spec, scope), TextPredictor::new(scope));
    let first = if first_position == 0 { STARTER_SINKS.min(tokens.len()) } else { 0 };
    let span = |start: usize| {
        let range = start..(start + SPAN_TOKENS).min(tokens.len());
        let mut rows = Vec::new();
        if !elements.read(kv, &range, &mut rows) {
            return None;
        }
        let ropes = SpanRopes::new(spec, first_position, range.clone());
        let beneath = rows_beneath(scope, &elements, &text, &ropes, (tokens, None), None);
        let [values, predicted] = [rows, beneath].map(|rows| elements.by_element(range.len(), &rows));
        Some(Span { tokens: range.len(), values, predicted })
    };
    (first..tokens.len()).step_by(SPAN_TOKENS).filter_map(span).collect()
}
