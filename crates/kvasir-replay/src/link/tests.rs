use std::{path::Path, time::Duration};

use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::*;

fn series() -> impl Strategy<Value = BandwidthSeries> {
    let rates = prop::collection::vec(prop_oneof![Just(0.0), 0.5f64..2000.0], 1..12);
    (rates, 0.01f64..3.0)
        .prop_filter_map("all zero", |(mbps, dt)| BandwidthSeries::steps("s", "n", dt, &mbps).ok())
}

proptest! {
    #[test]
    fn time_and_bytes_are_inverse(series in series(), start in 0.0f64..20.0, bytes in 1u64..1_000_000_000) {
        let start = Duration::from_secs_f64(start);
        let end = series.time_after(start, bytes);
        let through = series.bytes_between(start, end) as f64;
        prop_assert!((through - bytes as f64).abs() <= 2.0 + bytes as f64 * 1e-6, "{through} of {bytes}");
    }

    #[test]
    fn shifting_and_scaling_do_what_they_say(series in series(), offset in 0.0f64..10.0, t in 0.0f64..10.0) {
        let (at, shifted) = (Duration::from_secs_f64(t + offset), series.clone().starting_at(offset));
        let end = Duration::from_secs_f64(t + offset + 1.7);
        let expected = series.bytes_between(at, end) as f64;
        let found = shifted.bytes_between(Duration::from_secs_f64(t), Duration::from_secs_f64(t + 1.7)) as f64;
        prop_assert!((expected - found).abs() <= 8.0 + expected * 1e-6, "{expected} {found}");
        let mean = series.scaled_to_mean(123.0).mean_mbps();
        prop_assert!((mean - 123.0).abs() < 1e-6);
    }

    /// Over any stretch a busy link carries what its series allows, up to the bucket and one piece.
    #[test]
    fn a_busy_link_has_the_bandwidth_of_its_series(mbps in 1.0f64..1000.0, late in 0u64..1500) {
        let mut shaper = Shaper::new(BandwidthSeries::constant(mbps).unwrap());
        let (mut now, mut sent) = (Duration::ZERO, 0u64);
        while sent < 200 * 16_384 {
            now = now.max(shaper.reserve(now, 16_384)) + Duration::from_micros(late); // woken up late each time
            sent += 16_384;
        }
        let ideal = sent as f64 * 8.0 / (mbps * 1e6);
        let slack = late as f64 / 1e6 + 0.004;
        // Late wake-ups cost nothing as long as a piece takes longer on the wire, or the bucket covers them.
        let piece = 16_384.0 * 8.0 / (mbps * 1e6);
        if piece > late as f64 / 1e6 {
            prop_assert!(now.as_secs_f64() <= ideal + slack + 1e-6);
        }
        prop_assert!(now.as_secs_f64() >= ideal - 0.004);
    }

    #[test]
    fn series_survive_their_file_format(series in series()) {
        let again = BandwidthSeries::parse_jsonl(&series.to_jsonl()).unwrap();
        let (a, b) = (series.mean_mbps(), again[0].mean_mbps());
        prop_assert!((a / b - 1.0).abs() < 1e-9);
        prop_assert_eq!(again[0].name(), "n");
    }

    #[test]
    fn no_text_panics_the_reader(text in "\\PC*") {
        let _ = BandwidthSeries::parse_jsonl(&text);
    }
}

#[test]
fn bad_lines_are_named_by_number() {
    let good = r#"{"set":"a","name":"b","unit":"Mbps","dt":1,"bw":[1,2]}"#;
    let bad = [
        "nonsense",
        r#"{"unit":"Mbps","dt":1,"bw":[]}"#,
        r#"{"unit":"furlongs","dt":1,"bw":[1]}"#,
        r#"{"unit":"Mbps","dt":1,"bw":[-1]}"#,
        r#"{"unit":"Mbps","dt":0,"bw":[1]}"#,
        r#"{"unit":"Mbps","t":[0,2,1],"bw":[1,1,1]}"#,
        r#"{"unit":"Mbps","t":[0],"bw":[1,1]}"#,
        r#"{"unit":"Mbps","bw":[1]}"#,
        r#"{"unit":"Mbps","dt":1,"bw":[0,0]}"#,
    ];
    for line in bad {
        let text = format!("{good}\n\n{line}\n{good}\n");
        match BandwidthSeries::parse_jsonl(&text) {
            Err(SeriesError::Lines(lines)) => {
                assert_eq!(lines.iter().map(|l| l.line).collect::<Vec<_>>(), [3])
            }
            other => panic!("{line}: {other:?}"),
        }
    }
    assert!(matches!(BandwidthSeries::parse_jsonl("\n"), Err(SeriesError::Empty)));
    assert!(BandwidthSeries::read_file(Path::new("/no/such/file")).is_err());
}

#[test]
fn the_shipped_series_are_there() {
    let drop = BandwidthSeries::builtin("drop-recover").unwrap();
    assert!(drop.mbps_at(Duration::ZERO) > 900.0);
    assert!(BandwidthSeries::builtin("jitter").is_some());
    assert!(BandwidthSeries::builtin("nonesuch").is_none());
}

#[tokio::test]
async fn the_proxy_carries_bytes_intact_and_never_faster_than_its_series() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    let echo = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut read, mut write) = stream.split();
        tokio::io::copy(&mut read, &mut write).await.unwrap();
    });
    let mut options = LinkOptions::down(BandwidthSeries::constant(80.0).unwrap()); // 10 MB/s
    options.delay = Duration::from_millis(10);
    let link = ShapedLink::start(upstream, options).await.unwrap();
    let payload: Vec<u8> = (0..1_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    let started = std::time::Instant::now();
    let (mut read, mut write) = TcpStream::connect(link.address()).await.unwrap().into_split();
    let sent = payload.clone();
    let send = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    read.read_to_end(&mut received).await.unwrap();
    // A lower bound only: the link is the only thing that may not be fast.
    assert!(started.elapsed() >= Duration::from_millis(100 + 20 - 5));
    assert_eq!(received, payload);
    assert_eq!(link.bytes_down(), payload.len() as u64);
    send.await.unwrap();
    echo.await.unwrap();
}

/// The committed file is what the example writes.
#[test]
fn the_shipped_series_have_their_documented_shape() {
    let text = include_str!("../../assets/series.jsonl");
    let series = BandwidthSeries::parse_jsonl(text).unwrap();
    let mut sets: Vec<_> = series.iter().map(|s| s.set()).collect();
    sets.dedup();
    assert_eq!(sets, ["kvasir", "wireless", "wan", "cloud"]);
    for one in &series {
        let at = one.mbps_at(Duration::from_millis(1777));
        assert!((1.0..=1500.0).contains(&at), "{} {at}", one.name());
        assert!(one.period() >= 3.0 && one.mean_mbps() > 20.0, "{}", one.name());
    }
    assert_eq!(BandwidthSeries::builtin("drop-recover").unwrap().mbps_at(Duration::from_secs(1)), 100.0);
}
