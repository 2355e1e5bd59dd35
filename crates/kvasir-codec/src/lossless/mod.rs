//! The exact level: caches bit for bit, opt-in by profile (FORMAT.md "Exact level").
//!
//! Two ways. *Residual*: what the finest lossy level leaves, as a difference of ordered integers; how many bits that
//! has is nearly constant once the size of a unit in the last place is taken out, so one narrow symbol says it and the
//! rest are raw bits. *Only*: nothing beneath; the exponent, against the element's usual one, is the symbol; sign and
//! mantissa are raw, for nothing predicts them.

mod bits;
mod float;

use kvasir_types::KvDtype;

use self::bits::{BitReader, BitWriter};
pub(crate) use self::float::Float;
use crate::rans::{Coding, PieceError, PiecePlan, TableBank, decode_piece, encode_piece};

/// How a scope's exact level is coded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lossless {
    /// Whether the finest lossy level lies beneath.
    pub(crate) residual: bool,
    /// One entry an element.
    pub(crate) elements: Vec<ElementCoding>,
}

/// How one element's symbols are made and coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ElementCoding {
    /// Stage table.
    pub(crate) table: u8,
    /// Least exponent that a prediction is taken to have: an error's size does not shrink with it any further.
    pub(crate) floor: u8,
    /// What is subtracted from a symbol.
    pub(crate) base: i16,
}

/// What a symbol says and what is left to raw bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Split {
    /// Before the base is subtracted.
    pub(crate) key: i32,
    raw: u32,
    width: u32,
}

impl Lossless {
    /// How a value is told.
    pub(crate) fn split(&self, float: Float, floor: u8, value: u32, predicted: u32) -> Split {
        if !self.residual {
            let low = float.mantissa_bits();
            let sign = value >> (float.width() - 1);
            let raw = sign << low | value & ((1 << low) - 1);
            return Split { key: float.exponent(value), raw, width: low + 1 };
        }
        let difference = float.order(value) - float.order(predicted);
        let code = ((difference << 1) ^ (difference >> 31)).cast_unsigned();
        let bits = u32::BITS - code.leading_zeros();
        let width = bits.saturating_sub(1);
        let key = bits as i32 + float.exponent(predicted).max(i32::from(floor));
        Split { key, raw: code & ((1u32 << width) - 1), width }
    }

    /// Bits that follow a key; `None` where no value has it.
    fn width(&self, float: Float, floor: u8, key: i32, predicted: u32) -> Option<u32> {
        if !self.residual {
            return float.has_exponent(key).then_some(float.mantissa_bits() + 1);
        }
        let bits = key.checked_sub(float.exponent(predicted).max(i32::from(floor)))?;
        // The zigzag code of a difference of two ordered integers has at most one bit more than they.
        (0..=float.width() as i32 + 1).contains(&bits).then(|| (bits as u32).saturating_sub(1))
    }

    /// The inverse of [`split`](Self::split); `None` where the bits are no value.
    fn join(&self, float: Float, floor: u8, split: Split, predicted: u32) -> Option<u32> {
        if !self.residual {
            let low = float.mantissa_bits();
            let sign = split.raw >> low;
            let exponent = split.key.cast_unsigned();
            return Some(sign << (float.width() - 1) | exponent << low | split.raw & ((1 << low) - 1));
        }
        let bits = split.key - float.exponent(predicted).max(i32::from(floor));
        let code = if bits == 0 { 0 } else { 1u32 << split.width | split.raw };
        let difference = (code >> 1).cast_signed() ^ -((code & 1).cast_signed());
        float.of_order(float.order(predicted).checked_add(difference)?)
    }

    fn codings(&self) -> Vec<Coding> {
        let stage = |e: &ElementCoding| Coding::Stage { table: e.table, trits: 0, trit_table: 0 };
        self.elements.iter().map(stage).collect()
    }
}

/// Values and what is predicted of them, both `[element][token]`; the first `known` tokens are told elsewhere.
pub(crate) struct Span<'a> {
    pub(crate) tokens: usize,
    pub(crate) known: usize,
    pub(crate) predicted: &'a [f32],
}

