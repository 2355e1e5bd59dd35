//! The float types of caches, as integers.

use half::{
    bf16, f16,
    slice::{HalfBitsSliceExt, HalfFloatSliceExt},
};

use crate::e4m3;

/// A float type of at most 16 bits: sign, exponent, mantissa.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatFormat {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// OCP FP8 E4M3: bias 7, no infinities, NaN where all bits but the sign are set.
    E4m3,
}

impl FloatFormat {
    /// Bits.
    pub(crate) const fn width(self) -> u32 {
        match self {
            Self::Bf16 | Self::F16 => 16,
            Self::E4m3 => 8,
        }
    }

    /// Bits below the exponent.
    pub(crate) const fn mantissa_bits(self) -> u32 {
        match self {
            Self::Bf16 => 7,
            Self::F16 => 10,
            Self::E4m3 => 3,
        }
    }

    /// The nearest value's pattern, ties to even; values beyond e4m3's range become its NaN.
    pub fn bits(self, value: f32) -> u32 {
        match self {
            Self::Bf16 => bf16::from_f32(value).to_bits().into(),
            Self::F16 => f16::from_f32(value).to_bits().into(),
            Self::E4m3 => e4m3_bits(value),
        }
    }

    /// A pattern's value.
    #[cfg(test)]
    pub(crate) fn value(self, bits: u32) -> f32 {
        match self {
            Self::Bf16 => bf16::from_bits(bits as u16).to_f32(),
            Self::F16 => f16::from_bits(bits as u16).to_f32(),
            Self::E4m3 => e4m3::decode(bits as u8),
        }
    }

    /// [`bits`](Self::bits) of as many values: conversions one by one are calls, of many they are instructions.
    pub(crate) fn patterns(self, values: &[f32], out: &mut [u16]) {
        match self {
            Self::Bf16 => out.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(values),
            Self::F16 => out.reinterpret_cast_mut::<f16>().convert_from_f32_slice(values),
            Self::E4m3 => out.iter_mut().zip(values).for_each(|(out, value)| *out = e4m3_bits(*value) as u16),
        }
    }

    /// The values of as many patterns.
    pub(crate) fn values(self, patterns: &[u16], out: &mut [f32]) {
        match self {
            Self::Bf16 => patterns.reinterpret_cast::<bf16>().convert_to_f32_slice(out),
            Self::F16 => patterns.reinterpret_cast::<f16>().convert_to_f32_slice(out),
            Self::E4m3 => {
                out.iter_mut().zip(patterns).for_each(|(out, bits)| *out = e4m3::decode(*bits as u8))
            }
        }
    }

    /// Bits between the sign and the mantissa.
    pub(crate) const fn exponent_bits(self) -> u32 {
        self.width() - 1 - self.mantissa_bits()
    }

    /// Biased exponent and mantissa of a pattern.
    pub const fn fields(self, bits: u32) -> (u32, u32) {
        let (low, exponents) = (self.mantissa_bits(), (1 << self.exponent_bits()) - 1);
        (bits >> low & exponents, bits & ((1 << low) - 1))
    }

    /// Whether a pattern's sign is set.
    pub(crate) const fn is_negative(self, bits: u32) -> bool {
        bits >> (self.width() - 1) & 1 == 1
    }

    /// The pattern of a sign, a biased exponent and a mantissa; `None` beyond the type's exponents.
    pub(crate) fn pattern(self, negative: bool, exponent: u32, mantissa: u32) -> Option<u32> {
        let in_range = exponent >> self.exponent_bits() == 0;
        let sign = u32::from(negative) << (self.width() - 1);
        in_range.then(|| sign | exponent << self.mantissa_bits() | mantissa)
    }
}

/// Past the halfway point between the largest value and the next step, only NaN remains.
fn e4m3_bits(value: f32) -> u32 {
    let beyond = value.abs() > 464.0;
    u32::from(if beyond { e4m3::encode(f32::NAN.copysign(value)) } else { e4m3::encode(value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_its_value_and_its_fields() {
        for float in [FloatFormat::Bf16, FloatFormat::F16, FloatFormat::E4m3] {
            for bits in 0..1u32 << float.width() {
                let (value, (exponent, mantissa)) = (float.value(bits), float.fields(bits));
                assert_eq!(float.pattern(float.is_negative(bits), exponent, mantissa), Some(bits));
                assert!(value.is_nan() || float.bits(value) == bits, "{float:?} {bits:x}: {value}");
            }
            let all: Vec<u16> = (0..1u32 << float.width()).map(|bits| bits as u16).collect();
            let (mut values, mut back) = (vec![0.0; all.len()], vec![0; all.len()]);
            float.values(&all, &mut values);
            float.patterns(&values, &mut back);
            for (bits, (value, back)) in all.into_iter().zip(values.into_iter().zip(back)) {
                assert_eq!(value.to_bits(), float.value(bits.into()).to_bits());
                assert_eq!(u32::from(back), float.bits(value), "{float:?} {bits:x}");
            }
            assert_eq!(float.pattern(false, 1 << float.exponent_bits(), 0), None);
        }
    }
}
