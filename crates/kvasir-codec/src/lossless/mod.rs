//! The exact level: caches bit for bit, opt-in by profile (FORMAT.md "Exact level").
//!
//! A value is told as a difference from a prediction, in cells that are about as wide as half the prediction's usual error:
//! that difference has one table an element, and which pattern of its cell the value is takes plain bits. The prediction
//! is what the levels beneath give, down to the last bit; with nothing beneath, the mean and what the text tells.

mod bits;
mod cells;
mod float;

use std::ops::Range;

use kvasir_types::KvDtype;

pub use self::float::FloatFormat;
use self::{
    bits::{BitReader, BitWriter},
    cells::Cells,
};
use crate::rans::{Coding, PieceError, PiecePlan, TableBank, decode_piece, encode_piece};

/// How a scope's exact level is coded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lossless {
    /// Whether there are lossy levels beneath.
    pub residual: bool,
    /// One entry per element.
    pub elements: Vec<ElementCoding>,
}

/// How one element's differences are made and coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ElementCoding {
    /// Stage table.
    pub table: u8,
    /// Biased exponent of a cell's width.
    pub floor: u8,
}

impl ElementCoding {
    fn cells(self, float: FloatFormat) -> Cells {
        Cells { float, floor: self.floor.into() }
    }

    /// Splits a value into its cell and the plain bits that identify the value within the cell.
    pub fn split(self, float: FloatFormat, value: u32, predicted: f32) -> (i32, u32) {
        let cells = self.cells(float);
        (cells.cell(value) - cells.cell(predicted_bits(float, predicted)), cells.width(value))
    }
}

impl Lossless {
    /// How the differences are coded, one entry per element.
    pub fn codings(&self) -> Vec<Coding> {
        let stage = |e: &ElementCoding| Coding::Stage { table: e.table, trits: 0, trit_table: 0 };
        self.elements.iter().map(stage).collect()
    }
}

/// A prediction in the cache's type. For a NaN nothing is predicted, because its pattern would depend on the
/// machine.
fn predicted_bits(float: FloatFormat, predicted: f32) -> u32 {
    float.bits(if predicted.is_nan() { 0.0 } else { predicted })
}

/// As [`predicted_bits`], of as many as there are.
fn predicted_patterns(float: FloatFormat, predicted: &[f32], out: &mut [u16]) {
    float.patterns(predicted, out);
    out.iter_mut().zip(predicted).filter(|(_, value)| value.is_nan()).for_each(|(bits, _)| *bits = 0);
}

/// Values and their predictions, both `[element][token]`; the first `known` tokens are stored separately.
pub(crate) struct LosslessSpan<'a> {
    pub(crate) tokens: usize,
    pub(crate) known: usize,
    pub(crate) predicted: &'a [f32],
}

impl LosslessSpan<'_> {
    /// The range of an element's unknown tokens.
    fn row(&self, element: usize) -> Range<usize> {
        element * self.tokens + self.known..(element + 1) * self.tokens
    }
}

/// The piece of the exact level; `None` if the cache's type cannot hold a value.
pub(crate) fn encode(
    bank: &TableBank,
    lossless: &Lossless,
    float: FloatFormat,
    span: &LosslessSpan<'_>,
    values: &[f32],
) -> Option<Result<Vec<u8>, PieceError>> {
    let mut symbols = vec![0i32; values.len()];
    let mut raw = BitWriter::default();
    let count = span.tokens - span.known;
    let (mut patterns, mut predicted, mut back) = (vec![0; count], vec![0; count], vec![0.0; count]);
    for (element, coding) in lossless.elements.iter().enumerate() {
        let cells = coding.cells(float);
        let row = span.row(element);
        float.patterns(&values[row.clone()], &mut patterns);
        float.values(&patterns, &mut back);
        if back.iter().zip(&values[row.clone()]).any(|(back, value)| back.to_bits() != value.to_bits()) {
            return None;
        }
        predicted_patterns(float, &span.predicted[row.clone()], &mut predicted);
        for ((symbol, bits), predicted) in symbols[row].iter_mut().zip(&patterns).zip(&predicted) {
            *symbol = cells.cell((*bits).into()) - cells.cell((*predicted).into());
            cells.write((*bits).into(), &mut raw);
        }
    }
    let mut coded = Vec::new();
    let codings = lossless.codings();
    let plan = PiecePlan { coefficients: &codings, tokens: span.tokens };
    if let Err(error) = encode_piece(bank, &plan, &symbols, &mut coded) {
        return Some(Err(error));
    }
    let mut piece = (coded.len() as u32).to_le_bytes().to_vec();
    piece.extend(coded);
    piece.extend(raw.finish());
    Some(Ok(piece))
}

