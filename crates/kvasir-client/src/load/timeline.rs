//! A condensed timeline of a load, for the service's console.

use std::time::Duration;

use kvasir_api::{BandwidthSample, LOAD_TIMELINE_MAX, LoadTimeline, LoadedChunk};

use super::{ChunkReport, LoadReport};
use crate::fetcher::ByteRate;

/// The timeline of the load in `report`.
pub(super) fn timeline(report: &LoadReport) -> LoadTimeline {
    LoadTimeline { chunks: joined(&report.chunks, chunk), bandwidth: joined(&report.samples, bandwidth) }
}

/// Joins neighbouring items until there are no more parts than a timeline may have.
fn joined<T, R>(items: &[T], part: impl Fn(&[T]) -> R) -> Vec<R> {
    items.chunks(items.len().div_ceil(LOAD_TIMELINE_MAX).max(1)).map(part).collect()
}

fn ms(time: Duration) -> u64 {
    time.as_millis() as u64
}

fn chunk(neighbours: &[ChunkReport]) -> LoadedChunk {
    let times = |time: fn(&ChunkReport) -> Option<Duration>| neighbours.iter().filter_map(time).map(ms);
    let levels: Option<Vec<_>> = neighbours.iter().map(|chunk| chunk.level).collect();
    LoadedChunk {
        first_token: neighbours.first().map_or(0, |chunk| chunk.tokens.start),
        tokens: neighbours.iter().map(|chunk| chunk.tokens.len()).sum(),
        level: levels.and_then(|levels| levels.into_iter().min()),
        bytes: neighbours.iter().map(|chunk| chunk.bytes).sum(),
        started_ms: times(|chunk| chunk.started).min(),
        fetched_ms: times(|chunk| chunk.fetched).max(),
        ready_ms: times(|chunk| chunk.resolved).max(),
    }
}

fn bandwidth(neighbours: &[(Duration, ByteRate)]) -> BandwidthSample {
    let rates = neighbours.iter().map(|(_, rate)| rate.bytes_per_second());
    BandwidthSample {
        at_ms: neighbours.last().map_or(0, |(at, _)| ms(*at)),
        bytes_per_second: (rates.sum::<f64>() / neighbours.len().max(1) as f64) as u64,
    }
}

#[cfg(test)]
mod tests {
    use kvasir_types::{Level, TokenRange};

    use super::*;

    fn report(index: u64, level: Option<u8>) -> ChunkReport {
        let at = |ms: u64| Some(Duration::from_millis(10 * index + ms));
        ChunkReport {
            tokens: TokenRange { start: 256 * index, end: 256 * (index + 1) },
            level: level.map(Level),
            loss: 0.0,
            bytes: 100,
            started: at(0),
            fetched: at(5),
            resolved: at(7),
            requests: 1,
        }
    }

    #[test]
    fn few_chunks_are_told_one_by_one() {
        let told = joined(&[report(0, Some(2)), report(1, None)], chunk);
        let first = LoadedChunk {
            first_token: 0,
            tokens: 256,
            level: Some(Level(2)),
            bytes: 100,
            started_ms: Some(0),
            fetched_ms: Some(5),
            ready_ms: Some(7),
        };
        let second = LoadedChunk {
            first_token: 256,
            level: None,
            started_ms: Some(10),
            fetched_ms: Some(15),
            ready_ms: Some(17),
            ..first
        };
        assert_eq!(told, [first, second]);
    }

    #[test]
    fn neighbours_of_a_long_load_are_joined() {
        for count in [LOAD_TIMELINE_MAX, LOAD_TIMELINE_MAX + 1, 4_096] {
            let chunks: Vec<_> =
                (0..count as u64).map(|index| report(index, Some((index % 3) as u8))).collect();
            let told = joined(&chunks, chunk);
            assert!(told.len() <= LOAD_TIMELINE_MAX, "{}", told.len());
            assert_eq!(told.iter().map(|part| part.tokens).sum::<u64>(), 256 * count as u64);
            assert_eq!(told.iter().map(|part| part.bytes).sum::<u64>(), 100 * count as u64);
            assert!(told.windows(2).all(|pair| pair[0].first_token + pair[0].tokens == pair[1].first_token));
            assert_eq!(told.last().and_then(|part| part.ready_ms), Some(10 * (count as u64 - 1) + 7));
        }
        let pair = chunk(&[report(0, Some(2)), report(1, Some(1))]);
        assert_eq!((pair.level, pair.started_ms, pair.fetched_ms), (Some(Level(1)), Some(0), Some(15)));
        assert_eq!(chunk(&[report(0, Some(2)), report(1, None)]).level, None, "the engine computes a part");
    }

    #[test]
    fn samples_are_told_by_their_mean() {
        let rate = |mbps: f64| ByteRate::new(mbps * 1e6 / 8.0).expect("above zero");
        let samples: Vec<_> =
            (0..128).map(|n| (Duration::from_millis(n), rate(if n % 2 == 0 { 8.0 } else { 24.0 }))).collect();
        let told = joined(&samples, bandwidth);
        assert_eq!(told.len(), 64);
        assert_eq!(told[3], BandwidthSample { at_ms: 7, bytes_per_second: 2_000_000 });
    }
}
