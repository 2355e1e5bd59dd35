use proptest::prelude::*;

use super::*;

fn window(bytes_per_second: f64) -> Sample {
    Sample::Window(ByteRate::new(bytes_per_second).unwrap(), Duration::from_millis(100))
}

fn fed(kind: EstimatorKind, rates: &[f64]) -> f64 {
    let mut estimator = Estimator::new(kind);
    rates.iter().for_each(|&r| estimator.observe(window(r)));
    estimator.rate().unwrap().bytes_per_second()
}

proptest! {
    #[test]
    fn estimators_agree_with_their_definitions(rates in prop::collection::vec(1e3f64..1e10, 1..60)) {
        let last = &rates[rates.len().saturating_sub(20)..];
        let harmonic = last.len() as f64 / last.iter().map(|r| 1.0 / r).sum::<f64>();
        prop_assert!((fed(EstimatorKind::Harmonic, &rates) / harmonic - 1.0).abs() < 1e-9);

        let keep = 0.5f64.powf(0.1 / 0.5);
        let ewma = rates[1..].iter().fold(rates[0], |mean, r| keep * mean + (1.0 - keep) * r);
        prop_assert!((fed(EstimatorKind::Ewma, &rates) / ewma - 1.0).abs() < 1e-9);

        let conservative = fed(EstimatorKind::Conservative, &rates);
        prop_assert!(conservative <= harmonic * (1.0 + 1e-12));
        // At most a quarter of the window lies strictly below it, unless the harmonic mean does too.
        let below = last.iter().filter(|&&r| r < conservative).count();
        prop_assert!(below * 4 <= last.len());
    }
}

#[test]
fn the_last_chunk_estimator_ignores_windows() {
    let mut estimator = Estimator::new(EstimatorKind::LastChunk);
    estimator.observe(window(5.0));
    assert_eq!(estimator.rate(), None);
    estimator.observe(Sample::Transfer(ByteRate::new(7.0).unwrap()));
    estimator.observe(window(5.0));
    assert_eq!(estimator.rate(), ByteRate::new(7.0));
}

#[test]
fn the_meter_measures_a_steady_link_and_leaves_latency_out() {
    let mut meter = Meter::new(EstimatorKind::Harmonic);
    meter.on_first_byte(Duration::from_millis(80), true);
    for i in 0..100u64 {
        meter.on_bytes(Duration::from_millis(80 + i), 100_000); // 100 MB/s
    }
    let rate = meter.rate(Duration::ZERO, None).unwrap().bytes_per_second();
    assert!((rate / 1e8 - 1.0).abs() < 0.01, "{rate}");
    assert!(meter.first_byte() > FIRST_BYTE_PRIOR);
    let silent = meter.rate(Duration::from_secs(1), None).unwrap().bytes_per_second();
    assert!((silent / 5e6 - 1.0).abs() < 0.02, "a second of silence must show: {silent}");
}
