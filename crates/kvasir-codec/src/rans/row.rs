//! Rows of values, made where an encoder needs them: a piece is many times what a core keeps close, a stream is not.

use super::{nest::digit, raw::zigzag};
use crate::levels::coarser_by;

/// Values of a piece by coefficient, `up` levels below those that they are made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// `[row][token]`.
    pub(crate) fine: &'a [i32],
    pub(crate) tokens: usize,
    /// The row of every coefficient; none: one after the other.
    pub(crate) listed: Option<&'a [usize]>,
    pub(crate) up: u32,
}

/// The bits that a row uses.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowBits {
    /// Those of its values' zigzag codes.
    pub(crate) values: u32,
    /// The same of what a raw piece stores of them.
    stored: u32,
}

impl RowBits {
    /// Of what a raw piece stores of a value.
    pub(crate) fn width(self) -> usize {
        (u32::BITS - self.stored.leading_zeros()) as usize
    }
}

impl Rows<'_> {
    /// Writes a coefficient's values to `out`. `refines`: a raw piece stores digits of them.
    ///
    /// Always inlined, so that it is compiled for the features of who calls it.
    #[inline(always)]
    pub(crate) fn write(&self, coefficient: usize, refines: bool, out: &mut [i32]) -> RowBits {
        let row = self.listed.map_or(coefficient, |listed| listed[coefficient]);
        let fine = &self.fine[row * self.tokens..(row + 1) * self.tokens];
        // by constants, so that it vectorises
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
    let mut bits = RowBits::default();
    for (out, fine) in out.iter_mut().zip(fine) {
        *out = level(*fine);
        bits.values |= zigzag(*out);
    }
    bits.stored = bits.values;
    if refines {
        bits.stored = 0;
        for value in out {
            bits.stored |= zigzag(digit(*value));
        }
    }
    bits
}
