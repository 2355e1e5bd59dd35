//! The compressed bytes of a batch. They stay where they were received until they are copied for the device.

use crate::{CudaError, resident::index_u32};

/// Offsets of pieces are multiples of this: words and states are read as such.
const PIECE_ALIGNMENT: usize = 4;

/// Pieces in the order in which a batch has them, with zeros between them.
#[derive(Debug, Default)]
pub(crate) struct PieceList<'a> {
    /// Offset in the batch, and the piece. No piece is empty, so no two have the same offset.
    parts: Vec<(usize, &'a [u8])>,
    end: usize,
}

impl<'a> PieceList<'a> {
    /// Adds a piece and returns its offset.
    ///
    /// # Errors
    /// [`CudaError::Batch`] if kernels cannot address it. Then it is not added.
    pub(super) fn push(&mut self, piece: &'a [u8]) -> Result<u32, CudaError> {
        let start = self.end.next_multiple_of(PIECE_ALIGNMENT);
        index_u32(start + piece.len())?;
        self.end = start + piece.len();
        if !piece.is_empty() {
            self.parts.push((start, piece));
        }
        Ok(start as u32)
    }

    /// Bytes of all, with those between them.
    pub(crate) const fn size(&self) -> usize {
        self.end
    }

    /// Offsets and pieces, as [`upload_parts`](crate::Device::upload_parts) takes them.
    pub(crate) fn parts(&self) -> &[(usize, &'a [u8])] {
        &self.parts
    }

    /// The piece at an offset; empty if none is there.
    pub(crate) fn at(&self, offset: u32) -> &'a [u8] {
        let found = self.parts.binary_search_by_key(&(offset as usize), |(start, _)| *start);
        found.map(|index| self.parts[index].1).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_found_again() {
        let pieces: [&[u8]; 4] = [&[1, 2, 3], &[], &[4; 4], &[5]];
        let mut list = PieceList::default();
        let offsets = pieces.map(|piece| list.push(piece).expect("few bytes"));
        assert_eq!(offsets, [0, 4, 4, 8]);
        assert_eq!(list.parts(), [(0, pieces[0]), (4, pieces[2]), (8, pieces[3])]);
        assert_eq!([0, 4, 8, 9].map(|offset| list.at(offset)), [pieces[0], pieces[2], pieces[3], &[]]);
        assert_eq!(list.size(), 9);
    }
}