/// What is coded in a piece, and its raw bits; `None` if it ends before.
pub(crate) fn split(piece: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = piece.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// Values of an exact piece, `[element][token]`; those of known tokens are as predicted. The outer error
/// means that the piece does not decode, the inner `None` that its numbers are not values.
pub(crate) fn decode(
    bank: &TableBank,
    lossless: &Lossless,
    float: FloatFormat,
    span: &LosslessSpan<'_>,
    piece: &[u8],
) -> Result<Option<Vec<f32>>, PieceError> {
    let Some((coded, raw)) = split(piece) else { return Ok(None) };
    let mut symbols = vec![0i32; lossless.elements.len() * span.tokens];
    let codings = lossless.codings();
    decode_piece(bank, &PiecePlan { coefficients: &codings, tokens: span.tokens }, coded, &mut symbols)?;
    let mut raw = BitReader::new(raw);
    let mut values = span.predicted.to_vec();
    let mut patterns = vec![0; span.tokens - span.known];
    for (element, coding) in lossless.elements.iter().enumerate() {
        let cells = coding.cells(float);
        let row = span.row(element);
        predicted_patterns(float, &span.predicted[row.clone()], &mut patterns);
        for (bits, symbol) in patterns.iter_mut().zip(&symbols[row.clone()]) {
            let Some(cell) = cells.cell((*bits).into()).checked_add(*symbol) else { return Ok(None) };
            let Some(read) = cells.read(cell, &mut raw) else { return Ok(None) };
            *bits = read as u16; // a type of at most 16 bits
        }
        float.values(&patterns, &mut values[row]);
    }
    Ok(raw.is_at_end().then_some(values))
}

/// The float type of a model's cache, if it can be stored bit for bit.
pub fn float_of(dtype: KvDtype) -> Option<FloatFormat> {
    match dtype {
        KvDtype::Bf16 => Some(FloatFormat::Bf16),
        KvDtype::F16 => Some(FloatFormat::F16),
        KvDtype::Fp8E4m3 => Some(FloatFormat::E4m3),
        KvDtype::F32 | KvDtype::Int8 => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rans::AliasTable;

    proptest! {
        /// Every bit pattern of every type over every prediction, whatever the tables were made for.
        #[test]
        fn every_value_comes_back(
            kind in 0usize..3, floor in 1u8..40, known in 0usize..3, wild: bool,
            patterns in prop::collection::vec((any::<u16>(), any::<u16>()), 6..200), cut: prop::sample::Index,
        ) {
            let float = [FloatFormat::Bf16, FloatFormat::F16, FloatFormat::E4m3][kind];
            let mask = (1u32 << float.width()) - 1;
            let of = |bits: u16| float.value(u32::from(bits) & mask);
            let elements = 2;
            let tokens = patterns.len() / elements;
            let count = tokens * elements;
            let values: Vec<f32> = patterns[..count].iter().map(|(v, _)| of(*v)).collect();
            prop_assume!(values.iter().all(|v| !v.is_nan()));
            let mut predicted: Vec<f32> = patterns[..count].iter().map(|(_, p)| of(*p)).collect();
            if wild {
                predicted[..3].copy_from_slice(&[f32::NAN, f32::NEG_INFINITY, 3e38]);
            }
            let table = AliasTable::from_counts(&[3; 16]);
            let bank = TableBank::new(vec![table], vec![]).expect("one table");
            let coding = ElementCoding { table: 0, floor };
            let lossless = Lossless { residual: false, elements: vec![coding; elements] };
            let span = LosslessSpan { tokens, known, predicted: &predicted };
            let piece = encode(&bank, &lossless, float, &span, &values).expect("all fit").expect("codes");
            let back = decode(&bank, &lossless, float, &span, &piece).expect("decodes").expect("values");
            for (index, value) in back.iter().enumerate() {
                let expected = if index % tokens < known { predicted[index] } else { values[index] };
                prop_assert_eq!(value.to_bits(), expected.to_bits());
            }
            let short = &piece[..cut.index(piece.len())];
            prop_assert!(!matches!(decode(&bank, &lossless, float, &span, short), Ok(Some(_))));
        }
    }
}
