//! Rows of consecutive heads, with strides.

use std::{borrow::Cow, ops::Range};

/// Rows of consecutive heads of one layer and plane: `elements` values for each head and token. Strides are
/// in values, from one head to the next and from one token to the next. Every row is within the slice.
///
/// ```
/// use kvasir_codec::HeadRows;
///
/// // Two heads of three tokens, `[token][head][element]`, into memory of `[head][token][element]`.
/// let values: Vec<u32> = (0..24).collect();
/// let rows = HeadRows::strided(&values, [2, 3, 4], 4, 8).expect("24 values");
/// assert_eq!(rows.row(1, 2), [20, 21, 22, 23]);
/// let mut memory = [0; 24];
/// rows.copy_to(&mut memory, 12, 4);
/// assert_eq!(memory[20..], [20, 21, 22, 23]);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct HeadRows<'a, T> {
    values: &'a [T],
    heads: usize,
    tokens: usize,
    elements: usize,
    head_stride: usize,
    token_stride: usize,
}

impl<'a, T: Copy> HeadRows<'a, T> {
    /// Rows of `[heads, tokens, elements]` whose first value is the slice's first. `None` if they exceed the
    /// slice.
    pub fn strided(
        values: &'a [T],
        [heads, tokens, elements]: [usize; 3],
        head_stride: usize,
        token_stride: usize,
    ) -> Option<Self> {
        let rows = Self { values, heads, tokens, elements, head_stride, token_stride };
        (reach([heads, tokens, elements], head_stride, token_stride)? <= values.len()).then_some(rows)
    }

    /// Concatenated rows, `[head][token][element]`: as many tokens as there are whole rows for.
    pub fn dense(values: &'a [T], heads: usize, elements: usize) -> Self {
        let tokens = values.len().checked_div(heads * elements).unwrap_or(0);
        Self { values, heads, tokens, elements, head_stride: tokens * elements, token_stride: elements }
    }

    /// Number of heads.
    pub const fn heads(&self) -> usize {
        self.heads
    }

    /// Tokens of each head.
    pub const fn tokens(&self) -> usize {
        self.tokens
    }

    /// Values per row.
    pub const fn elements(&self) -> usize {
        self.elements
    }

    /// The row of one head and token, counted from the first of each.
    ///
    /// # Panics
    /// Where there is no such head or token.
    pub fn row(&self, head: usize, token: usize) -> &'a [T] {
        assert!(head < self.heads && token < self.tokens, "no row of head {head}, token {token}");
        let start = head * self.head_stride + token * self.token_stride;
        &self.values[start..start + self.elements]
    }

    /// All rows of one head, `[token][element]`; copied only if they are not contiguous.
    ///
    /// # Panics
    /// If there is no such head.
    pub fn head(&self, head: usize) -> Cow<'a, [T]> {
        assert!(head < self.heads, "no head {head}");
        if self.token_stride == self.elements && self.tokens > 0 {
            let start = head * self.head_stride;
            return Cow::Borrowed(&self.values[start..start + self.tokens * self.elements]);
        }
        Cow::Owned((0..self.tokens).flat_map(|token| self.row(head, token)).copied().collect())
    }

    /// All values, `[head][token][element]`.
    pub(crate) fn values(self) -> impl Iterator<Item = T> {
        let row = move |head, token| self.row(head, token).iter().copied();
        (0..self.heads).flat_map(move |head| (0..self.tokens).flat_map(move |token| row(head, token)))
    }

    /// Some of the heads and tokens, counted from the first of each. Ranges that reach past the end are cut.
    #[must_use]
    pub fn part(&self, heads: Range<usize>, tokens: Range<usize>) -> Self {
        let cut = |range: Range<usize>, end: usize| {
            range.start.min(end)..range.end.clamp(range.start.min(end), end)
        };
        let (heads, tokens) = (cut(heads, self.heads), cut(tokens, self.tokens));
        let start = heads.start * self.head_stride + tokens.start * self.token_stride;
        let values = self.values.get(start..).unwrap_or_default();
        Self { values, heads: heads.len(), tokens: tokens.len(), ..*self }
    }

    /// Copies the rows to `to`, whose first value is that of the first row, with the given strides.
    ///
    /// # Panics
    /// If they exceed `to`.
    pub fn copy_to(&self, to: &mut [T], head_stride: usize, token_stride: usize) {
        let whole_heads = self.token_stride == self.elements && token_stride == self.elements;
        let (runs, length) =
            if whole_heads { (1, self.tokens * self.elements) } else { (self.tokens, self.elements) };
        if self.tokens == 0 {
            return;
        }
        for head in 0..self.heads {
            for run in 0..runs {
                let from = head * self.head_stride + run * self.token_stride;
                let into = head * head_stride + run * token_stride;
                to[into..into + length].copy_from_slice(&self.values[from..from + length]);
            }
        }
    }
}

/// Values up to the last of the rows.
fn reach([heads, tokens, elements]: [usize; 3], head_stride: usize, token_stride: usize) -> Option<usize> {
    let (Some(last_head), Some(last_token)) = (heads.checked_sub(1), tokens.checked_sub(1)) else {
        return Some(0);
    };
    let last = last_head.checked_mul(head_stride)?.checked_add(last_token.checked_mul(token_stride)?)?;
    last.checked_add(elements)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn strides_and_parts_give_the_same_rows(
            heads in 0usize..4, tokens in 0usize..6, elements in 0usize..5, by_token: bool, gap in 0usize..3,
            cut in (0usize..5, 0usize..5, 0usize..7, 0usize..7),
        ) {
            let (head_stride, token_stride) = if by_token {
                (elements + gap, heads * (elements + gap))
            } else {
                (tokens * (elements + gap), elements + gap)
            };
            let values: Vec<usize> = (0..heads * tokens * (elements + gap)).collect();
            let rows = HeadRows::strided(&values, [heads, tokens, elements], head_stride, token_stride).unwrap();
            let part = rows.part(cut.0..cut.1, cut.2..cut.3);
            let mut dense = vec![usize::MAX; part.heads() * part.tokens() * elements];
            part.copy_to(&mut dense, part.tokens() * elements, elements);
            let copied = HeadRows::dense(&dense, part.heads(), elements);
            for head in 0..part.heads() {
                for token in 0..part.tokens() {
                    let start = (cut.0 + head) * head_stride + (cut.2 + token) * token_stride;
                    let right = &values[start..start + elements];
                    prop_assert_eq!(part.row(head, token), right);
                    if elements > 0 {
                        prop_assert_eq!(copied.row(head, token), right);
                    }
                }
                prop_assert_eq!(&*part.head(head), &dense[head * part.tokens() * elements..][..part.tokens() * elements]);
            }
            prop_assert_eq!(part.heads(), cut.1.min(heads).saturating_sub(cut.0));
            prop_assert_eq!(part.tokens(), cut.3.min(tokens).saturating_sub(cut.2));
        }
    }

    #[test]
    fn rows_past_the_slice_are_refused() {
        assert!(HeadRows::strided(&[0u8; 24], [2, 3, 4], 12, 4).is_some());
        assert!(HeadRows::strided(&[0u8; 23], [2, 3, 4], 12, 4).is_none());
        assert!(HeadRows::strided(&[0u8; 24], [2, 3, 4], 13, 4).is_none());
        assert!(HeadRows::strided(&[0u8; 24], [usize::MAX, 3, 4], usize::MAX, 4).is_none());
    }
}
