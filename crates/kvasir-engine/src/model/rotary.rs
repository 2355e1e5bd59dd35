//! Rotary embedding from the resolved frequencies of a [`Rope`]: the phase of a pair is an exact integer.

use kvasir_types::Rope;

/// Cosines and sines of every position of the context, `[context][rotary_dims / 2]` each.
#[derive(Debug)]
pub(super) struct RotaryTable {
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RotaryTable {
    /// Tabulates `rope` (half-split pairing over whole heads) for positions `0..context`.
    pub(super) fn new(rope: &Rope, context: usize) -> Self {
        let angles = (0..context as u64).flat_map(|position| {
            rope.freqs.iter().map(move |&freq| {
                let phase = position.wrapping_mul(freq); // exact, in units of 2^-64 turn
                phase as f64 * (std::f64::consts::TAU / 2f64.powi(64))
            })
        });
        let (cos, sin) = angles.map(|a| (a.cos() as f32, a.sin() as f32)).unzip();
        Self { pairs: rope.freqs.len(), cos, sin }
    }

    /// Rotates `rows`, `[token][head][element]`; their first token is at `position`.
    pub(super) fn rotate(&self, rows: &mut [f32], heads: usize, position: usize) {
        let dim = 2 * self.pairs;
        for (token, heads) in rows.chunks_exact_mut(heads * dim).enumerate() {
            let at = (position + token) * self.pairs..(position + token + 1) * self.pairs;
            let (cos, sin) = (&self.cos[at.clone()], &self.sin[at]);
            for head in heads.chunks_exact_mut(dim) {
                let (first, second) = head.split_at_mut(self.pairs);
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        }
    }
}
