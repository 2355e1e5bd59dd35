//! The token predictor: KV given the text, in integers.

use std::ops::Range;

/// Predicts coefficients from the current and the previous token as low-rank integer factors.
///
/// `prediction[c] = (Σ_k F[k] · M[k][c] + 2^(s_c − 1)) >> s_c` in units of the finest step, where `F` is the
/// current token's row of `current` followed by the previous token's row of `previous`. A token outside the
/// vocabulary, or none, has a row of zeros. `s_c = 0` adds nothing before the (empty) shift.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TokenPredictor {
    pub(crate) vocabulary: usize,
    /// Factors of the current and of the previous token.
    pub(crate) factors: [usize; 2],
    /// `[token][factor]`.
    pub(crate) current: Vec<i8>,
    /// `[token][factor]`.
    pub(crate) previous: Vec<i8>,
    /// `M`, `[factor][coefficient]`, the current token's factors first.
    pub(crate) matrix: Vec<i8>,
    /// `s`, one a coefficient.
    pub(crate) shifts: Vec<u8>,
}

impl TokenPredictor {
    /// Adds the prediction for every token of `range` to `out`, `[coefficient][token]`.
    ///
    /// `tokens` are the chunk's, `preceding` is the one before them.
    pub(crate) fn predict(
        &self,
        tokens: &[u32],
        preceding: Option<u32>,
        range: Range<usize>,
        out: &mut [i32],
    ) {
        let (rank, columns) = (self.shifts.len(), range.len());
        let mut sums = vec![0i32; rank];
        for (column, token) in range.enumerate() {
            let before = if token == 0 { preceding } else { tokens.get(token - 1).copied() };
            sums.fill(0);
            let (now_rows, before_rows) = self.matrix.split_at(self.factors[0] * rank);
            accumulate(
                self.row(&self.current, self.factors[0], tokens.get(token).copied()),
                now_rows,
                &mut sums,
            );
            accumulate(self.row(&self.previous, self.factors[1], before), before_rows, &mut sums);
            for ((row, sum), shift) in out.chunks_exact_mut(columns).zip(&sums).zip(&self.shifts) {
                let half = if *shift == 0 { 0 } else { 1 << (shift - 1) };
                row[column] += (sum + half) >> shift;
            }
        }
    }

    /// A token's factors; empty where it has none.
    fn row<'a>(&self, table: &'a [i8], factors: usize, token: Option<u32>) -> &'a [i8] {
        let Some(token) = token.map(|t| t as usize).filter(|t| *t < self.vocabulary) else { return &[] };
        table.get(token * factors..(token + 1) * factors).unwrap_or_default()
    }
}

/// `sums[c] += Σ_k factors[k] · matrix[k][c]`. Below 512 · 127² even for the most factors: no overflow.
fn accumulate(factors: &[i8], matrix: &[i8], sums: &mut [i32]) {
    for (factor, row) in factors.iter().zip(matrix.chunks_exact(sums.len())) {
        let factor = i32::from(*factor);
        if factor == 0 {
            continue;
        }
        for (sum, weight) in sums.iter_mut().zip(row) {
            *sum += factor * i32::from(*weight);
        }
    }
}
