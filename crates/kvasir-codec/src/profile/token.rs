//! The token predictor: KV given the text, in integers.

/// Predicts coefficients from the current and the previous token as low-rank integer factors.
///
/// `prediction[c] = (Σ_k F[k] · M[k][c] + 2^(s_c − 1)) >> s_c` in units of the finest step, where `F` is the
/// current token's row of `current` followed by the previous token's row of `previous`. A token outside the
/// vocabulary, or none, has a row of zeros. `s_c = 0` adds nothing before the (empty) shift.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenPredictor {
    /// Rows of both tables.
    pub vocabulary: usize,
    /// Factors of the current and of the previous token.
    pub factors: [usize; 2],
    /// `[token][factor]`.
    pub current: Vec<i8>,
    /// `[token][factor]`.
    pub previous: Vec<i8>,
    /// `M`, `[factor][coefficient]`, the current token's factors first.
    pub matrix: Vec<i8>,
    /// `s`, one a coefficient.
    pub shifts: Vec<u8>,
    /// Bits of an entry of `current` and of `previous`, 2 to 8.
    pub table_bits: [u8; 2],
    /// Bits of a coefficient's entries of `matrix`, 0 (all are zero) to 8.
    pub matrix_bits: Vec<u8>,
}

impl TokenPredictor {
    /// Factors of both tokens together.
    pub fn factor_count(&self) -> usize {
        self.factors[0] + self.factors[1]
    }

    /// Writes the factors of one token, current then previous.
    pub(crate) fn factors_of(&self, current: Option<u32>, previous: Option<u32>, out: &mut [i8]) {
        let (now, before) = out.split_at_mut(self.factors[0]);
        self.row(&self.current, current, now);
        self.row(&self.previous, previous, before);
    }

    /// A token's factors; zeros if it has none.
    fn row(&self, table: &[i8], token: Option<u32>, out: &mut [i8]) {
        out.fill(0);
        let Some(token) = token.map(|t| t as usize).filter(|t| *t < self.vocabulary) else { return };
        let start = token * out.len();
        let row = table.get(start..start + out.len()).unwrap_or_default();
        out.iter_mut().zip(row).for_each(|(out, code)| *out = *code);
    }

    /// A coefficient's predictions from its sums of products, which are integers below 2^24.
    pub(crate) fn round(&self, coefficient: usize, sums: &[f32], predictions: &mut [i32]) {
        let shift = self.shifts[coefficient];
        let half = if shift == 0 { 0 } else { 1 << (shift - 1) };
        predictions.iter_mut().zip(sums).for_each(|(to, sum)| *to = (*sum as i32 + half) >> shift);
    }
}
