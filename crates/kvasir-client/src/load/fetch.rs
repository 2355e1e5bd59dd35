//! Reads one request of the core: splits its range into parts and reads several at a time, in order.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use tokio::{sync::mpsc, time::Instant};

use super::arrival::{Arrival, ReadId};
use crate::{
    Error,
    fetcher::{ByteRate, RequestId},
    limits::{PART_BYTES_MAX, PART_BYTES_MIN, PART_TIME, PARTS_AT_ONCE_MAX},
    rest::{ByteSink, ObjectName, Routes, SharedObject, backoff},
};

/// Part size and number of parallel part reads of a range.
///
/// A part is what the link transfers in [`PART_TIME`], so that its own round trip is a small share of that.
/// While one part waits for its first byte, others must keep the link busy (the bandwidth-delay product): one
/// more part than fits into the time to first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartSizing {
    pub(super) part_bytes: u64,
    pub(super) concurrency: usize,
}

impl PartSizing {
    /// For a link of `rate` whose responses begin after `first_byte`.
    pub(super) fn new(rate: Option<ByteRate>, first_byte: Option<Duration>) -> Self {
        let rate = rate.map_or(PART_BYTES_MIN as f64 / PART_TIME.as_secs_f64(), ByteRate::bytes_per_second);
        let part_bytes = ((rate * PART_TIME.as_secs_f64()) as u64).clamp(PART_BYTES_MIN, PART_BYTES_MAX);
        let part_time = part_bytes as f64 / rate;
        let waiting = first_byte.unwrap_or_default().as_secs_f64() / part_time;
        Self { part_bytes, concurrency: (waiting.ceil() as usize).saturating_add(1).min(PARTS_AT_ONCE_MAX) }
    }

    /// Splits ranges into parts, in order. The last part of each may be up to half a part longer, to avoid a
    /// tiny remainder.
    pub(super) fn split(&self, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        for range in ranges {
            let mut start = range.start;
            while start < range.end {
                let left = range.end - start;
                let take = if left < self.part_bytes + self.part_bytes / 2 { left } else { self.part_bytes };
                parts.push(start..start + take);
                start += take;
            }
        }
        parts
    }
}

/// A task that reads one request of the core.
pub(super) struct FetchTask {
    pub(super) routes: Arc<Routes>,
    pub(super) object: ObjectName,
    pub(super) shared: Arc<SharedObject>,
    pub(super) request: RequestId,
    pub(super) parts: Vec<Range<u64>>,
    pub(super) concurrency: usize,
    /// Earlier failed requests of this chunk.
    pub(super) failures: u32,
}

impl FetchTask {
    /// Reads the parts and reports their bytes and the end. A request after a failure waits (full jitter),
    /// takes from the client's retry budget, and uses the service.
    pub(super) async fn run(self, arrivals: mpsc::Sender<Arrival>) {
        let result = self.read(&arrivals).await;
        let end = Arrival::Ended { read: ReadId::Request(self.request), at: Instant::now(), result };
        // If the load was dropped, the receiver is gone; ignore that.
        let _ = arrivals.send(end).await;
    }

    async fn read(&self, arrivals: &mpsc::Sender<Arrival>) -> Result<(), Error> {
        if self.failures > 0 {
            if !self.routes.client().take_retry() {
                return Err(Error::protocol("the retry budget is exhausted"));
            }
            tokio::time::sleep(backoff(self.failures, None).unwrap_or_default()).await;
        }
        let read = |part: Range<u64>| async move {
            let mut sink = ArrivalSink { read: ReadId::Request(self.request), arrivals: arrivals.clone() };
            let through_service = self.failures > 0;
            self.shared.read(&self.routes, &self.object, part, through_service, &mut sink).await
        };
        let reads: Vec<_> = self.parts.iter().cloned().map(read).collect();
        let mut reads = futures::stream::iter(reads).buffer_unordered(self.concurrency.max(1));
        let mut result = Ok(());
        while let Some(part) = reads.next().await {
            match part {
                Ok(()) => {}
                // Requesting the rest is pointless.
                Err(error) if !error.is_retryable() => return Err(error),
                // Keep the other parts running: their bytes need not be read again.
                Err(error) => result = Err(error),
            }
        }
        result
    }
}

/// Passes arriving bytes to the load's task.
pub(super) struct ArrivalSink {
    pub(super) read: ReadId,
    pub(super) arrivals: mpsc::Sender<Arrival>,
}

impl ArrivalSink {
    async fn send(&self, offset: u64, bytes: Bytes, from_link: bool) {
        let at = Instant::now();
        let arrival = Arrival::Bytes { read: self.read, at, offset, bytes, from_link };
        // If the load was dropped, the receiver is gone; ignore that.
        let _ = self.arrivals.send(arrival).await;
    }
}

impl ByteSink for ArrivalSink {
    async fn write(&mut self, offset: u64, bytes: Bytes) {
        self.send(offset, bytes, true).await;
    }

    async fn found(&mut self, offset: u64, bytes: Bytes) {
        self.send(offset, bytes, false).await;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_fill_the_pipe() {
        let sizing = |mbps, ms| PartSizing::new(ByteRate::from_mbps(mbps), Some(Duration::from_millis(ms)));
        assert_eq!(sizing(1000.0, 1), PartSizing { part_bytes: 5_000_000, concurrency: 2 });
        assert_eq!(sizing(1000.0, 100), PartSizing { part_bytes: 5_000_000, concurrency: 4 });
        // Slow link: one part covers many round trips.
        assert_eq!(sizing(1.0, 20), PartSizing { part_bytes: PART_BYTES_MIN, concurrency: 2 });
        assert_eq!(sizing(100_000.0, 500).concurrency, PARTS_AT_ONCE_MAX);
        assert_eq!(sizing(1e300, 500).concurrency, PARTS_AT_ONCE_MAX, "whatever the options say");
        assert_eq!(PartSizing::new(None, None), PartSizing { part_bytes: PART_BYTES_MIN, concurrency: 1 });
    }

    proptest! {
        #[test]
        fn parts_are_the_ranges(part_bytes in 1u64..50, lens in prop::collection::vec((0u64..9, 1u64..300), 0..5)) {
            let mut at = 0;
            let ranges: Vec<Range<u64>> = lens.iter().map(|(gap, len)| { at += gap + len; at - len..at }).collect();
            let parts = PartSizing { part_bytes, concurrency: 1 }.split(&ranges);
            prop_assert!(parts.iter().all(|p| !p.is_empty() && p.end - p.start < part_bytes.max(2) * 2));
            let bytes = |ranges: &[Range<u64>]| ranges.iter().cloned().flatten().collect::<Vec<_>>();
            prop_assert_eq!(bytes(&parts), bytes(&ranges));
        }
    }
}
