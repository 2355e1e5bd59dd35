//! Logits of consecutive positions, and the few functions of them that quality is measured with.

/// Logits `[token][vocab]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    values: Vec<f32>,
    vocab: usize,
}

impl Logits {
    pub(crate) fn new(values: Vec<f32>, vocab: usize) -> Self {
        Self { values, vocab }
    }

    /// Positions there are.
    pub fn len(&self) -> usize {
        self.values.len() / self.vocab
    }

    /// Whether there are no positions.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// One row of `vocab` logits a position.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.vocab)
    }

    /// The logits after position `index`.
    ///
    /// # Panics
    /// Past [`len`](Self::len).
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values[index * self.vocab..][..self.vocab]
    }
}

/// Index of the largest logit; the smaller index on ties.
pub fn top1(logits: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in logits.iter().enumerate() {
        if *value > logits[best] {
            best = index;
        }
    }
    best
}

/// Natural logarithms of the softmax, in f64.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    let normaliser = f64::from(max) + sum.ln();
    logits.iter().map(|&x| f64::from(x) - normaliser).collect()
}

/// The softmax, in f64.
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    log_softmax(logits).into_iter().map(f64::exp).collect()
}
