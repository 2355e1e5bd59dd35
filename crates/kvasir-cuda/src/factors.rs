//! Factors of the token predictor, looked up on the host.

use std::ops::Range;

use kvasir_codec::PredictorView;

/// Appends the factors of a span's tokens, current then previous; returns the number of both.
pub(crate) fn push_factors(
    out: &mut Vec<u8>,
    predictor: &PredictorView<'_>,
    text: &[u32],
    preceding: Option<u32>,
    span: &Range<usize>,
) -> u32 {
    let PredictorView::Token { vocabulary, factors, current, previous, .. } = *predictor else {
        return 0;
    };
    for token in span.clone() {
        let before = if token == 0 { preceding } else { text.get(token - 1).copied() };
        let pairs = [(text.get(token).copied(), current, factors[0]), (before, previous, factors[1])];
        for (id, table, width) in pairs {
            let known = id.map(|id| id as usize).filter(|id| *id < vocabulary);
            let row = known.and_then(|id| table.get(id * width..(id + 1) * width));
            match row {
                Some(row) => out.extend(row.iter().map(|v| v.cast_unsigned())),
                None => out.resize(out.len() + width, 0),
            }
        }
    }
    (factors[0] + factors[1]) as u32
}
