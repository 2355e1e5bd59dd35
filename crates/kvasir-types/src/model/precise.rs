//! Correctly rounded logarithm and power, so that a formula yields the same bits on every machine.
//!
//! C libraries differ in the last place, and a frequency enters the model's id. Numbers here are unevaluated
//! sums of two f64 (T. J. Dekker, 1971), about 104 bits; only operations that IEEE 754 rounds correctly
//! determine the result.

use std::{
    f64::consts::LN_2,
    ops::{Add, Mul},
};

/// `high + low`, with `low` below half a unit in the last place of `high`.
#[derive(Clone, Copy)]
struct Sum(f64, f64);

/// ln 2 to twice the precision of f64.
const LN_2_SUM: Sum = Sum(LN_2, 2.319_046_813_846_3e-17);
/// Halvings of an argument before its series, and squarings after it.
const HALVINGS: i32 = 9;
/// Terms of the series: `(ln 2 / 2^10)^10 / 10!` is below 2^-110.
const TERMS: i32 = 10;

fn two_sum(a: f64, b: f64) -> Sum {
    let sum = a + b;
    let b_part = sum - a;
    Sum(sum, (a - (sum - b_part)) + (b - b_part))
}

impl Add for Sum {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let Self(high, low) = two_sum(self.0, other.0);
        let Self(low_high, low_low) = two_sum(self.1, other.1);
        let Self(high, low) = two_sum(high, low + low_high);
        two_sum(high, low + low_low)
    }
}

impl Mul for Sum {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let product = self.0 * other.0;
        let error = self.0.mul_add(other.0, -product);
        two_sum(product, error + (self.0 * other.1 + self.1 * other.0))
    }
}

impl Sum {
    fn scaled(self, power_of_two: f64) -> Self {
        Self(self.0 * power_of_two, self.1 * power_of_two)
    }

    fn over(self, divisor: f64) -> Self {
        let quotient = self.0 / divisor;
        let rest = self + Self(quotient, 0.0) * Self(-divisor, 0.0);
        two_sum(quotient, rest.0 / divisor)
    }
}

/// `e^x` for `|x|` up to 700.
fn exp(x: Sum) -> Sum {
    let turns = (x.0 / LN_2).round();
    let rest = (x + LN_2_SUM * Sum(-turns, 0.0)).scaled(2f64.powi(-HALVINGS));
    // rest + rest²/2! + …, from its end; without the 1, which would absorb its last bits.
    let series =
        (2..=TERMS).rev().fold(Sum(1.0, 0.0), |sum, n| Sum(1.0, 0.0) + (rest * sum).over(f64::from(n)));
    let less_one = (0..HALVINGS).fold(rest * series, |e, _| e.scaled(2.0) + e * e);
    (less_one + Sum(1.0, 0.0)).scaled(2f64.powi(turns as i32))
}

fn ln_sum(x: f64) -> Sum {
    // One step of Newton's method from the C library's value: reduces its error to 2^-100.
    let near = Sum(x.ln(), 0.0);
    near + (Sum(x, 0.0) * exp(near.scaled(-1.0)) + Sum(-1.0, 0.0))
}

/// The natural logarithm of a normal `x` above 0.
pub(super) fn ln(x: f64) -> f64 {
    ln_sum(x).0
}

/// `base^exponent`, where base is normal and above 0, and the result within e^±700.
pub(super) fn pow(base: f64, exponent: f64) -> f64 {
    exp(ln_sum(base) * Sum(exponent, 0.0)).0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the C library's, which is at most one unit in the last place off.
    #[test]
    fn it_agrees_with_the_c_library() {
        for base in [1.0001, 2.0, 500.0, 1e4, 150_000.0, 1e6, 8e6, 1e30] {
            let near = |x: f64, y: f64| (x - y).abs() <= y.abs() * f64::EPSILON;
            assert!(near(ln(base), base.ln()), "ln {base}");
            for step in 0..=64 {
                let exponent = f64::from(step - 48) / 48.0;
                assert!(near(pow(base, exponent), base.powf(exponent)), "{base}^{exponent}");
            }
        }
    }

    /// Correctly rounded values, calculated with 60 decimal digits.
    #[test]
    fn results_are_rounded_correctly() {
        let values = [
            (10000.0, -0.8515625, 0x3f39b7b2aae7c351),
            (10000.0, -0.6756756756756757, 0x3f603e68b6d30f3c),
            (500000.0, -0.5675675675675675, 0x3f43181782fb0be3),
            (1000000.0, -0.4296875, 0x3f65a3f024984d68),
            (150000.0, -0.3958333333333333, 0x3f824ce6c651023c),
            (150000.0, -0.5945945945945946, 0x3f4b66c7853fba3a),
            (2.0, -0.8648648648648649, 0x3fe19235a0e3fb35),
            (1.7, -0.1796875, 0x3fed16ff1e6105f1),
            (123456.789, -0.7083333333333334, 0x3f3037bd5f321d23),
            (123456.789, -0.5416666666666666, 0x3f5c9c20e915ef9d),
        ];
        for (base, exponent, expected) in values {
            assert_eq!(pow(base, exponent).to_bits(), expected, "{base}^{exponent}");
        }
    }
}
