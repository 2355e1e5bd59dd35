//! The linear algebra of training: covariances, leading subspaces.

use faer::{
    Accum, Mat, MatMut, MatRef, Par, Side,
    linalg::matmul::{
        matmul,
        triangular::{self, BlockStructure},
    },
};

/// Symmetric `elements × elements` accumulator of outer products.
#[derive(Debug)]
pub(super) struct Covariance {
    sum: Mat<f32>,
}

impl Covariance {
    pub(super) fn new(elements: usize) -> Self {
        Self { sum: Mat::zeros(elements, elements) }
    }

    /// Adds `weight · Σ row rowᵀ` over `rows`, `[row][element]`.
    pub(super) fn add(&mut self, rows: &[f32], weight: f32) {
        let elements = self.sum.nrows();
        let rows = MatRef::from_row_major_slice(rows, rows.len() / elements, elements);
        let whole = BlockStructure::Rectangular;
        triangular::matmul(
            self.sum.as_mut(),
            BlockStructure::TriangularLower, // all that `leading` reads
            Accum::Add,
            rows.transpose(),
            whole,
            rows,
            whole,
            weight,
            Par::rayon(0),
        );
    }

    /// The sum of all eigenvalues.
    pub(super) fn power(&self) -> f64 {
        (0..self.sum.nrows()).map(|element| f64::from(self.sum[(element, element)])).sum()
    }

    /// The `rank` leading eigenvectors, `[vector][element]`, and their eigenvalues, decreasing; `None` if the
    /// decomposition fails.
    pub(super) fn leading(&self, rank: usize) -> Option<(Vec<f32>, Vec<f32>)> {
        let eigen = self.sum.self_adjoint_eigen(Side::Lower).ok()?;
        let (vectors, values, elements) = (eigen.U(), eigen.S(), self.sum.nrows());
        let (mut out, mut spectrum) = (Vec::with_capacity(rank * elements), Vec::with_capacity(rank));
        for column in (0..elements).rev().take(rank) {
            out.extend((0..elements).map(|row| vectors[(row, column)]));
            spectrum.push(values[column].max(0.0));
        }
        out.iter().all(|v| v.is_finite()).then_some((out, spectrum))
    }
}

/// `out[i][j] = Σ_k a[i][k] · b[k][j]`, all row-major.
pub(super) fn product(rows: usize, inner: usize, columns: usize, a: &[f32], b: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; rows * columns];
    matmul(
        MatMut::from_row_major_slice_mut(&mut out, rows, columns),
        Accum::Replace,
        MatRef::from_row_major_slice(a, rows, inner),
        MatRef::from_row_major_slice(b, inner, columns),
        1.0,
        Par::rayon(0),
    );
    out
}

/// An orthonormal basis, `[vector][column]`, of the leading right singular subspace of `matrix`,
/// `[row][column]`, by randomised subspace iteration (Halko, Martinsson, Tropp 2011, algorithm 4.4).
pub(super) fn leading_subspace(matrix: &[f32], rows: usize, columns: usize, rank: usize) -> Vec<f32> {
    /// Extra directions that make the leading ones accurate.
    const OVERSAMPLING: usize = 8;
    let width = (rank + OVERSAMPLING).min(rows).min(columns);
    let matrix = MatRef::from_row_major_slice(matrix, rows, columns);
    let mut range = (matrix * noise(columns, width)).qr().compute_thin_Q();
    for _ in 0..2 {
        let back = (matrix.transpose() * &range).qr().compute_thin_Q();
        range = (matrix * &back).qr().compute_thin_Q();
    }
    let basis = (matrix.transpose() * &range).qr().compute_thin_Q();
    // Rotate to principal directions, so that the first `rank` are the best.
    let small = matrix * &basis;
    let gram = small.transpose() * &small;
    let Ok(eigen) = gram.self_adjoint_eigen(Side::Lower) else { return Vec::new() };
    let rotated = &basis * eigen.U();
    let count = rank.min(width);
    let mut out = Vec::with_capacity(count * columns);
    for column in (0..width).rev().take(count) {
        out.extend((0..columns).map(|row| rotated[(row, column)]));
    }
    out
}

/// Reproducible, nearly Gaussian entries: sums of four uniform ones from a fixed linear congruence.
pub(super) fn noise(rows: usize, columns: usize) -> Mat<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    };
    Mat::from_fn(rows, columns, |_, _| uniform() + uniform() + uniform() + uniform())
}
