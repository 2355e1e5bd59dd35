//! Static means and scales.

use super::data::Corpus;
use kvasir_codec::authoring::Scope;

/// Smallest scale: a plane below it is constant in practice, and its inverse must stay finite.
const SCALE_MIN: f64 = 1e-30;

/// Smallest power that errors are compared with: a normal number.
const POWER_MIN: f64 = 1e-36;

/// Sets a scope's means, the powers of its (layer, plane) pairs about them, and its gains: the root of the
/// power over the root of the cost of an error. Equal errors in units of the gain then have equal cost, and
/// one step serves all.
pub(super) fn set_mean_and_scale(corpus: &Corpus<'_>, scope: &mut Scope) {
    let elements = scope.elements();
    let (mut sum, mut square, mut count) = (vec![0f64; elements], vec![0f64; elements], 0u64);
    corpus.stream(scope, &corpus.fit, |block| {
        for row in block.elements.chunks_exact(elements) {
            for ((sum, square), x) in sum.iter_mut().zip(&mut square).zip(row) {
                let x = f64::from(*x);
                *sum += x;
                *square += x * x;
            }
        }
        count += block.current.len() as u64;
    });
    let count = count.max(1) as f64;
    let mut variance = vec![0f64; elements];
    for (element, mean) in scope.mean.iter_mut().enumerate() {
        *mean = (sum[element] / count) as f32;
        variance[element] = (square[element] / count - f64::from(*mean).powi(2)).max(0.0);
    }
    let mut plane_variance = std::collections::BTreeMap::<_, (f64, usize)>::new();
    let mut start = 0;
    for member in &scope.members {
        let entry = plane_variance.entry((member.layer, member.plane)).or_default();
        entry.0 += variance[start..start + member.dim].iter().sum::<f64>();
        entry.1 += member.dim;
        start += member.dim;
    }
    for member in &mut scope.members {
        let (total, dims) = plane_variance[&(member.layer, member.plane)];
        let weight = f64::from(corpus.weight(member.layer, member.plane));
        let power = total / dims as f64;
        member.gain = (power / weight).sqrt().clamp(SCALE_MIN, 1e30) as f32;
        member.power = power.clamp(POWER_MIN, 1e36) as f32;
    }
}
