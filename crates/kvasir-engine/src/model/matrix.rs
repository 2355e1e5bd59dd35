//! Dense `f32` arithmetic of the forward pass: row-major matrices, products by `faer`.

use faer::{Accum, MatMut, MatRef, Par, linalg::matmul::matmul};

/// A row-major matrix.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Matrix {
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    /// Concatenated rows of `columns` values each; `columns` is at least 1.
    pub(super) fn new(columns: usize, values: Vec<f32>) -> Self {
        debug_assert!(values.len().is_multiple_of(columns), "whole rows");
        Self { columns, values }
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..(row + 1) * self.columns]
    }

    /// The range `rows` of rows, concatenated.
    pub(super) fn rows(&self, rows: std::ops::Range<usize>) -> &[f32] {
        &self.values[rows.start * self.columns..rows.end * self.columns]
    }

    /// The rows of these indices.
    pub(super) fn select(&self, rows: impl Iterator<Item = usize>) -> Self {
        Self::new(self.columns, rows.flat_map(|row| self.row(row)).copied().collect())
    }

    /// `self += other`, of the same shape.
    pub(super) fn add(&mut self, other: &Self) {
        self.values.iter_mut().zip(&other.values).for_each(|(value, other)| *value += other);
    }

    /// `self · weightᵀ`, the weight as Hugging Face stores it: `[out, in]`.
    pub(super) fn linear(&self, weight: &Self) -> Self {
        let (rows, columns) = (self.values.len() / self.columns, weight.values.len() / weight.columns);
        let mut out = vec![0.0; rows * columns];
        let weight = MatRef::from_row_major_slice(&weight.values, columns, weight.columns).transpose();
        product(&mut out, &self.values, weight, Par::rayon(0));
        Self::new(columns, out)
    }

    /// Every row divided by its root mean square, times `weight` (Zhang, Sennrich 2019).
    pub(super) fn rms_norm(&self, weight: &[f32], eps: f32) -> Self {
        let mut out = self.clone();
        for row in out.values.chunks_exact_mut(self.columns) {
            let squares: f32 = row.iter().map(|value| value * value).sum();
            let scale = (squares / self.columns as f32 + eps).sqrt().recip();
            row.iter_mut().zip(weight).for_each(|(value, weight)| *value *= scale * weight);
        }
        out
    }

    /// `silu(self) ⊙ other`: the gate of a SwiGLU.
    pub(super) fn gate(mut self, other: &Self) -> Self {
        let gated = |(value, other): (&mut f32, &f32)| *value *= other / (1.0 + (-*value).exp());
        self.values.iter_mut().zip(&other.values).for_each(gated);
        self
    }
}

/// `out = a · b`, `out` and `a` row-major.
pub(super) fn product(out: &mut [f32], a: &[f32], b: MatRef<'_, f32>, parallel: Par) {
    let rows = out.len() / b.ncols();
    matmul(
        MatMut::from_row_major_slice_mut(out, rows, b.ncols()),
        Accum::Replace,
        MatRef::from_row_major_slice(a, rows, b.nrows()),
        b,
        1.0,
        parallel,
    );
}

/// Turns scores into probabilities that sum to one.
pub(super) fn softmax(scores: &mut [f32]) {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - highest).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_is_that_of_the_definitions() {
        let x = Matrix::new(2, vec![1.0, 2.0, -3.0, 4.0]);
        let weight = Matrix::new(2, vec![1.0, 0.0, 1.0, 1.0, 0.5, -1.0]);
        assert_eq!(x.linear(&weight), Matrix::new(3, vec![1.0, 3.0, -1.5, -3.0, 1.0, -5.5]));
        let normed = x.rms_norm(&[1.0, 2.0], 0.5);
        assert_eq!(normed.row(0), [3f32.sqrt().recip(), 4.0 * 3f32.sqrt().recip()]);
        let gated = x.clone().gate(&Matrix::new(2, vec![2.0; 4]));
        let silu = |x: f32| x / (1.0 + (-x).exp());
        for (found, value) in gated.values().iter().zip(x.values()) {
            assert!((found - 2.0 * silu(*value)).abs() < 1e-6);
        }
        let mut scores = [0.0, f32::NEG_INFINITY, 3f32.ln()];
        softmax(&mut scores);
        for (found, expected) in scores.iter().zip([0.25, 0.0, 0.75]) {
            assert!((found - expected).abs() < 1e-6, "{scores:?}");
        }
    }
}
