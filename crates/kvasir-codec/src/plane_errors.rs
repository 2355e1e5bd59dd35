//! The loss of a decoded cache, plane by plane.

use kvasir_types::{ModelSpec, Plane};

use crate::KvBuffer;

/// Error of every plane, by `2 · layer + plane`: the power of `truth - other` over that of `truth` about the
/// means of its elements. `None` if a plane is empty or constant, or a value is not finite.
pub fn plane_errors(spec: &ModelSpec, truth: &KvBuffer, other: &KvBuffer) -> Vec<Option<f64>> {
    let planes = (0..spec.layers.len()).flat_map(|layer| Plane::ALL.map(|plane| (layer, plane)));
    let error_of = |(layer, plane): (usize, Plane)| {
        let (heads, dim) = spec.layers[layer].layout.planes()[plane as usize];
        let (mut power, mut error) = (0f64, 0f64);
        for head in 0..heads {
            let rows = truth.rows(layer, plane, head);
            power += power_about_mean(rows, dim);
            let pairs = rows.iter().zip(other.rows(layer, plane, head));
            error += pairs.map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
        }
        (power > 0.0 && power.is_finite() && error.is_finite()).then(|| error / power)
    };
    planes.map(error_of).collect()
}

fn power_about_mean(rows: &[f32], dim: usize) -> f64 {
    let tokens = (rows.len() / dim.max(1)).max(1);
    let mut mean = vec![0f64; dim];
    rows.iter().enumerate().for_each(|(i, x)| mean[i % dim] += f64::from(*x) / tokens as f64);
    rows.iter().enumerate().map(|(i, x)| (f64::from(*x) - mean[i % dim]).powi(2)).sum()
}
