//! Axes: where a value lies on paper, and which values deserve a tick.

/// Most ticks an axis is asked to show.
const TICKS_MAX: usize = 16;
/// Magnitudes beyond are no measurements and would leave no precision for ticks.
const MAGNITUDE: std::ops::Range<f64> = 1e-60..1e60;

/// Maps data to pixels, linearly or logarithmically.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
    /// Distance of the ticks of a linear axis.
    step: f64,
}

impl Scale {
    /// A scale over `values` that lands on whole ticks, drawn between pixels `from` and `to`.
    ///
    /// Values that are not finite or absurdly large or small are ignored; a logarithmic scale also ignores
    /// what is not positive. With nothing left, the scale is 0..1 (1..10 when logarithmic), so an empty plot still draws.
    pub(crate) fn fit(
        values: impl Iterator<Item = f64>,
        log: bool,
        from_zero: bool,
        from: f64,
        to: f64,
    ) -> Self {
        let measurable = |v: &f64| *v == 0.0 || MAGNITUDE.contains(&v.abs());
        let usable = values.filter(measurable).filter(|v| !log || *v > 0.0);
        let (mut low, mut high) =
            usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        if low > high {
            (low, high) = if log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        let mut step = 0.0;
        if log {
            (low, high) = (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()));
            if low == high {
                high = low * 10.0;
            }
        } else {
            if from_zero {
                (low, high) = (low.min(0.0), high.max(0.0));
            }
            // Closer than rounding noise: one value.
            if high - low <= 1e-9 * low.abs().max(high.abs()) {
                high = low + if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
            }
            step = nice_step((high - low) / 5.0);
            (low, high) = ((low / step).floor() * step, (high / step - 1e-9).ceil() * step);
        }
        Self { low, high, from, to, log, step }
    }

    /// A linear scale over exactly `low..high`.
    pub(crate) fn exact(low: f64, high: f64, from: f64, to: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, from, to, log: false, step: nice_step((high - low) / 5.0) }
    }

    /// Pixel of `value`, clamped into the axis.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(f64::MIN_POSITIVE) / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        self.from + part * (self.to - self.from)
    }

    /// Values to mark, ascending: decades of a logarithmic axis (with 2 and 5 where it is short), round
    /// steps of a linear one.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = (self.high / self.low).log10().round() as i32;
            let first = self.low.log10().round() as i32;
            let within: &[f64] = if decades <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let all = (first..=first + decades).flat_map(|d| within.iter().map(move |m| m * 10f64.powi(d)));
            let thinned = (decades as usize / TICKS_MAX + 1) * within.len();
            return all
                .filter(|v| *v <= self.high * 1.000_001)
                .step_by(if decades > 2 { thinned } else { 1 })
                .collect();
        }
        let first = (self.low / self.step - 1e-9).ceil() as i64;
        let last = (self.high / self.step + 1e-9).floor() as i64;
        (first..=last).take(TICKS_MAX).map(|i| i as f64 * self.step).collect()
    }
}

/// The smallest of 1, 2, 2.5, 5 × 10^n that is at least `raw`.
fn nice_step(raw: f64) -> f64 {
    let decade = 10f64.powf(raw.log10().floor());
    [1.0, 2.0, 2.5, 5.0]
        .map(|m| m * decade)
        .into_iter()
        .find(|s| *s >= raw * 0.999_999)
        .unwrap_or(10.0 * decade)
}

/// A number for people: three significant digits, thousands kept whole, no exponent in the range people read.
pub fn number(value: f64) -> String {
    let magnitude = value.abs();
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    if !(1e-2..1e7).contains(&magnitude) {
        return format!("{value:.1e}").replace(".0e", "e");
    }
    let decimals = (2 - magnitude.log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_value_lies_on_the_axis_and_between_its_end_ticks(
            values in prop::collection::vec(-1e6f64..1e6, 1..20), from_zero: bool,
        ) {
            let scale = Scale::fit(values.iter().copied(), false, from_zero, 0.0, 100.0);
            let ticks = scale.ticks();
            prop_assert!((2..=12).contains(&ticks.len()), "{ticks:?}");
            for v in values {
                prop_assert!(ticks[0] <= v + 1e-6 && v <= ticks[ticks.len() - 1] + 1e-6);
                prop_assert!((0.0..=100.0).contains(&scale.at(v)));
            }
        }

        #[test]
        fn log_scales_are_monotonic(a in 1e-6f64..1e6, b in 1e-6f64..1e6) {
            let scale = Scale::fit([a, b].into_iter(), true, false, 0.0, 100.0);
            prop_assert_eq!(a < b, scale.at(a) < scale.at(b));
        }
    }

    #[test]
    fn nothing_and_nonsense_still_make_an_axis() {
        for log in [false, true] {
            let scale = Scale::fit([f64::NAN, f64::INFINITY].into_iter(), log, true, 10.0, 20.0);
            assert!(scale.ticks().len() >= 2);
            assert!((10.0..=20.0).contains(&scale.at(f64::NAN)));
        }
    }

    #[test]
    fn numbers_are_written_for_people() {
        let cases =
            [(0.0, "0"), (1234.0, "1234"), (0.125, "0.125"), (12.34, "12.3"), (1.0, "1"), (-2.5, "-2.5")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(f64::NAN), "–");
        assert_eq!(number(3e-5), "3e-5");
        assert_eq!(number(3.2e-5), "3.2e-5");
    }
}
