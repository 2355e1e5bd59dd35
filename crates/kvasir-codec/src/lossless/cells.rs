//! Patterns of a float type in cells: a number that is near where the value is, and raw bits that are as likely as not.
//!
//! Above `2^(floor − bias)` cells have that width until units in the last place are as wide; from there on every pattern is
//! a cell of its own. Cells never reach over a power of two, so their patterns are a power of two, evenly spaced, and plain
//! bits tell them apart at no loss. Values beneath one cell's width share a cell on either side of 0; in there the gap to
//! the exponent just below the width is geometrically distributed, and told in unary.

use super::{
    bits::{BitReader, BitWriter},
    float::FloatFormat,
};

/// Longest gap coded in unary; a longer one is followed by the exponent itself.
const GAP_MAX: u32 = 8;

/// The cells of one element.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cells {
    pub(super) float: FloatFormat,
    /// Biased exponent of a cell's width; not 0.
    pub(super) floor: u32,
}

impl Cells {
    /// The cell of a pattern, in the order of values; −1 − cell for negative ones.
    pub(super) fn cell(self, bits: u32) -> i32 {
        let mantissa_bits = self.float.mantissa_bits();
        let (exponent, mantissa) = self.float.fields(bits);
        let cell = match exponent.checked_sub(self.floor) {
            None => 0,
            Some(above) if above <= mantissa_bits => {
                (1 << mantissa_bits | mantissa) >> (mantissa_bits - above)
            }
            Some(above) => ((1 + above - mantissa_bits) << mantissa_bits) + mantissa,
        };
        // At most 2^16: 256 exponents of 2^7 patterns, or 32 of 2^10.
        if self.float.is_negative(bits) { !cell.cast_signed() } else { cell.cast_signed() }
    }

    /// Bits that [`write`](Self::write) takes for a pattern.
    pub(super) fn width(self, bits: u32) -> u32 {
        let (exponent, _) = self.float.fields(bits);
        let mantissa_bits = self.float.mantissa_bits();
        match exponent.checked_sub(self.floor) {
            Some(above) => mantissa_bits.saturating_sub(above),
            None => {
                let gap = self.floor - 1 - exponent;
                let exponent_bits =
                    if gap >= GAP_MAX { self.float.exponent_bits() } else { u32::from(exponent > 0) };
                mantissa_bits + gap.min(GAP_MAX) + exponent_bits
            }
        }
    }

    /// Writes the bits that distinguish a pattern from the others of its cell.
    pub(super) fn write(self, bits: u32, out: &mut BitWriter) {
        let (exponent, mantissa) = self.float.fields(bits);
        let mantissa_bits = self.float.mantissa_bits();
        let low = match exponent.checked_sub(self.floor) {
            Some(above) => mantissa_bits.saturating_sub(above),
            None => {
                let gap = self.floor - 1 - exponent;
                out.push(0, gap.min(GAP_MAX));
                if gap >= GAP_MAX {
                    out.push(exponent, self.float.exponent_bits());
                } else if exponent > 0 {
                    out.push(1, 1);
                }
                mantissa_bits
            }
        };
        out.push(mantissa & ((1 << low) - 1), low);
    }

    /// Reads a pattern of a cell; `None` if the bits mean no pattern.
    pub(super) fn read(self, cell: i32, raw: &mut BitReader<'_>) -> Option<u32> {
        let negative = cell < 0;
        let cell = if negative { !cell } else { cell }.cast_unsigned();
        let mantissa_bits = self.float.mantissa_bits();
        let (exponent, mantissa) = if cell == 0 {
            let exponent = self.read_gap(raw)?;
            (exponent, raw.take(mantissa_bits)?)
        } else if cell < 2 << mantissa_bits {
            let above = cell.ilog2();
            let low = mantissa_bits - above;
            (self.floor + above, (cell - (1 << above)) << low | raw.take(low)?)
        } else {
            let above = (cell >> mantissa_bits) - 1 + mantissa_bits;
            (self.floor.checked_add(above)?, cell & ((1 << mantissa_bits) - 1))
        };
        self.float.pattern(negative, exponent, mantissa)
    }

    /// The exponent of a value beneath the width of a cell.
    fn read_gap(self, raw: &mut BitReader<'_>) -> Option<u32> {
        let highest = self.floor.checked_sub(1)?;
        let mut gap = 0;
        while gap < highest.min(GAP_MAX) && raw.take(1)? == 0 {
            gap += 1;
        }
        if gap < GAP_MAX {
            return Some(highest - gap);
        }
        let exponent = raw.take(self.float.exponent_bits())?;
        (exponent <= highest - GAP_MAX).then_some(exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_comes_back_from_its_cell_and_cells_are_in_order() {
        for float in [FloatFormat::Bf16, FloatFormat::F16, FloatFormat::E4m3] {
            for floor in [1, 2, 7, 9, 10, 15, 31, 100, 255] {
                let cells = Cells { float, floor };
                let mut last = i32::MIN;
                let half = 1u32 << (float.width() - 1);
                for bits in (half..2 * half).rev().chain(0..half) {
                    let cell = cells.cell(bits);
                    assert!(
                        cell >= last && cell.unsigned_abs() <= 1 << 16,
                        "{float:?} {floor} {bits:x}: {cell}"
                    );
                    last = cell;
                    let mut raw = BitWriter::default();
                    cells.write(bits, &mut raw);
                    let width = cells.width(bits);
                    let bytes = raw.finish();
                    assert_eq!(bytes.len(), width.div_ceil(8) as usize);
                    let mut reader = BitReader::new(&bytes);
                    assert_eq!(cells.read(cell, &mut reader), Some(bits), "{float:?} {floor}");
                    assert!(reader.is_at_end());
                }
            }
        }
    }

    #[test]
    fn a_cell_beyond_the_type_and_an_exponent_that_has_a_shorter_form_are_no_patterns() {
        let cells = Cells { float: FloatFormat::E4m3, floor: 12 };
        assert_eq!(cells.read(2 << 3, &mut BitReader::new(&[])), None, "exponent 16");
        // Eight zeros, then the exponent: 3 has none, 4 is coded as seven zeros and a one.
        for (exponent, expected) in [(3u8, Some(3 << 3)), (4, None)] {
            let bytes = [0, exponent, 0];
            assert_eq!(cells.read(0, &mut BitReader::new(&bytes)), expected);
        }
    }
}
