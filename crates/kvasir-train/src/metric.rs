//! The cost of an error by its direction within a head: keys by the power of the queries, values by the
//! output projection.

use std::collections::BTreeMap;

use faer::{Mat, Side};
use kvasir_types::Plane;

use kvasir_codec::authoring::Scope;

/// Share of the mean power that is added to every direction, so that none is free.
const RIDGE: f64 = 1e-3;

/// A positive definite matrix `M = L Lᵀ` per head; an error `e` costs `eᵀ M e`. In a basis computed for
/// `Lᵀ x`, quantisation errors have the same cost in all directions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metric {
    /// `L`, lower triangular, `[row][column]`, by layer, plane and head.
    factors: BTreeMap<(usize, usize, usize), Vec<f32>>,
}

impl Metric {
    /// Sets the `[heads][dim][dim]` matrices of one (layer, plane) in un-roped coordinates, scaled to a mean
    /// of 1 on the diagonal over its heads: the cost of the whole plane is measured separately. `None` if one
    /// is not positive semidefinite or all are zero.
    pub fn set(&mut self, layer: usize, plane: Plane, dim: usize, matrices: &[Vec<f64>]) -> Option<()> {
        let trace: f64 = matrices.iter().flat_map(|m| m.iter().step_by(dim + 1)).sum();
        let mean = trace / (matrices.len() * dim).max(1) as f64;
        if !mean.is_finite() || mean <= 0.0 {
            return None;
        }
        for (head, matrix) in matrices.iter().enumerate() {
            let ridge = |row: usize, column: usize| if row == column { RIDGE } else { 0.0 };
            let scaled = Mat::<f64>::from_fn(dim, dim, |r, c| matrix[r * dim + c] / mean + ridge(r, c));
            let decomposed = scaled.llt(Side::Lower).ok()?;
            let lower = decomposed.L();
            let entry = |r: usize, c: usize| if c <= r { lower[(r, c)] as f32 } else { 0.0 };
            let factor = (0..dim).flat_map(|r| (0..dim).map(move |c| entry(r, c))).collect();
            self.factors.insert((layer, plane as usize, head), factor);
        }
        Some(())
    }

    /// Rows `x` of a scope, `[row][element]`, to `Lᵀ x`.
    pub(super) fn weigh(&self, scope: &Scope, rows: &mut [f32]) {
        self.each(scope, rows, |factor, part| {
            let (dim, x) = (part.len(), part.to_vec());
            for (column, out) in part.iter_mut().enumerate() {
                *out = (column..dim).map(|row| factor[row * dim + column] * x[row]).sum();
            }
        });
    }

    /// Directions `v` in weighed coordinates to the analysis rows `L v`: `(L v) · x = v · Lᵀ x`.
    pub(super) fn analysis(&self, scope: &Scope, rows: &mut [f32]) {
        self.each(scope, rows, |factor, part| {
            let (dim, v) = (part.len(), part.to_vec());
            for (row, out) in part.iter_mut().enumerate() {
                *out = (0..=row).map(|column| factor[row * dim + column] * v[column]).sum();
            }
        });
    }

    /// Directions `v` in weighed coordinates to the synthesis rows `L⁻ᵀ v`, by back substitution.
    pub(super) fn synthesis(&self, scope: &Scope, rows: &mut [f32]) {
        self.each(scope, rows, |factor, part| {
            let dim = part.len();
            for row in (0..dim).rev() {
                let known: f32 = (row + 1..dim).map(|below| factor[below * dim + row] * part[below]).sum();
                part[row] = (part[row] - known) / factor[row * dim + row];
            }
        });
    }

    fn each(&self, scope: &Scope, rows: &mut [f32], apply: impl Fn(&[f32], &mut [f32])) {
        for row in rows.chunks_exact_mut(scope.elements()) {
            let mut rest = row;
            for member in &scope.members {
                let (part, behind) = rest.split_at_mut(member.dim);
                rest = behind;
                if let Some(factor) = self.factors.get(&(member.layer, member.plane as usize, member.head)) {
                    apply(factor, part);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_codec::authoring::scopes;

    #[test]
    fn analysis_and_synthesis_invert_each_other_and_keep_costs() {
        let spec = crate::common::mixed_spec(kvasir_types::KvDtype::Bf16);
        let scope = scopes(&spec, spec.layers.len(), true, true).remove(0);
        let (heads, dim) = spec.layers[0].layout.planes()[1];
        let matrix = |head: usize| -> Vec<f64> {
            // A Gram matrix of waves is positive semidefinite.
            let wave = |i: usize, k: usize| ((i * (k + 2) + head) as f64 * 0.7).sin();
            let gram = |r: usize, c: usize| (0..dim).map(|k| wave(r, k) * wave(c, k)).sum();
            (0..dim * dim).map(|i| gram(i / dim, i % dim)).collect()
        };
        let matrices: Vec<_> = (0..heads).map(matrix).collect();
        let mut metric = Metric::default();
        metric.set(0, Plane::V, dim, &matrices).expect("definite");
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let vector = |k: f32| (0..scope.elements()).map(|i| (i as f32 * k).cos()).collect::<Vec<f32>>();
        let (x, v) = (vector(0.3), vector(1.1));
        let (mut weighed, mut analysis, mut synthesis) = (x.clone(), v.clone(), v.clone());
        metric.weigh(&scope, &mut weighed);
        metric.analysis(&scope, &mut analysis);
        metric.synthesis(&scope, &mut synthesis);
        assert!((dot(&analysis, &x) - dot(&v, &weighed)).abs() < 1e-2);
        metric.weigh(&scope, &mut synthesis);
        assert!(synthesis.iter().zip(&v).all(|(a, b)| (a - b).abs() < 1e-2), "Lᵀ L⁻ᵀ v = v");
        assert_ne!(weighed, x);
        assert_eq!(metric.set(0, Plane::V, dim, &vec![vec![0.0; dim * dim]; heads]), None);
    }
}
