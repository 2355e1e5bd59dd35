use proptest::prelude::*;

use super::*;

fn stretch(bytes_per_second: f64) -> TimedBytes {
    TimedBytes { bytes: (bytes_per_second / 10.0) as u64, took: Duration::from_millis(100) }
}

proptest! {
    #[test]
    fn the_mean_is_the_harmonic_one_of_the_last_twenty_samples(
        rates in prop::collection::vec(1e6f64..1e10, 1..60),
    ) {
        let last = &rates[rates.len().saturating_sub(20)..];
        let harmonic = last.len() as f64 / last.iter().map(|r| 1.0 / r).sum::<f64>();
        let mut estimator = Estimator::new(EstimatorKind::Harmonic);
        rates.iter().for_each(|&r| estimator.observe(ThroughputSample::Window(stretch(r))));
        prop_assert!((estimator.rate().unwrap().bytes_per_second() / harmonic - 1.0).abs() < 1e-4);
    }

    /// Samples older than two seconds of transfer are forgotten, however few they are.
    #[test]
    fn the_window_is_one_of_time_too(old in 1e6f64..1e9, new in 1e6f64..1e9) {
        let long = |rate: f64| ThroughputSample::Window(TimedBytes { bytes: (rate * 2.0) as u64, took: Duration::from_secs(2) });
        let mut estimator = Estimator::new(EstimatorKind::Harmonic);
        estimator.observe(long(old));
        estimator.observe(long(new));
        prop_assert!((estimator.rate().unwrap().bytes_per_second() / new - 1.0).abs() < 1e-4);
    }
}

#[test]
fn the_last_chunk_estimator_ignores_windows() {
    let mut estimator = Estimator::new(EstimatorKind::LastChunk);
    estimator.observe(ThroughputSample::Window(stretch(500.0)));
    assert_eq!(estimator.rate(), None);
    estimator.observe(ThroughputSample::Transfer(stretch(700.0)));
    estimator.observe(ThroughputSample::Window(stretch(500.0)));
    assert_eq!(estimator.rate(), ByteRate::new(700.0));
}
