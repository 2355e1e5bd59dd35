//! Integers of a few bits each: how bases and token factors are stored so that a wide basis fits a small profile.

use half::f16;

use crate::limits::ROW_BITS_MAX;

/// Bytes of `count` integers of `bits` bits.
pub const fn packed_bytes(count: usize, bits: u8) -> usize {
    (count * bits as usize).div_ceil(8)
}

/// Appends unsigned integers of `bits` bits each, least significant bit first, filled to a byte with zeros.
pub(crate) fn pack(values: impl Iterator<Item = u32>, bits: u8, out: &mut Vec<u8>) {
    let (mut held, mut filled) = (0u64, 0u32);
    for value in values {
        held |= u64::from(value) << filled;
        filled += u32::from(bits);
        while filled >= 8 {
            out.push(held as u8);
            held >>= 8;
            filled -= 8;
        }
    }
    if filled > 0 {
        out.push(held as u8);
    }
}

/// The integers that [`pack`] wrote; missing bytes read as zeros.
pub(crate) fn unpack(bytes: &[u8], bits: u8, count: usize) -> impl Iterator<Item = u32> {
    let (mut held, mut filled, mut bytes) = (0u64, 0u32, bytes.iter());
    (0..count).map(move |_| {
        while filled < u32::from(bits) {
            held |= u64::from(bytes.next().copied().unwrap_or(0)) << filled;
            filled += 8;
        }
        let value = held & ((1u64 << bits) - 1);
        held >>= bits;
        filled -= u32::from(bits);
        value as u32
    })
}

/// A synthesis matrix as integers: row `c` has `bits[c]` bits an entry.
///
/// An entry is `(2·code + 1 − 2^bits) · unit`, an odd multiple of the unit: with one bit that is a sign.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PackedRows {
    /// Bits per entry, one number per row.
    pub bits: Vec<u8>,
    /// One per row.
    pub units: Vec<f32>,
    /// All rows' codes, each row filled to a byte.
    pub codes: Vec<u8>,
}

impl PackedRows {
    /// Quantises unit rows of `elements` entries, each with its own bits (1 to [`ROW_BITS_MAX`]).
    pub fn quantise(rows: &[f32], elements: usize, bits: &[u8]) -> Self {
        let mut packed = Self::default();
        for (row, bits) in rows.chunks_exact(elements).zip(bits) {
            let step = best_step(row, *bits);
            let codes = row.iter().map(|v| code(*v, step, *bits));
            let power: f64 = codes.clone().map(|c| f64::from(odd(c, *bits)).powi(2)).sum();
            // Only the direction matters: coefficients are computed for the row itself.
            packed.units.push((1.0 / power.sqrt()) as f32);
            packed.bits.push(*bits);
            pack(codes, *bits, &mut packed.codes);
        }
        packed
    }

    /// The rows as decoders use them, `[row][element]`.
    pub fn rows(&self, elements: usize) -> Vec<f16> {
        let mut out = Vec::with_capacity(self.bits.len() * elements);
        let mut rest = self.codes.as_slice();
        for (bits, unit) in self.bits.iter().zip(&self.units) {
            let (row, behind) = rest.split_at(packed_bytes(elements, *bits).min(rest.len()));
            rest = behind;
            out.extend(
                unpack(row, *bits, elements).map(|code| f16::from_f32(odd(code, *bits) as f32 * unit)),
            );
        }
        out
    }

    /// Keeps the first `rows` rows.
    pub fn truncate(&mut self, rows: usize, elements: usize) {
        self.bits.truncate(rows);
        self.units.truncate(rows);
        let bytes = self.bits.iter().map(|bits| packed_bytes(elements, *bits)).sum();
        self.codes.truncate(bytes);
    }
}

/// The odd integer of a code.
const fn odd(code: u32, bits: u8) -> i32 {
    2 * code as i32 + 1 - (1 << bits)
}

/// The code of the odd multiple of `step / 2` nearest to a value.
fn code(value: f32, step: f32, bits: u8) -> u32 {
    let half = (1i32 << (bits - 1)) as f32;
    ((value / step).floor().clamp(-half, half - 1.0) + half) as u32
}

/// The step of least error: for a Gaussian of the row's power the step falls a little slower than 2^-bits
/// (Max 1960); rows are not quite Gaussian, so a few around it are tried.
fn best_step(row: &[f32], bits: u8) -> f32 {
    debug_assert!((1..=ROW_BITS_MAX).contains(&bits));
    let power: f64 = row.iter().map(|v| f64::from(*v).powi(2)).sum();
    let sigma = (power / row.len().max(1) as f64).sqrt().max(1e-30) as f32;
    let usual = 3.2 * sigma * (-0.91 * f32::from(bits)).exp2();
    let error = |step: f32| {
        let difference = |v: &f32| odd(code(*v, step, bits), bits) as f32 * step * 0.5 - v;
        row.iter().map(|v| f64::from(difference(v)).powi(2)).sum::<f64>()
    };
    let steps = (-4..=4).map(|n| usual * (n as f32 * 0.15).exp2());
    steps.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(usual)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packed_integers_come_back(bits in 1u8..=16, values in prop::collection::vec(any::<u32>(), 0..50)) {
            let values: Vec<u32> = values.iter().map(|v| v & ((1 << bits) - 1)).collect();
            let mut bytes = Vec::new();
            pack(values.iter().copied(), bits, &mut bytes);
            prop_assert_eq!(bytes.len(), packed_bytes(values.len(), bits));
            prop_assert_eq!(unpack(&bytes, bits, values.len()).collect::<Vec<_>>(), values);
        }
    }

    /// Max (1960): a uniform quantiser of 1, 2, 4, 8 bits for a Gaussian leaves 0.363, 0.119, 0.0115, 8.7e-5.
    #[test]
    fn rows_keep_the_direction_that_their_bits_allow() {
        let mut noise = crate::noise::Noise::new(1);
        let mut row: Vec<f32> = (0..4096).map(|_| noise.normal()).collect();
        let norm = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        row.iter_mut().for_each(|v| *v /= norm);
        for (bits, lost) in [(1u8, 0.363), (2, 0.119), (4, 0.0115), (8, 1e-4)] {
            let packed = PackedRows::quantise(&row, row.len(), &[bits]);
            let back = packed.rows(row.len());
            let along: f32 = back.iter().zip(&row).map(|(a, b)| a.to_f32() * b).sum();
            let norm: f32 = back.iter().map(|v| v.to_f32().powi(2)).sum();
            assert!((norm - 1.0).abs() < 2e-3, "{bits}: norm² {norm}");
            assert!(f64::from(1.0 - along * along) < lost * 1.1 + 2e-4, "{bits}: {along}");
        }
    }
}
