//! SqueezeAttention (arXiv 2404.04793): layers whose attention changes little pass part of their budget to
//! the others.

/// Groups layers by KMeans on their similarity into three: 0 = most important (least similar) … 2 = least.
///
/// One-dimensional KMeans, started at the minimum, the middle and the maximum, to convergence: deterministic.
pub fn layer_groups(similarities: &[f64]) -> Vec<usize> {
    let low = similarities.iter().copied().fold(f64::INFINITY, f64::min);
    let high = similarities.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut centres = [low, f64::midpoint(low, high), high];
    let nearest = |centres: &[f64; 3], x: f64| {
        let distance = |i: &usize| (centres[*i] - x).abs();
        (0..3).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
    };
    loop {
        let groups: Vec<usize> = similarities.iter().map(|&x| nearest(&centres, x)).collect();
        let mut moved = centres;
        for (group, centre) in moved.iter_mut().enumerate() {
            let members: Vec<f64> =
                similarities.iter().zip(&groups).filter(|(_, g)| **g == group).map(|(x, _)| *x).collect();
            if !members.is_empty() {
                *centre = members.iter().sum::<f64>() / members.len() as f64;
            }
        }
        if moved == centres {
            return groups;
        }
        centres = moved;
    }
}

/// Tokens per layer: the least important group gets `budget × p`, and the others share the rest, so that the
/// mean stays `budget` (rounded down). `p` of 0.3–0.4 is the paper's best; 1 changes nothing.
pub fn squeeze(similarities: &[f64], budget: usize, p: f64) -> Vec<usize> {
    let groups = layer_groups(similarities);
    let squeezed = groups.iter().filter(|&&group| group == 2).count();
    let others = similarities.len() - squeezed;
    if others == 0 {
        return vec![budget; similarities.len()];
    }
    let low = (budget as f64 * p).floor() as usize;
    let high = (similarities.len() * budget - squeezed * low) / others;
    groups.iter().map(|&group| if group == 2 { low } else { high }).collect()
}
