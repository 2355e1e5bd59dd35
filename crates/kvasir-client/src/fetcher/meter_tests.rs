use proptest::prelude::*;

use super::*;

fn ms(t: u64) -> Duration {
    Duration::from_millis(t)
}

/// One request over a link of `rate` bytes per second with `latency`, delivered in batches of `batch` bytes.
fn deliver(
    meter: &mut Meter,
    start: Duration,
    bytes: u64,
    batch: u64,
    latency: Duration,
    rate: f64,
) -> Duration {
    let (mut now, mut came, mut first) = (start + latency, 0, None);
    while came < bytes {
        let n = batch.min(bytes - came);
        now += Duration::from_secs_f64(n as f64 / rate);
        came += n;
        if first.is_none() {
            first = Some((now, n));
            meter.on_first_byte(now - start, n, true);
        }
        meter.on_bytes(now, n);
    }
    meter.on_transfer(now, &Transfer { sent: start, first, bytes });
    meter.on_idle(now);
    now
}

#[test]
fn silence_lowers_the_estimate() {
    let mut meter = Meter::new(EstimatorKind::Harmonic, None);
    deliver(&mut meter, Duration::ZERO, 10_000_000, 100_000, ms(80), 1e8);
    let rate = meter.rate(Duration::ZERO, None).unwrap().bytes_per_second();
    assert!((rate / 1e8 - 1.0).abs() < 0.01, "{rate}");
    let silent = meter.rate(Duration::from_secs(1), None).unwrap().bytes_per_second();
    assert!((silent / 5e6 - 1.0).abs() < 0.02, "a second of silence must show: {silent}");
}

#[test]
fn a_known_time_to_first_byte_counts_until_one_is_measured() {
    let mut meter = Meter::new(EstimatorKind::Harmonic, Some(ms(150)));
    assert_eq!(meter.first_byte(), ms(150));
    meter.on_first_byte(ms(30), 1, true);
    assert_eq!(meter.first_byte(), ms(30));
}

proptest! {
    /// Latency and rate are separated, for any batch size, once a transfer is long enough to measure.
    #[test]
    fn a_steady_link_is_measured_whatever_the_batches(
        last: bool, rate in 1e6f64..1e9, latency in 1u64..200, batch in 1_000u64..300_000,
    ) {
        let kind = if last { EstimatorKind::LastChunk } else { EstimatorKind::Harmonic };
        let mut meter = Meter::new(kind, None);
        let (mut now, bytes) = (Duration::ZERO, (rate * 0.2) as u64 + 10 * batch);
        for _ in 0..30 {
            now = deliver(&mut meter, now, bytes, batch, ms(latency), rate) + ms(5);
        }
        let found = meter.rate(Duration::ZERO, None).unwrap().bytes_per_second();
        prop_assert!((found / rate - 1.0).abs() < 0.02, "{found} of {rate}");
        let waited = meter.first_byte().as_secs_f64();
        let true_wait = latency as f64 / 1e3;
        prop_assert!(waited <= true_wait * 1.05 + batch as f64 / rate + 1e-3 && waited >= true_wait * 0.95, "{waited} of {true_wait}");
    }

    /// Small reads measure a round trip, and never show a slow link: they neither create nor change an
    /// estimate.
    #[test]
    fn small_reads_do_not_move_the_rate(rate in 1e7f64..1e9, latency in 5u64..300, small in 1u64..16_000) {
        let mut meter = Meter::new(EstimatorKind::Harmonic, None);
        let prior = ByteRate::new(rate);
        let mut now = Duration::ZERO;
        for _ in 0..20 {
            now = deliver(&mut meter, now, small, small, ms(latency), rate);
        }
        prop_assert_eq!(meter.rate(Duration::ZERO, prior), prior, "only small reads: the prior holds");
        let big = (rate * 0.1) as u64;
        now = deliver(&mut meter, now, big, big / 40, ms(latency), rate);
        let before = meter.rate(Duration::ZERO, None);
        for _ in 0..20 {
            now = deliver(&mut meter, now, small, small, ms(latency), rate);
        }
        prop_assert_eq!(meter.rate(Duration::ZERO, None), before);
    }
}

/// A transfer that stopped while the link was slow is scaled to the link's present rate; one that stopped
/// while the link was as fast as now is not.
#[test]
fn rates_follow_a_link_that_recovers() {
    let ms = Duration::from_millis;
    let mut meter = Meter::new(EstimatorKind::Harmonic, None);
    let rate = ByteRate::new(5e5).unwrap();
    assert_eq!(meter.since(rate, ms(3)), rate, "nothing is known of the link");
    // 1 MB/s for 200 ms, then 8 MB/s.
    (0..=40).for_each(|i| meter.on_bytes(ms(i * 5), 5_000));
    (1..=40).for_each(|i| meter.on_bytes(ms(200 + i * 5), 40_000));
    let scaled = meter.since(rate, ms(100)).bytes_per_second() / 5e5;
    assert!((7.0..9.0).contains(&scaled), "{scaled}");
    assert_eq!(meter.since(rate, ms(395)), rate);
    // Scaling never lowers a rate: only the transfer itself can show that.
    (1..=40).for_each(|i| meter.on_bytes(ms(400 + i * 5), 5_000));
    assert_eq!(meter.since(rate, ms(395)), rate);
}
