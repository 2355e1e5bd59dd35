//! The analysis matrix that encoders use with a trained basis.

use faer::{
    Accum, Mat, MatRef, Par, Side,
    linalg::{matmul::matmul, solvers::Solve},
};
use half::f16;

use crate::{limits::LEAST_SQUARES_RANK_MAX, profile::Basis};

/// `[coefficient][element]`: coefficients of least squares error for `synthesis`.
///
/// Rows that are packed in few bits are not quite orthogonal, so their transpose would leak between coefficients:
/// with `S` the rows, `(S Sᵀ)⁻¹ S` does not. Rows in f16 are orthogonal to f16's precision.
pub(crate) fn analysis(basis: &Basis, elements: usize) -> Option<Vec<f32>> {
    let floats = |values: &[f16]| values.iter().copied().map(f16::to_f32).collect::<Vec<f32>>();
    match basis {
        Basis::Identity => None,
        Basis::Trained { analysis: Some(analysis), .. } => Some(floats(analysis)),
        Basis::Trained { synthesis, packed, .. } => {
            let rows = floats(synthesis);
            let rank = rows.len() / elements.max(1);
            if packed.is_none() || rank > LEAST_SQUARES_RANK_MAX {
                return Some(rows);
            }
            Some(least_squares(&rows, rank, elements).unwrap_or(rows))
        }
    }
}

/// `None` where the rows are linearly dependent.
fn least_squares(rows: &[f32], rank: usize, elements: usize) -> Option<Vec<f32>> {
    let rows = MatRef::from_row_major_slice(rows, rank, elements);
    let mut gram = Mat::<f32>::zeros(rank, rank);
    matmul(gram.as_mut(), Accum::Replace, rows, rows.transpose(), 1.0, Par::Seq);
    let solved = gram.llt(Side::Lower).ok()?.solve(rows);
    let mut out = Vec::with_capacity(rank * elements);
    (0..rank).for_each(|row| out.extend((0..elements).map(|element| solved[(row, element)])));
    out.iter().all(|v| v.is_finite()).then_some(out)
}
