//! Products with a scope's basis.

use half::f16;

use crate::{
    analysis::analysis,
    arch::matmul::{Shape, multiply},
    profile::{Basis, Scope},
};

/// A basis in f32, for one direction.
#[derive(Debug, Clone)]
pub enum Matrix {
    /// Coefficient = element.
    Identity,
    /// `[coefficient][element]`.
    Dense(Vec<f32>),
}

impl Matrix {
    /// The synthesis matrix of a scope.
    pub fn synthesis(scope: &Scope) -> Self {
        match &scope.basis {
            Basis::Identity => Self::Identity,
            Basis::Trained { synthesis, .. } => {
                Self::Dense(synthesis.iter().copied().map(f16::to_f32).collect())
            }
        }
    }

    /// The analysis matrix of a scope.
    pub fn analysis(scope: &Scope) -> Self {
        analysis(&scope.basis, scope.elements()).map_or(Self::Identity, Self::Dense)
    }

    /// Coefficients of some tokens, `[token][coefficient]`.
    pub fn coefficients(&self, tokens: usize, rank: usize, elements: &[f32]) -> Vec<f32> {
        let (mut by_coefficient, mut out) = (vec![0.0; rank * tokens], vec![0.0; rank * tokens]);
        self.analyse(tokens, elements, &mut by_coefficient);
        transpose(rank, tokens, &by_coefficient, &mut out);
        out
    }

    /// Distance between the elements of consecutive tokens for a fast analysis: rows at multiples of a KiB
    /// would share few sets of the caches.
    pub fn stride(&self, elements: usize) -> usize {
        const SETS: usize = 1024 / size_of::<f32>();
        const PADDING: usize = 16;
        match self {
            Self::Dense(_) if elements.is_multiple_of(SETS) => elements + PADDING,
            Self::Identity | Self::Dense(_) => elements,
        }
    }

    /// `coefficients[c][t] = Σ_e matrix[c][e] · elements[t][e]`. All rows of the matrix are used; those of
    /// `elements` may be longer.
    pub fn analyse(&self, tokens: usize, elements: &[f32], coefficients: &mut [f32]) {
        let (rank, stride) = (coefficients.len() / tokens, elements.len() / tokens);
        match self {
            Self::Identity => transpose(tokens, rank, elements, coefficients),
            Self::Dense(matrix) => {
                let width = matrix.len().checked_div(rank).unwrap_or(0);
                multiply(
                    (coefficients, Shape::column_major(tokens, rank)),
                    (elements, Shape::part(tokens, width, stride)),
                    (matrix, Shape::column_major(width, rank)),
                );
            }
        }
    }

    /// `elements[t][e] = Σ_c coefficients[c][t] · matrix[c][e]`, accumulated in f32.
    pub fn synthesise(&self, tokens: usize, coefficients: &[f32], elements: &mut [f32]) {
        let (rank, width) = (coefficients.len() / tokens, elements.len() / tokens);
        match self {
            Self::Identity => transpose(rank, tokens, coefficients, elements),
            Self::Dense(matrix) => multiply(
                (elements, Shape::row_major(tokens, width)),
                (coefficients, Shape::column_major(tokens, rank)),
                (matrix, Shape::row_major(rank, width)),
            ),
        }
    }
}

/// `out[column][row] = values[row][column]`, in squares that fit the cache on both sides.
fn transpose(rows: usize, columns: usize, values: &[f32], out: &mut [f32]) {
    const SQUARE: usize = 16;
    debug_assert_eq!(values.len(), rows * columns);
    for first in (0..columns).step_by(SQUARE) {
        let last = columns.min(first + SQUARE);
        for (row, values) in values.chunks_exact(columns).enumerate() {
            for column in first..last {
                out[column * rows + row] = values[column];
            }
        }
    }
}
