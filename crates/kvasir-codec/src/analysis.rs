//! The analysis matrix that encoders use with a trained basis.

use half::f16;

use crate::{
    arch::matmul::{Shape, multiply, subtract_product},
    limits::LEAST_SQUARES_RANK_MAX,
    profile::Basis,
};

/// `[coefficient][element]`: coefficients of least squares error for `synthesis`.
///
/// Rows that are packed in few bits are not quite orthogonal, so their transpose would leak between coefficients:
/// with `S` the rows, `(S Sᵀ)⁻¹ S` does not. Rows in f16 are orthogonal to f16's precision.
pub fn analysis(basis: &Basis, elements: usize) -> Option<Vec<f32>> {
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

/// Rows eliminated at a time: small enough to be inverted plainly, large enough for products to be fast.
const BLOCK: usize = 32;

/// `(S Sᵀ)⁻¹ S` by blockwise elimination; `None` if the rows are linearly dependent.
///
/// The Gram matrix is positive definite, so no row exchange is needed. Nearly all of the work is products.
fn least_squares(rows: &[f32], rank: usize, elements: usize) -> Option<Vec<f32>> {
    let (mut gram, mut solved) = (vec![0.0; rank * rank], rows.to_vec());
    multiply(
        (&mut gram, Shape::row_major(rank, rank)),
        (rows, Shape::row_major(rank, elements)),
        (rows, Shape::column_major(elements, rank)),
    );
    let mut inverses = Vec::with_capacity(rank.div_ceil(BLOCK));
    for start in (0..rank).step_by(BLOCK) {
        let end = rank.min(start + BLOCK);
        let (size, rest) = (end - start, rank - end);
        let (above, below) = gram.split_at_mut(end * rank);
        let pivot = &above[start * rank..];
        let inverse = inverse_of(&pivot[start..], size, rank)?;
        let mut factors = vec![0.0; rest * size];
        if rest > 0 {
            multiply(
                (&mut factors, Shape::row_major(rest, size)),
                (&below[start..], Shape::part(rest, size, rank)),
                (&inverse, Shape::row_major(size, size)),
            );
            subtract_product(
                (&mut below[end..], Shape::part(rest, rest, rank)),
                (&factors, Shape::row_major(rest, size)),
                (&pivot[end..], Shape::part(size, rest, rank)),
            );
            let (above, below) = solved.split_at_mut(end * elements);
            subtract_product(
                (below, Shape::row_major(rest, elements)),
                (&factors, Shape::row_major(rest, size)),
                (&above[start * elements..], Shape::row_major(size, elements)),
            );
        }
        inverses.push(inverse);
    }
    for (index, inverse) in inverses.iter().enumerate().rev() {
        let (start, end) = (index * BLOCK, rank.min((index + 1) * BLOCK));
        let (size, rest) = (end - start, rank - end);
        let (above, below) = solved.split_at_mut(end * elements);
        let mine = &mut above[start * elements..];
        if rest > 0 {
            subtract_product(
                (&mut *mine, Shape::row_major(size, elements)),
                (&gram[start * rank + end..], Shape::part(size, rest, rank)),
                (below, Shape::row_major(rest, elements)),
            );
        }
        let known = mine.to_vec();
        multiply(
            (mine, Shape::row_major(size, elements)),
            (inverse, Shape::row_major(size, size)),
            (&known, Shape::row_major(size, elements)),
        );
    }
    solved.iter().all(|v| v.is_finite()).then_some(solved)
}

/// The inverse of a positive definite matrix of `size` rows with the given `stride`, by its Cholesky factor;
/// `None` if it is not positive definite.
fn inverse_of(matrix: &[f32], size: usize, stride: usize) -> Option<Vec<f32>> {
    // Of `L`, and of its inverse: both lower triangular.
    let (mut lower, mut inverse) = (vec![0f64; size * size], vec![0f64; size * size]);
    for row in 0..size {
        for column in 0..=row {
            let dot = (0..column).map(|k| lower[row * size + k] * lower[column * size + k]).sum::<f64>();
            let rest = f64::from(matrix[row * stride + column]) - dot;
            if column < row {
                lower[row * size + column] = rest / lower[column * size + column];
            } else if rest > 0.0 && rest.is_finite() {
                lower[row * size + row] = rest.sqrt();
            } else {
                return None;
            }
        }
    }
    for column in 0..size {
        for row in column..size {
            let dot = (column..row).map(|k| lower[row * size + k] * inverse[k * size + column]).sum::<f64>();
            let unit = if row == column { 1.0 } else { 0.0 };
            inverse[row * size + column] = (unit - dot) / lower[row * size + row];
        }
    }
    // (L Lᵀ)⁻¹ = L⁻ᵀ L⁻¹
    let entry = |row: usize, column: usize| {
        (row.max(column)..size).map(|k| inverse[k * size + row] * inverse[k * size + column]).sum::<f64>()
            as f32
    };
    Some((0..size * size).map(|i| entry(i / size, i % size)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_of_rows_that_are_not_orthogonal_do_not_leak() {
        for (rank, elements) in [(1, 5), (7, 40), (32, 50), (33, 200), (90, 300)] {
            let mut noise = crate::noise::Noise::new(rank as u64);
            let rows: Vec<f32> = (0..rank * elements).map(|_| noise.normal()).collect();
            let solved = least_squares(&rows, rank, elements).expect("independent rows");
            let mut identity = vec![0.0; rank * rank];
            multiply(
                (&mut identity, Shape::row_major(rank, rank)),
                (&solved, Shape::row_major(rank, elements)),
                (&rows, Shape::column_major(elements, rank)),
            );
            for (i, x) in identity.iter().enumerate() {
                let expected = if i / rank == i % rank { 1.0 } else { 0.0 };
                assert!((x - expected).abs() < 1e-4, "{rank} × {elements}, {i}: {x}");
            }
        }
    }

    #[test]
    fn dependent_rows_have_no_least_squares() {
        assert_eq!(least_squares(&[1.0, 2.0, 3.0, 2.0, 4.0, 6.0], 2, 3), None);
        assert_eq!(least_squares(&[0.0; 6], 2, 3), None);
    }
}