/// The piece of the exact level; `None` where the cache's type does not hold a value.
pub(crate) fn encode(
    bank: &TableBank,
    lossless: &Lossless,
    float: Float,
    span: &Span<'_>,
    values: &[f32],
) -> Option<Result<Vec<u8>, PieceError>> {
    let mut symbols = vec![0i32; values.len()];
    let mut raw = BitWriter::default();
    for (element, coding) in lossless.elements.iter().enumerate() {
        for token in span.known..span.tokens {
            let index = element * span.tokens + token;
            let bits = float.bits(values[index]);
            if float.value(bits).to_bits() != values[index].to_bits() {
                return None;
            }
            let split = lossless.split(float, coding.floor, bits, float.bits(span.predicted[index]));
            symbols[index] = split.key - i32::from(coding.base);
            raw.push(split.raw, split.width);
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

/// Values of an exact piece, `[element][token]`; those of known tokens are as predicted. The outer error is a piece that
/// does not decode, the inner `None` one whose numbers are no values.
pub(crate) fn decode(
    bank: &TableBank,
    lossless: &Lossless,
    float: Float,
    span: &Span<'_>,
    piece: &[u8],
) -> Result<Option<Vec<f32>>, PieceError> {
    let Some((length, rest)) = piece.split_first_chunk::<4>() else { return Ok(None) };
    let Some((coded, raw)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize) else {
        return Ok(None);
    };
    let mut symbols = vec![0i32; lossless.elements.len() * span.tokens];
    let codings = lossless.codings();
    decode_piece(bank, &PiecePlan { coefficients: &codings, tokens: span.tokens }, coded, &mut symbols)?;
    let mut raw = BitReader::new(raw);
    let mut values = span.predicted.to_vec();
    for (element, coding) in lossless.elements.iter().enumerate() {
        for token in span.known..span.tokens {
            let index = element * span.tokens + token;
            let predicted = float.bits(span.predicted[index]);
            let Some(key) = symbols[index].checked_add(i32::from(coding.base)) else { return Ok(None) };
            let Some(width) = lossless.width(float, coding.floor, key, predicted) else { return Ok(None) };
            let Some(bits) = raw.take(width) else { return Ok(None) };
            let split = Split { key, raw: bits, width };
            let Some(value) = lossless.join(float, coding.floor, split, predicted) else { return Ok(None) };
            values[index] = float.value(value);
        }
    }
    Ok(raw.is_at_end().then_some(values))
}

/// The float type of a model's cache, where it can be stored bit for bit.
pub(crate) fn float_of(dtype: KvDtype) -> Option<Float> {
    match dtype {
        KvDtype::Bf16 => Some(Float::Bf16),
        KvDtype::F16 => Some(Float::F16),
        KvDtype::Fp8E4m3 => Some(Float::E4m3),
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
            residual: bool, kind in 0usize..3, floor in 0u8..40, base in -20i16..60, known in 0usize..3,
            patterns in prop::collection::vec((any::<u16>(), any::<u16>()), 6..200), cut: prop::sample::Index,
        ) {
            let float = [Float::Bf16, Float::F16, Float::E4m3][kind];
            let mask = (1u32 << float.width()) - 1;
            let of = |bits: u16| float.value(u32::from(bits) & mask);
            let elements = 2;
            let tokens = patterns.len() / elements;
            let count = tokens * elements;
            let values: Vec<f32> = patterns[..count].iter().map(|(v, _)| of(*v)).collect();
            prop_assume!(values.iter().all(|v| !v.is_nan()));
            let predicted: Vec<f32> = patterns[..count].iter().map(|(_, p)| of(*p)).collect();
            prop_assume!(predicted.iter().all(|v| v.is_finite()));
            let table = AliasTable::from_counts(&[3; 16]);
            let bank = TableBank::new(vec![table], vec![]).expect("one table");
            let coding = ElementCoding { table: 0, floor, base };
            let lossless = Lossless { residual, elements: vec![coding; elements] };
            let span = Span { tokens, known, predicted: &predicted };
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
