//! Rows of values, made when an encoder needs them: a piece exceeds a core's nearest caches many times, a
//! stream does not.

use super::{blocks::Blocks, nested_index::digit, raw::zigzag};
use crate::levels::coarser_by;

/// Values of a piece by coefficient, `up` levels below the source values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LevelRows<'a> {
    pub(crate) fine: FinestValues<'a>,
    pub(crate) tokens: usize,
    /// The row of every coefficient; `None`: in sequence.
    pub(crate) listed: Option<&'a [usize]>,
    pub(crate) up: u32,
}

/// The source values of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FinestValues<'a> {
    /// `[row][token]`.
    Wide(&'a [i32]),
    /// Those that 15 bits hold.
    Narrow(&'a Blocks),
}

/// The bits that a row uses.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowBits {
    /// Those of its values' zigzag codes.
    pub(crate) values: u32,
    /// The same for the part stored by a raw piece.
    stored: u32,
}

impl RowBits {
    #[inline(always)]
    fn of(row: &[i32], refines: bool) -> Self {
        let values = row.iter().fold(0, |bits, value| bits | zigzag(*value));
        let stored =
            if refines { row.iter().fold(0, |bits, value| bits | zigzag(digit(*value))) } else { values };
        Self { values, stored }
    }

    /// Width of a value as stored by a raw piece.
    pub(crate) fn width(self) -> usize {
        (u32::BITS - self.stored.leading_zeros()) as usize
    }
}

impl LevelRows<'_> {
    /// The row of a coefficient.
    #[inline(always)]
    pub(crate) fn row(&self, coefficient: usize) -> usize {
        self.listed.map_or(coefficient, |listed| listed[coefficient])
    }

    /// Writes a coefficient's first values to all of `out`. `refines`: a raw piece stores digits of them.
    ///
    /// Always inlined, so that it is compiled for the features of who calls it.
    #[inline(always)]
    pub(crate) fn write(&self, coefficient: usize, refines: bool, out: &mut [i32]) -> RowBits {
        let row = self.row(coefficient);
        let fine = match self.fine {
            FinestValues::Wide(fine) => &fine[row * self.tokens..(row + 1) * self.tokens],
            FinestValues::Narrow(blocks) => {
                // division by constants, so that it vectorises; here and below
                match self.up {
                    0 => blocks.write(row, 0, out),
                    1 => blocks.write(row, 1, out),
                    2 => blocks.write(row, 2, out),
                    3 => blocks.write(row, 3, out),
                    up => blocks.write(row, up, out),
                }
                return RowBits::of(out, refines);
            }
        };
        match self.up {
            0 => write(fine, |q| q, refines, out),
            1 => write(fine, |q| coarser_by(q, 1), refines, out),
            2 => write(fine, |q| coarser_by(q, 2), refines, out),
            3 => write(fine, |q| coarser_by(q, 3), refines, out),
            4 => write(fine, |q| coarser_by(q, 4), refines, out),
            up => write(fine, |q| coarser_by(q, up), refines, out),
        }
    }
}

#[inline(always)]
fn write(fine: &[i32], level: impl Fn(i32) -> i32, refines: bool, out: &mut [i32]) -> RowBits {
    out.iter_mut().zip(fine).for_each(|(out, fine)| *out = level(*fine));
    RowBits::of(out, refines)
}
