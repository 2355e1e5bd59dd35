//! Rows out of an engine's pages: which bytes are copied together, and where the values are among them.

use std::ops::Range;

use half::{bf16, f16};
use kvasir_client::pages::PageRef;
use kvasir_codec::{KvSink, e4m3};
use kvasir_kernels::Dtype;
use kvasir_types::Plane;

use crate::{PlaneLayout, limits::READ_BYTES_MAX};

/// Rows are copied with what lies between them, up to so many times their own bytes: few large copies are faster than many
/// small ones.
const SPARSE_MAX: usize = 8;

/// One plane of one layer, whose rows are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlaneRows<'a> {
    /// Of the model.
    pub(crate) layer: usize,
    pub(crate) plane: Plane,
    pub(crate) layout: &'a PlaneLayout,
    /// Values of a row.
    pub(crate) elements: usize,
}

/// Rows of one page that are copied from the first value to the last.
#[derive(Debug)]
struct RowRun {
    /// Counted from the layout's first.
    heads: Range<usize>,
    tokens: usize,
    /// Counted from the first token that is read.
    first_token: usize,
    address: u64,
    /// Where its bytes are in the piece.
    bytes: Range<usize>,
}

/// Runs that are copied together, at most [`READ_BYTES_MAX`].
#[derive(Debug, Default)]
pub(crate) struct RowPiece {
    runs: Vec<RowRun>,
}

impl PlaneRows<'_> {
    /// Cuts the rows of pages into pieces: each page with its slots, and the token of the first. `None` if a single row spans
    /// more than a piece.
    pub(crate) fn pieces(
        &self,
        pages: impl Iterator<Item = (PageRef, Range<usize>, usize)>,
    ) -> Option<Vec<RowPiece>> {
        let (layout, held) = (self.layout, self.layout.heads.len());
        let size = layout.dtype.bytes();
        let mut pieces: Vec<RowPiece> = Vec::new();
        for (page, slots, first_token) in pages {
            if slots.is_empty() || held == 0 {
                continue;
            }
            let (heads, tokens) = self.shape(held, slots.len())?;
            for slot in slots.clone().step_by(tokens) {
                let tokens = tokens.min(slots.end - slot);
                for head in (0..held).step_by(heads) {
                    let heads = heads.min(held - head);
                    let bytes = self.span(heads, tokens);
                    let first = u64::from(page.index) * layout.block_stride
                        + slot as u64 * layout.token_stride
                        + head as u64 * layout.head_stride;
                    let has_room = |piece: &RowPiece| piece.bytes() + bytes <= READ_BYTES_MAX;
                    if !pieces.last().is_some_and(has_room) {
                        pieces.push(RowPiece::default());
                    }
                    if let Some(piece) = pieces.last_mut() {
                        let start = piece.bytes();
                        piece.runs.push(RowRun {
                            heads: head..head + heads,
                            tokens,
                            first_token: first_token + slot - slots.start,
                            address: layout.base + first * size as u64,
                            bytes: start..start + bytes,
                        });
                    }
                }
            }
        }
        Some(pieces)
    }

    /// Heads and tokens that are copied together: all, or one, so that not much else is, and then so few that a piece has room
    /// for them. `None` if it has none for a row.
    fn shape(&self, heads: usize, tokens: usize) -> Option<(usize, usize)> {
        let (layout, bytes) = (self.layout, self.elements * self.layout.dtype.bytes());
        let is_dense =
            |shape: &(usize, usize)| self.span(shape.0, shape.1) <= SPARSE_MAX * shape.0 * shape.1 * bytes;
        let shapes = [(heads, tokens), (1, tokens), (heads, 1)];
        let (mut heads, mut tokens) = shapes.into_iter().find(is_dense).unwrap_or((1, 1));
        while self.span(heads, tokens) > READ_BYTES_MAX {
            // Half of what lies further apart: without the other half the span would stay.
            let of_heads = (heads as u64 - 1) * layout.head_stride;
            let of_tokens = (tokens as u64 - 1) * layout.token_stride;
            if heads > 1 && of_heads >= of_tokens {
                heads = heads.div_ceil(2);
            } else if tokens > 1 {
                tokens = tokens.div_ceil(2);
            } else {
                return None;
            }
        }
        Some((heads, tokens))
    }

    /// Bytes from the first value to the last of so many heads and tokens of a page.
    fn span(&self, heads: usize, tokens: usize) -> usize {
        let layout = self.layout;
        let last = self.elements.saturating_sub(1) as u64;
        let last = layout
            .pack
            .map_or(last, |(group, stride)| last / u64::from(group) * stride + last % u64::from(group));
        let rows = (heads as u64 - 1) * layout.head_stride + (tokens as u64 - 1) * layout.token_stride;
        (rows + last + 1) as usize * layout.dtype.bytes()
    }

    /// Appends a row out of a run's bytes, as f32; head and token are counted from the run's first.
    fn push_row(&self, run: &[u8], head: usize, token: usize, values: &mut Vec<f32>) {
        let (layout, size) = (self.layout, self.layout.dtype.bytes());
        let row = head * layout.head_stride as usize + token * layout.token_stride as usize;
        // A head's elements are one group unless packed.
        let (group, stride) =
            layout.pack.map_or((self.elements, 0), |(count, stride)| (count as usize, stride as usize));
        for (index, start) in (0..self.elements).step_by(group.max(1)).enumerate() {
            let at = (row + index * stride) * size;
            let bytes = &run[at..at + group.min(self.elements - start) * size];
            let (pairs, quads) = (bytes.as_chunks().0, bytes.as_chunks().0);
            match layout.dtype {
                Dtype::Bf16 => values.extend(pairs.iter().map(|pair| bf16::from_ne_bytes(*pair).to_f32())),
                Dtype::F16 => values.extend(pairs.iter().map(|pair| f16::from_ne_bytes(*pair).to_f32())),
                Dtype::F32 => values.extend(quads.iter().map(|quad| f32::from_ne_bytes(*quad))),
                Dtype::Fp8E4m3 => values.extend(bytes.iter().map(|pattern| e4m3::decode(*pattern))),
            }
        }
    }
}

