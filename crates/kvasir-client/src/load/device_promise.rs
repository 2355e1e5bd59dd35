//! Whether a device is as fast as it was before. One that is much slower, and slower than the CPU, is given nothing more of a
//! load that would be late.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    limits::{DECODE_CONCURRENCY, DEVICE_RUNS_MIN, DEVICE_SLOW_FACTOR, DEVICE_SLOW_MIN, DEVICE_SLOW_RUNS},
    pages::DeviceTimes,
};

/// Share of the past that remains after each new run, so that the pace follows what else the device does.
const FORGETTING: f64 = 0.95;

/// What a device did with units that it was given at once.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DeviceRun {
    pub(super) rank: usize,
    /// Elements of the cache that it wrote; 0 unless it decoded all that it was given.
    pub(super) elements: u64,
    pub(super) began: Instant,
    /// From its turn on.
    pub(super) took: Duration,
    /// Whether that broke the load's promise.
    pub(super) is_slow: bool,
    pub(super) times: DeviceTimes,
}

/// How fast devices decode, by the runs of all loads of a client.
#[derive(Debug, Clone, Default)]
pub(super) struct DevicePace {
    runs: u32,
    elements: f64,
    seconds: f64,
}

impl DevicePace {
    /// Learns from a run. Slow ones teach nothing: after a few of them they would be what is expected.
    pub(super) fn observe(&mut self, run: &DeviceRun) {
        if run.elements > 0 && !run.is_slow {
            self.runs = self.runs.saturating_add(1);
            self.elements = FORGETTING * self.elements + run.elements as f64;
            self.seconds = FORGETTING * self.seconds + run.took.as_secs_f64();
        }
    }

    /// Seconds for an element; `None` until there were enough runs.
    pub(super) fn seconds_per_element(&self) -> Option<f64> {
        (self.runs >= DEVICE_RUNS_MIN).then(|| self.seconds / self.elements)
    }
}

/// What a load counts on.
#[derive(Debug, Clone, Copy)]
pub(super) struct DevicePromise {
    /// Seconds of a device for an element.
    pub(super) device: f64,
    /// Seconds of a thread that decodes it itself, as far as that is measured or assumed.
    pub(super) cpu: f64,
    /// When everything has to be in place.
    pub(super) due: Instant,
}

impl DevicePromise {
    /// Whether a device that `took` so long was slower than promised, and than the CPU.
    pub(super) fn is_broken_by(&self, elements: u64, took: Duration) -> bool {
        let longest = elements as f64 * (DEVICE_SLOW_FACTOR * self.device).max(self.cpu);
        let is_promised = elements > 0 && self.device > 0.0;
        is_promised && took >= DEVICE_SLOW_MIN && took.as_secs_f64() > longest
    }
}

/// The devices of a load that are given nothing more of it.
#[derive(Debug)]
pub(super) struct SlowDevices {
    /// For each table.
    ranks: Vec<SlowRuns>,
    is_told: bool,
}

/// The slow runs of a device in a row. Those that were under way together count once: one stall makes all of them slow.
#[derive(Debug, Clone, Default)]
struct SlowRuns {
    count: u32,
    /// When the last of them was counted.
    counted_at: Option<Instant>,
    /// Why it is given nothing more.
    reason: Option<String>,
}

impl SlowDevices {
    pub(super) fn new(tables: usize) -> Self {
        Self { ranks: vec![SlowRuns::default(); tables], is_told: false }
    }

    /// Counts a run, and gives its device nothing more if it was too often slow, and what is `waiting`, elements of a rank,
    /// would be late at that pace.
    pub(super) fn judge(
        &mut self,
        promise: &DevicePromise,
        run: &DeviceRun,
        waiting: impl Iterator<Item = (usize, u64)>,
    ) {
        let slow = &mut self.ranks[run.rank];
        if !run.is_slow {
            slow.count = 0;
        } else if slow.counted_at.is_none_or(|at| run.began >= at) {
            slow.count += 1;
            slow.counted_at = Some(Instant::now());
        }
        if !run.is_slow || slow.count < DEVICE_SLOW_RUNS || slow.reason.is_some() {
            return;
        }
        let (took, elements) = (run.took, run.elements as f64);
        let seconds = |(rank, waiting): (usize, u64)| {
            let pace = if rank == run.rank { took.as_secs_f64() / elements } else { promise.device };
            waiting as f64 * pace
        };
        let rest = waiting.map(seconds).sum::<f64>() / DECODE_CONCURRENCY as f64;
        if rest > promise.due.saturating_duration_since(Instant::now()).as_secs_f64() {
            let promised = Duration::try_from_secs_f64(elements * promise.device).unwrap_or_default();
            let reason =
                format!("it took {took:?} for what it should take {promised:?}, too long for this load");
            slow.reason = Some(reason);
        }
    }

    /// Why a rank's device is not given what it would be; `None` if it is. The first such unit of a load is warned of.
    pub(super) fn reason(&mut self, rank: usize) -> Option<String> {
        let reason = self.ranks[rank].reason.clone()?;
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(rank, %reason, "a device is slow: the CPU decodes the rest for it");
        }
        Some(reason)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time;

    use super::*;

