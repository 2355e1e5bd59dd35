//! OCP FP8 E4M3: bias 7, no infinities, NaN where all bits but the sign are set; ±448 are the largest values.

/// The nearest value's pattern, ties to even. Values past ±448 and infinities become ±448; a NaN keeps its sign.
pub const fn encode(value: f32) -> u8 {
    /// Mantissa bits of an f32 that e4m3 lacks.
    const SHIFT: u32 = 20;
    let bits = value.to_bits();
    let (sign, magnitude) = ((bits >> 24) as u8 & 0x80, bits & 0x7fff_ffff);
    if magnitude > f32::INFINITY.to_bits() {
        sign | 0x7f
    } else if magnitude >= 448f32.to_bits() {
        sign | 0x7e
    } else if magnitude >= MIN_NORMAL.to_bits() {
        let rounded = magnitude + (1 << (SHIFT - 1)) - 1 + (magnitude >> SHIFT & 1);
        sign | ((rounded >> SHIFT) - ((127 - 7) << 3)) as u8
    } else {
        // The distance of f32s there is the step of e4m3's denormals, 2^-9: the sum is rounded to it.
        const STEPS: f32 = 16_384.0;
        sign | ((f32::from_bits(magnitude) + STEPS).to_bits() - STEPS.to_bits()) as u8
    }
}

/// A pattern's value.
pub const fn decode(pattern: u8) -> f32 {
    let (sign, exponent, mantissa) = ((pattern as u32 & 0x80) << 24, pattern as u32 >> 3 & 15, pattern & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, mantissa) => mantissa as f32 * (MIN_NORMAL / 8.0),
        (exponent, mantissa) => f32::from_bits((exponent + 120) << 23 | (mantissa as u32) << 20),
    };
    f32::from_bits(sign | magnitude.to_bits())
}

/// The smallest normal value: 2^-6.
const MIN_NORMAL: f32 = 0.015625;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Finite patterns of positive values are in order of their values.
    const LARGEST: u8 = 0x7e;

    #[test]
    fn every_pattern_comes_back_and_every_tie_goes_to_even() {
        assert_eq!(
            (decode(0x7e), decode(0x08), decode(0x01), decode(0x38)),
            (448.0, MIN_NORMAL, 2f32.powi(-9), 1.0)
        );
        for pattern in 0..=255u8 {
            assert_eq!(encode(decode(pattern)), pattern);
        }
        for below in 0..LARGEST {
            let tie = f32::midpoint(decode(below), decode(below + 1));
            let even = below + (below & 1);
            for sign in [0, 0x80] {
                let signed = |value: f32| f32::from_bits(value.to_bits() | u32::from(sign) << 24);
                assert_eq!(encode(signed(tie)), sign | even);
                assert_eq!(encode(signed(tie.next_down())), sign | below);
                assert_eq!(encode(signed(tie.next_up())), sign | (below + 1));
            }
        }
        for large in [448.1, 464.0, 465.0, 1e30, f32::MAX, f32::INFINITY] {
            assert_eq!((encode(large), encode(-large)), (LARGEST, 0x80 | LARGEST));
        }
    }

    proptest! {
        #[test]
        fn the_nearest_pattern_is_taken(bits: u32, small in -3f32..3.0) {
            for value in [f32::from_bits(bits), small] {
                let pattern = encode(value);
                prop_assert_eq!(pattern >> 7 == 1, value.is_sign_negative());
                prop_assert_eq!(decode(pattern).is_nan(), value.is_nan());
                if value.is_finite() {
                    let distance = |pattern: u8| (f64::from(decode(pattern)) - f64::from(value)).abs();
                    let nearest = (0..=LARGEST).map(|p| distance(p | pattern & 0x80)).fold(f64::MAX, f64::min);
                    prop_assert_eq!(distance(pattern), nearest);
                }
            }
        }
    }
}
