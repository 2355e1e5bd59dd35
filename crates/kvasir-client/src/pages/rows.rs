//! Rows of one page.

use std::ops::Range;

use kvasir_codec::{HeadRows, Rows};
use kvasir_types::Plane;

/// The rows that [`PageStore::write`](crate::pages::PageStore::write) puts into one page: rows of one layer
/// and plane, for consecutive heads and consecutive slots.
#[derive(Debug, Clone, Copy)]
pub struct PageRows<'a> {
    layer: usize,
    plane: Plane,
    first_head: usize,
    first_slot: usize,
    rows: Rows<'a>,
}

impl<'a> PageRows<'a> {
    /// Rows whose first head and token are `first_head` and `first_slot`.
    pub const fn new(
        layer: usize,
        plane: Plane,
        first_head: usize,
        first_slot: usize,
        rows: Rows<'a>,
    ) -> Self {
        Self { layer, plane, first_head, first_slot, rows }
    }

    /// The layer, counted from the device's first.
    pub const fn layer(&self) -> usize {
        self.layer
    }

    /// The plane.
    pub const fn plane(&self) -> Plane {
        self.plane
    }

    /// The heads, counted from the device's first: a rank that holds heads 4..8 is given heads 0..4.
    pub const fn heads(&self) -> Range<usize> {
        self.first_head..self.first_head + self.rows.heads()
    }

    /// The slots of the page: a slot is a token's position in it.
    pub const fn slots(&self) -> Range<usize> {
        self.first_slot..self.first_slot + self.rows.tokens()
    }

    /// Values per row.
    pub const fn elements(&self) -> usize {
        self.rows.elements()
    }

    /// The values. Head and token 0 of them are the first of [`heads`](Self::heads) and [`slots`](Self::slots).
    pub const fn values(&self) -> Rows<'a> {
        self.rows
    }

    /// Copies the rows to byte memory, in the machine's byte order. `to` begins with the first row; strides
    /// are in bytes, from one head and from one slot to the next.
    ///
    /// # Panics
    /// If the rows extend beyond `to`.
    pub fn copy_to_bytes(&self, to: &mut [u8], head_stride: usize, slot_stride: usize) {
        match self.rows {
            Rows::Bf16(rows) => copy(rows, to, head_stride, slot_stride, |x| x.to_ne_bytes()),
            Rows::F16(rows) => copy(rows, to, head_stride, slot_stride, |x| x.to_ne_bytes()),
            Rows::F32(rows) => copy(rows, to, head_stride, slot_stride, f32::to_ne_bytes),
            Rows::Fp8E4m3(rows) => rows.copy_to(to, head_stride, slot_stride),
        }
    }
}

fn copy<T: Copy, const BYTES: usize>(
    rows: HeadRows<'_, T>,
    to: &mut [u8],
    head_stride: usize,
    slot_stride: usize,
    bytes: impl Fn(T) -> [u8; BYTES],
) {
    for head in 0..rows.heads() {
        for token in 0..rows.tokens() {
            let start = head * head_stride + token * slot_stride;
            let to = &mut to[start..start + rows.elements() * BYTES];
            for (to, value) in to.as_chunks_mut().0.iter_mut().zip(rows.row(head, token)) {
                *to = bytes(*value);
            }
        }
    }
}
