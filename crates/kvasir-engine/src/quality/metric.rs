//! The cost of an error in the cache by its direction within a head.

use kvasir_train::Metric;
use kvasir_types::Plane;

use crate::{
    error::EngineError,
    model::{Model, Observer},
};

/// Sums of squares of the queries that meet each KV head, `[layer][kv head][element]`.
struct QueryPower(Vec<Vec<Vec<f64>>>);

impl Observer for QueryPower {
    fn queries(&mut self, layer: usize, queries: &[f32]) {
        let heads = &mut self.0[layer];
        let of_head = queries.len() / heads.len();
        for (sums, values) in heads.iter_mut().zip(queries.chunks_exact(of_head)) {
            for row in values.chunks_exact(sums.len()) {
                sums.iter_mut().zip(row).for_each(|(sum, q)| *sum += f64::from(*q).powi(2));
            }
        }
    }
}

/// For keys, `q · k` counts, so the matrix is the second moment of the queries that attend to a head. A
/// rotary pair of a query rotates against an un-roped key with the distance between them. Both elements of a
/// pair therefore count the same, and pairs of different frequencies do not correlate. For values, `Wᵒ v`
/// counts, so the matrix is `Wᵒᵀ Wᵒ` summed over a head's group.
///
/// # Errors
/// As [`Model::calculate_kv`]; [`EngineError::EmptyPrompt`] if the texts contain no data for a plane.
pub fn metric(model: &Model, texts: &[Vec<u32>]) -> Result<Metric, EngineError> {
    let config = model.config();
    let (dim, kv_heads, groups) = (config.head_dim, config.kv_heads, config.heads / config.kv_heads);
    let mut power = QueryPower(vec![vec![vec![0.0; dim]; kv_heads]; config.layers]);
    for text in texts {
        model.extend_observed(&mut model.new_kv()?, text, &mut power)?;
    }
    let mut metric = Metric::default();
    for (layer, heads) in power.0.iter().enumerate() {
        let keys: Vec<Vec<f64>> = heads
            .iter()
            .map(|sums| {
                let half = dim / 2; // half-split pairing: element i turns with i + half
                let of_pair = |i: usize| (sums[i % half] + sums[i % half + half]) / 2.0;
                (0..dim * dim).map(|at| if at / dim == at % dim { of_pair(at % dim) } else { 0.0 }).collect()
            })
            .collect();
        let projection = model.output_projection(layer);
        let values: Vec<Vec<f64>> = (0..kv_heads)
            .map(|head| gram(projection, config.heads * dim, head * groups * dim, (groups, dim)))
            .collect();
        let set = metric.set(layer, Plane::K, dim, &keys).and(metric.set(layer, Plane::V, dim, &values));
        set.ok_or(EngineError::EmptyPrompt)?;
    }
    Ok(metric)
}

/// `Σ_g Σ_r w[r][first + g·dim + i] · w[r][first + g·dim + j]` of rows of `width`.
fn gram(weights: &[f32], width: usize, first: usize, (groups, dim): (usize, usize)) -> Vec<f64> {
    let mut out = vec![0f64; dim * dim];
    for row in weights.chunks_exact(width) {
        for part in row[first..first + groups * dim].chunks_exact(dim) {
            for (i, a) in part.iter().enumerate() {
                let sums = out[i * dim..].iter_mut().zip(part);
                sums.for_each(|(sum, b)| *sum += f64::from(*a) * f64::from(*b));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gram_matrix_sums_over_the_query_heads_of_a_group() {
        // Two KV heads with two query heads each, one element per head: rows of four weights.
        let weights = [1.0, 2.0, 3.0, 4.0, 0.5, 0.0, 1.0, 1.0];
        assert_eq!(gram(&weights, 4, 0, (2, 1)), [1.0 + 4.0 + 0.25]);
        assert_eq!(gram(&weights, 4, 2, (2, 1)), [9.0 + 16.0 + 2.0]);
    }

    #[test]
    fn the_shipped_model_has_a_metric() {
        let model = Model::kvasir_tiny().expect("ships");
        let text: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 2048).collect();
        assert_ne!(metric(&model, &[text]).expect("measured"), Metric::default());
    }
}