    const ELEMENTS: u64 = 1_000;

    /// Seconds of the device and of the CPU for [`ELEMENTS`]; everything is late.
    fn promise(device: f64, cpu: f64) -> DevicePromise {
        let [device, cpu] = [device, cpu].map(|seconds| seconds / ELEMENTS as f64);
        DevicePromise { device, cpu, due: Instant::now() }
    }

    fn run(rank: usize, is_slow: bool) -> DeviceRun {
        let (began, took) = (Instant::now(), Duration::from_secs(1));
        DeviceRun { rank, elements: ELEMENTS, began, took, is_slow, times: DeviceTimes::default() }
    }

    #[test]
    fn a_promise_is_broken_above_four_times_its_time_and_the_time_of_the_cpu() {
        for (device, cpu, took_ms, is_broken) in [
            (0.1, 0.1, 390, false),
            (0.1, 0.1, 410, true),
            (0.1, 0.0, 410, true),
            (0.1, 0.5, 490, false),
            (0.1, 0.5, 510, true),
            // Nothing is promised.
            (0.0, 0.1, 3_600_000, false),
            // That short a time says nothing.
            (0.001, 0.001, 19, false),
            (0.001, 0.001, 20, true),
        ] {
            let promise = promise(device, cpu);
            let took = Duration::from_millis(took_ms);
            assert_eq!(promise.is_broken_by(ELEMENTS, took), is_broken, "{device}, {cpu}, {took_ms} ms");
            assert!(!promise.is_broken_by(0, took), "nothing, or not all, was decoded");
        }
    }

    #[test]
    fn a_promise_takes_eight_runs_and_no_slow_one() {
        let mut pace = DevicePace::default();
        for runs in 0..DEVICE_RUNS_MIN {
            assert_eq!(pace.seconds_per_element(), None, "{runs} runs");
            pace.observe(&run(0, true));
            pace.observe(&DeviceRun { elements: 0, ..run(0, false) });
            pace.observe(&run(0, false));
        }
        let found = |pace: &DevicePace| pace.seconds_per_element().map(|seconds| seconds * ELEMENTS as f64);
        let is_near = |pace: &DevicePace, expected: f64| {
            found(pace).is_some_and(|seconds| (seconds / expected - 1.0).abs() < 0.02)
        };
        assert!(is_near(&pace, 1.0), "{pace:?}");
        // It follows a device that is used by others, too, without being slow.
        (0..100).for_each(|_| pace.observe(&DeviceRun { took: Duration::from_secs(3), ..run(0, false) }));
        assert!(is_near(&pace, 3.0), "{pace:?}");
    }

    #[test]
    fn two_slow_runs_of_a_rank_in_a_row_decide_for_that_rank() {
        let after = |runs: &[(usize, bool)]| {
            let mut devices = SlowDevices::new(2);
            for (rank, is_slow) in runs {
                let waiting = [(0, ELEMENTS), (1, ELEMENTS)];
                devices.judge(&promise(0.1, 0.1), &run(*rank, *is_slow), waiting.into_iter());
            }
            [0, 1].map(|rank| devices.reason(rank).is_some())
        };
        assert_eq!(after(&[(0, true)]), [false, false]);
        assert_eq!(after(&[(0, true), (1, true)]), [false, false]);
        assert_eq!(after(&[(0, true), (0, false), (0, true)]), [false, false]);
        assert_eq!(after(&[(0, true), (1, false), (0, true)]), [true, false]);
        assert_eq!(after(&[(0, true), (0, true), (0, false)]), [true, false], "for the whole load");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_runs_that_were_under_way_together_count_once() {
        let mut devices = SlowDevices::new(1);
        let mut judge = |run: &DeviceRun| {
            devices.judge(&promise(0.1, 0.1), run, [(0, ELEMENTS)].into_iter());
            devices.reason(0).is_some()
        };
        let together = [run(0, true), run(0, true)];
        time::advance(Duration::from_secs(1)).await;
        let next = run(0, true);
        assert_eq!(together.each_ref().map(&mut judge), [false, false]);
        assert!(judge(&next), "it began when the first was counted");
    }

    #[test]
    fn a_slow_device_keeps_what_is_in_time() {
        let is_left = |seconds: f64, waiting: &[(usize, u64)]| {
            let due = Instant::now() + Duration::from_secs_f64(seconds);
            let (promise, mut devices) = (DevicePromise { due, ..promise(0.1, 0.1) }, SlowDevices::new(2));
            for _ in 0..2 {
                devices.judge(&promise, &run(0, true), waiting.iter().copied());
            }
            devices.reason(0).is_some()
        };
        // A thousand runs like this one take two threads 500 s; of the other rank, as promised, 50 s.
        assert!(is_left(400.0, &[(0, 1_000 * ELEMENTS)]));
        assert!(!is_left(600.0, &[(0, 1_000 * ELEMENTS)]));
        assert!(is_left(520.0, &[(0, 1_000 * ELEMENTS), (1, 1_000 * ELEMENTS)]));
        assert!(!is_left(400.0, &[(1, 1_000 * ELEMENTS)]));
        assert!(!is_left(0.0, &[]), "nothing is waiting");
    }
}