impl RowPiece {
    pub(crate) fn bytes(&self) -> usize {
        self.runs.last().map_or(0, |run| run.bytes.end)
    }

    /// For [`Device::read`](crate::Device::read).
    pub(crate) fn places(&self) -> Vec<(u64, Range<usize>)> {
        self.runs.iter().map(|run| (run.address, run.bytes.clone())).collect()
    }

    /// Gives the rows to `to`, out of the piece's bytes.
    pub(crate) fn write_to(&self, rows: &PlaneRows<'_>, bytes: &[u8], to: &mut dyn KvSink) {
        let mut values = Vec::new();
        for run in &self.runs {
            for (index, head) in run.heads.clone().enumerate() {
                values.clear();
                for token in 0..run.tokens {
                    rows.push_row(&bytes[run.bytes.clone()], index, token, &mut values);
                }
                let head = rows.layout.heads.start + head;
                to.write(rows.layer, rows.plane, head, run.first_token, &values);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(token_stride: u64, head_stride: u64, pack: Option<(u32, u64)>) -> PlaneLayout {
        PlaneLayout {
            base: 0x1000,
            block_stride: 1 << 12,
            token_stride,
            head_stride,
            pack,
            dtype: Dtype::Bf16,
            scale: 1.0,
            heads: 2..4,
        }
    }

    /// Slots 3 and later of page 5, and the first of page 2.
    fn pages(end: usize) -> [(PageRef, Range<usize>, usize); 2] {
        let page = |index| PageRef { index, generation: 0 };
        [(page(5), 3..end, 0), (page(2), 0..1, end - 3)]
    }

    fn cut(layout: &PlaneLayout, end: usize) -> Option<Vec<Vec<(u64, usize)>>> {
        let rows = PlaneRows { layer: 1, plane: Plane::K, layout, elements: 8 };
        let pieces = rows.pieces(pages(end).into_iter())?;
        let places =
            |piece: &RowPiece| piece.places().into_iter().map(|(at, bytes)| (at, bytes.len())).collect();
        Some(pieces.iter().map(places).collect())
    }

    #[test]
    fn near_rows_are_copied_together_and_far_ones_alone() {
        type Places = Vec<Vec<(u64, usize)>>;
        let page = |index: u64, element: u64| 0x1000 + 2 * (index * 4096 + element);
        // Heads beside each other, tokens behind each other.
        let near: Places = vec![vec![(page(5, 48), 13 * 32), (page(2, 0), 32)]];
        assert_eq!(cut(&layout(16, 8, None), 16), Some(near));
        // A page's heads lie far apart.
        let heads =
            |index: u64, first: u64, bytes: usize| [0, 2048].map(|head| (page(index, first + head), bytes));
        let far: Places = vec![[heads(5, 24, 13 * 16), heads(2, 0, 16)].concat()];
        assert_eq!(cut(&layout(8, 2048, None), 16), Some(far));
        // Other layers' rows lie between two tokens.
        let tokens = [(5, 3 * 300), (5, 4 * 300), (2, 0)].map(|(index, first)| (page(index, first), 32));
        let interleaved: Places = vec![tokens.to_vec()];
        assert_eq!(cut(&layout(300, 8, None), 5), Some(interleaved));
        // Values of a row lie apart, those of other tokens between them.
        let packed = cut(&layout(1, 128, Some((1, 16))), 16).expect("fits");
        assert_eq!(packed[0][0], (page(5, 3), 2 * (128 + 12 + 7 * 16 + 1)));
    }

    #[test]
    fn pieces_are_bounded_and_a_row_that_is_larger_is_refused() {
        let pieces = cut(&layout(16, 8, None), 1_000_000).expect("fits");
        let bytes = |piece: &Vec<(u64, usize)>| piece.iter().map(|(_, bytes)| bytes).sum::<usize>();
        assert!(pieces.len() >= 4 && pieces.iter().all(|piece| bytes(piece) <= READ_BYTES_MAX));
        assert_eq!(pieces.iter().map(bytes).sum::<usize>(), (1_000_000 - 3 + 1) * 32);
        assert_eq!(cut(&layout(8, 8, Some((1, 1 << 24))), 16), None);
        // Heads so far apart that no piece has room for two, though most of what lies between is their rows.
        let (rows, head) = (60_000, 1 << 22);
        let place = |page: u64, element: u64, bytes: usize| (0x1000 + 2 * (page * 4096 + element), bytes);
        let alone = [place(5, 24, rows * 16), place(5, 24 + head, rows * 16)];
        let last = [place(2, 0, 16), place(2, head, 16)];
        assert_eq!(cut(&layout(8, head, None), 3 + rows), Some(vec![[alone, last].concat()]));
    }
}
