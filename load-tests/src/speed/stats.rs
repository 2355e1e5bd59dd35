//! Medians of pairs.

use serde_json::{Value, json};

/// Sorted copy.
fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// The value that a share of all does not exceed.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let values = sorted(values);
    let at = ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len().max(1)) - 1;
    values.get(at).copied().unwrap_or(f64::NAN)
}

/// The median.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Two things measured in turn: medians, the median of the pairs' quotients, and all of it.
pub(crate) fn pairs(names: [&str; 2], values: &[[f64; 2]], unit: &str) -> Value {
    let of = |i: usize| values.iter().map(|pair| pair[i]).collect::<Vec<_>>();
    let quotients: Vec<f64> = values.iter().map(|[a, b]| a / b).collect();
    json!({
        "unit": unit,
        names[0]: median(&of(0)),
        names[1]: median(&of(1)),
        "quotient": median(&quotients),
        "raw": values,
    })
}
