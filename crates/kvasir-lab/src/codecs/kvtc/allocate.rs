//! Bits for components: the least error within a budget, by dynamic programming.

use super::{Rung, half_levels};

/// Widest component.
const WIDTH_MAX: u8 = 8;
/// Steps tried for a width, as shares of the component's root mean square.
const STEP_SHARES: [f32; 7] = [0.02, 0.05, 0.12, 0.3, 0.6, 1.0, 1.6];

/// The cost of every width for a component: mean squared error and the step that reaches it.
#[derive(Debug)]
pub(super) struct Curve {
    errors: [f64; WIDTH_MAX as usize + 1],
    steps: [f32; WIDTH_MAX as usize + 1],
}

impl Curve {
    /// Measured on samples of the component.
    pub(super) fn measure(samples: &[f32]) -> Self {
        let power = |error: &dyn Fn(f32) -> f32| {
            samples.iter().map(|x| f64::from(error(*x)).powi(2)).sum::<f64>() / samples.len().max(1) as f64
        };
        let variance = power(&|x| x);
        let deviation = (variance.sqrt() as f32).max(f32::MIN_POSITIVE);
        let mut curve = Self { errors: [variance; 9], steps: [deviation; 9] };
        for width in 1..=WIDTH_MAX {
            let half = half_levels(width);
            for share in STEP_SHARES {
                let step = share * deviation;
                let error = power(&|x| x - (x / step).round_ties_even().clamp(-half, half) * step);
                if error < curve.errors[usize::from(width)] {
                    curve.errors[usize::from(width)] = error;
                    curve.steps[usize::from(width)] = step;
                }
            }
        }
        curve
    }
}

/// Widths with the smallest sum of errors for at most `budget` bits per token.
pub(super) fn allocate(curves: &[Curve], budget: usize) -> Rung {
    // best[b]: least error of the components so far with b bits; choice[c][b]: width of component c there
    let mut best = vec![0f64; budget + 1];
    let mut choices: Vec<Vec<u8>> = Vec::with_capacity(curves.len());
    for curve in curves {
        let mut next = vec![f64::INFINITY; budget + 1];
        let mut choice = vec![0u8; budget + 1];
        for bits in 0..=budget {
            for width in 0..=WIDTH_MAX.min(bits.min(255) as u8) {
                let error = best[bits - usize::from(width)] + curve.errors[usize::from(width)];
                if error < next[bits] {
                    (next[bits], choice[bits]) = (error, width);
                }
            }
        }
        best = next;
        choices.push(choice);
    }
    let mut left = budget;
    let mut widths = vec![0; curves.len()];
    for (width, choice) in widths.iter_mut().zip(&choices).rev() {
        *width = choice[left];
        left -= usize::from(*width);
    }
    let steps = widths.iter().zip(curves).map(|(w, curve)| curve.steps[usize::from(*w)]).collect();
    Rung { widths, steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_go_where_they_help_and_no_other_split_is_better() {
        let samples = |scale: f32| -> Vec<f32> {
            (0..500).map(|i| scale * ((i * 37 % 101) as f32 / 50.0 - 1.0)).collect()
        };
        let curves: Vec<Curve> = [8.0, 1.0, 0.1].map(|s| Curve::measure(&samples(s))).into();
        let error = |widths: &[u8]| -> f64 {
            widths.iter().zip(&curves).map(|(w, c)| c.errors[usize::from(*w)]).sum()
        };
        let rung = allocate(&curves, 7);
        assert!(rung.widths[0] > rung.widths[1] && rung.widths[1] >= rung.widths[2], "{:?}", rung.widths);
        for a in 0..=7u8 {
            for b in 0..=7 - a {
                for c in 0..=7 - a - b {
                    assert!(error(&rung.widths) <= error(&[a, b, c]));
                }
            }
        }
    }
}
