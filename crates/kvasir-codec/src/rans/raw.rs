//! Raw pieces: a width per coefficient, then fixed-width values. For values that the coder cannot express or
//! would not shrink.
//!
//! `u16 0x8000 | n_active · u8 width[n_active] · bits, least significant first, zero-filled to a byte`. A value is
//! zigzag-coded (`0, -1, 1, -2, …`): a stage coefficient's value at the piece's level, a trit coefficient's digit.

use super::{
    coding::Coding,
    error::PieceError,
    nested_index::{digit, refine},
    plan::PiecePlan,
    stream::{
        RowsAt,
        cell::{Cell, Fit},
    },
};

/// Marks a raw piece in the field of `n_active`.
pub(super) const RAW_FLAG: u16 = 0x8000;
/// Widest value: zigzag of ±(2^24 − 1).
pub(super) const WIDTH_MAX: u32 = 25;
/// Widest digit: zigzag of ±1.
const DIGIT_WIDTH_MAX: u32 = 2;

#[inline(always)]
pub(super) fn zigzag(value: i32) -> u32 {
    (value << 1 ^ value >> 31) as u32
}

fn unzigzag(code: u32) -> i32 {
    (code >> 1) as i32 ^ -((code & 1) as i32)
}

/// The stored form of a value.
fn stored(coding: Coding, value: i32) -> u32 {
    match coding {
        Coding::Stage { .. } => zigzag(value),
        Coding::Trit { .. } => zigzag(digit(value)),
    }
}

/// Width of a coefficient with these values.
pub(super) fn width(coding: Coding, row: &[i32]) -> usize {
    let used = match coding {
        Coding::Stage { .. } => row.iter().fold(0, |bits, &value| bits | zigzag(value)),
        Coding::Trit { .. } => row.iter().fold(0, |bits, &value| bits | zigzag(digit(value))),
    };
    (u32::BITS - used.leading_zeros()) as usize
}

/// Size of a piece of `active` coefficients with this sum of widths.
pub(super) fn bytes(plan: &PiecePlan<'_>, active: usize, width_sum: usize) -> usize {
    2 + active + (width_sum * plan.tokens).div_ceil(8)
}

/// Appends the raw piece of the active coefficients' values.
pub(super) fn encode(plan: &PiecePlan<'_>, values: &[i32], out: &mut Vec<u8>) {
    let rows = plan.coefficients.iter().zip(values.chunks_exact(plan.tokens));
    let widths: Vec<u8> = rows.map(|(coding, row)| width(*coding, row) as u8).collect(); // at most 32
    out.extend_from_slice(&(widths.len() as u16 | RAW_FLAG).to_le_bytes());
    out.extend_from_slice(&widths);
    let (mut pending, mut held) = (0u64, 0u32);
    let rows = plan.coefficients.iter().zip(&widths).zip(values.chunks_exact(plan.tokens));
    for ((coding, &width), row) in rows {
        for &value in row {
            pending |= u64::from(stored(*coding, value)) << held;
            held += u32::from(width);
            while held >= 8 {
                out.push(pending as u8);
                pending >>= 8;
                held -= 8;
            }
        }
    }
    if held > 0 {
        out.push(pending as u8);
    }
}

/// The widths of a raw piece, after everything but the values was checked: widths, length, fill.
pub(super) fn check<'b>(
    plan: &PiecePlan<'_>,
    active: usize,
    bytes: &'b [u8],
) -> Result<&'b [u8], PieceError> {
    let short = PieceError::Length { expected: 2 + active, actual: bytes.len() };
    let widths = bytes.get(2..2 + active).ok_or(short)?;
    for (index, (coding, &width)) in plan.coefficients.iter().zip(widths).enumerate() {
        let limit = match coding {
            Coding::Stage { .. } => WIDTH_MAX,
            Coding::Trit { .. } => DIGIT_WIDTH_MAX,
        };
        if u32::from(width) > limit {
            return Err(PieceError::Field { offset: 2 + index, limit, actual: width.into() });
        }
    }
    let bits = widths.iter().map(|&w| usize::from(w) * plan.tokens).sum::<usize>();
    let expected = 2 + active + bits.div_ceil(8);
    if bytes.len() != expected {
        return Err(PieceError::Length { expected, actual: bytes.len() });
    }
    let used = bits % 8;
    match bytes.last() {
        Some(last) if used > 0 && last >> used != 0 => {
            Err(PieceError::Field { offset: bytes.len() - 1, limit: 0, actual: (last >> used).into() })
        }
        _ => Ok(widths),
    }
}

/// Decodes the bytes after the first field. The caller handles coefficients after `active`.
pub(super) fn decode<V: Cell>(
    plan: &PiecePlan<'_>,
    active: usize,
    bytes: &[u8],
    at: RowsAt<'_>,
    (values, stride, most): (&mut [V], usize, i32),
) -> Result<Fit, PieceError> {
    let widths = check(plan, active, bytes)?;
    let mut reader = Bits { bytes: &bytes[2 + active..], pending: 0, held: 0, taken: 0 };
    for (c, (coding, &width)) in plan.coefficients.iter().zip(widths).enumerate() {
        let first = at.row(c) * stride;
        for cell in &mut values[first..first + plan.tokens] {
            let code = reader.take(width.into());
            let value = match coding {
                Coding::Stage { .. } => unzigzag(code),
                Coding::Trit { .. } if code > 2 => {
                    let offset = 2 + active + reader.taken - 1;
                    return Err(PieceError::Field { offset, limit: 2, actual: code });
                }
                Coding::Trit { .. } => refine(cell.get(), unzigzag(code)),
            };
            let Some(held) = V::of(value, coding.bound(most)) else { return Ok(Fit::TooWide) };
            *cell = held;
        }
    }
    Ok(Fit::Held)
}

/// Bits, least significant first; zeros past the end.
struct Bits<'a> {
    bytes: &'a [u8],
    pending: u64,
    held: u32,
    taken: usize,
}

impl Bits<'_> {
    fn take(&mut self, width: u32) -> u32 {
        while self.held < width {
            let byte = self.bytes.get(self.taken).copied().unwrap_or(0);
            self.pending |= u64::from(byte) << self.held;
            self.held += 8;
            self.taken += 1;
        }
        let code = self.pending & ((1 << width) - 1);
        self.pending >>= width;
        self.held -= width;
        code as u32
    }
}
