//! Which requests are served together (CacheGen, section 5.3).

use std::time::Duration;

/// Forms batches: requests that arrive within a window `T` of the first one, at most `B` (the number that the
/// GPU server runs at once). Sans-IO: the caller supplies the times.
///
/// ```
/// use std::time::Duration;
/// use kvasir_lab::streaming::Batcher;
///
/// let mut batcher = Batcher::new(Duration::from_millis(20), 2);
/// assert!(batcher.arrive("a", 7, Duration::from_millis(0)).is_none());
/// // The second fills the batch: chunks 0 to 2 are in both, the rest in one.
/// let batch = batcher.arrive("b", 3, Duration::from_millis(5)).expect("full");
/// assert_eq!((batch.requests, batch.sharing), (vec!["a", "b"], vec![2, 2, 2, 1, 1, 1, 1]));
/// ```
#[derive(Debug, Clone)]
pub struct Batcher<R> {
    window: Duration,
    requests_max: usize,
    waiting: Vec<(R, usize)>,
    closes: Duration,
}

/// Requests that start together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch<R> {
    /// The requests, in order of arrival.
    pub requests: Vec<R>,
    /// `sharing[c]` is N_c: how many of them contain chunk index `c`.
    pub sharing: Vec<u32>,
}

impl<R> Batcher<R> {
    /// Batches of at most `requests_max` (at least 1) that arrive within `window` of their first.
    pub fn new(window: Duration, requests_max: usize) -> Self {
        Self { window, requests_max: requests_max.max(1), waiting: Vec::new(), closes: Duration::ZERO }
    }

    /// A request of `chunks` chunks arrives at `now`. Returns the batch that it completes. Call [`Self::due`]
    /// first: a due batch starts without this request.
    pub fn arrive(&mut self, request: R, chunks: usize, now: Duration) -> Option<Batch<R>> {
        if self.waiting.is_empty() {
            self.closes = now + self.window;
        }
        self.waiting.push((request, chunks));
        (self.waiting.len() >= self.requests_max).then(|| self.take()).flatten()
    }

    /// The batch whose window has passed at `now`.
    pub fn due(&mut self, now: Duration) -> Option<Batch<R>> {
        if now >= self.closes { self.take() } else { None }
    }

    /// When [`Self::due`] next has a batch; `None` if no request waits.
    pub fn closes_at(&self) -> Option<Duration> {
        (!self.waiting.is_empty()).then_some(self.closes)
    }

    fn take(&mut self) -> Option<Batch<R>> {
        let longest = self.waiting.iter().map(|(_, chunks)| *chunks).max()?;
        let contain = |c: usize| self.waiting.iter().filter(|(_, chunks)| *chunks > c).count() as u32;
        let sharing = (0..longest).map(contain).collect();
        Some(Batch { requests: self.waiting.drain(..).map(|(request, _)| request).collect(), sharing })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every request is in exactly one batch, in order of arrival; none waits longer than the window; no
        /// batch is larger than allowed.
        #[test]
        fn batches_keep_their_promises(
            gaps in prop::collection::vec((0u64..40, 1usize..9), 1..60), window in 0u64..50, max in 1usize..9,
        ) {
            let mut batcher = Batcher::new(Duration::from_millis(window), max);
            let (mut now, mut served, mut arrivals) = (0, Vec::new(), Vec::new());
            let mut take = |batch: Option<Batch<usize>>, at: Duration, arrivals: &[Duration]| {
                for request in batch.iter().flat_map(|b| &b.requests) {
                    assert!(at - arrivals[*request] <= Duration::from_millis(window));
                    served.push(*request);
                }
                assert!(batch.is_none_or(|b| !b.requests.is_empty() && b.requests.len() <= max));
            };
            for (i, &(gap, chunks)) in gaps.iter().enumerate() {
                now += gap;
                let at = Duration::from_millis(now);
                if let Some(closes) = batcher.closes_at().filter(|&closes| closes <= at) {
                    take(batcher.due(closes), closes, &arrivals);
                }
                arrivals.push(at);
                take(batcher.arrive(i, chunks, at), at, &arrivals);
            }
            if let Some(closes) = batcher.closes_at() {
                take(batcher.due(closes), closes, &arrivals);
            }
            prop_assert!(batcher.closes_at().is_none());
            prop_assert_eq!(served, (0..gaps.len()).collect::<Vec<_>>());
        }
    }
}
