//! The circuit breaker: when a store fails every request, requests are rejected for a while, then one probe
//! for each pause is allowed until the store responds again. Callers fail at once instead of waiting for a
//! deadline.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits;

/// The requests that a breaker admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BreakerState {
    /// All requests; `faults` consecutive ones have failed.
    Closed { faults: u32 },
    /// None before `until`, then a probe. Others may be in flight: one that hangs, as over a connection that is silently
    /// dead, must not delay the next one for longer than a pause.
    Open { until: Instant, pause: Duration },
}

/// A change that others may want to know about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BreakerChange {
    Opened,
    Closed,
}

/// A breaker; shared by all store requests of the same kind.
#[derive(Debug)]
pub(crate) struct Breaker(Mutex<BreakerState>);

impl Breaker {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(BreakerState::Closed { faults: 0 })))
    }

    /// Admits a request, or returns how long to wait.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<BreakerPermit, Duration> {
        let mut state = self.0.lock();
        let mut probes = false;
        if let BreakerState::Open { until, pause } = *state {
            let now = Instant::now();
            if now < until {
                return Err(until - now);
            }
            Self::open(&mut state, pause);
            probes = true;
        }
        Ok(BreakerPermit { breaker: Arc::clone(self), probes, settled: false })
    }

    fn open(state: &mut BreakerState, pause: Duration) {
        *state = BreakerState::Open { until: Instant::now() + pause, pause };
    }
}

/// An admitted request; it reports its outcome.
#[derive(Debug)]
pub(crate) struct BreakerPermit {
    breaker: Arc<Breaker>,
    probes: bool,
    settled: bool,
}

impl BreakerPermit {
    /// The store responded, or did not.
    pub(crate) fn settle(mut self, answered: bool) -> Option<BreakerChange> {
        self.settled = true;
        let mut state = self.breaker.0.lock();
        match (*state, answered) {
            (BreakerState::Closed { .. }, true) => {
                *state = BreakerState::Closed { faults: 0 };
                None
            }
            (BreakerState::Closed { faults }, false) if faults + 1 < limits::BREAKER_FAULTS => {
                *state = BreakerState::Closed { faults: faults + 1 };
                None
            }
            (BreakerState::Closed { .. }, false) => {
                Breaker::open(&mut state, limits::BREAKER_PAUSE_MIN);
                Some(BreakerChange::Opened)
            }
            // A request admitted before it opened brings no news, unless the store responded.
            (BreakerState::Open { .. }, true) => {
                *state = BreakerState::Closed { faults: 0 };
                Some(BreakerChange::Closed)
            }
            (BreakerState::Open { pause, .. }, false) if self.probes => {
                Breaker::open(&mut state, (pause * 2).min(limits::BREAKER_PAUSE_MAX));
                None
            }
            (BreakerState::Open { .. }, false) => None,
        }
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if self.probes && !self.settled {
            // Its caller disconnected. The next request probes.
            if let BreakerState::Open { until, .. } = &mut *self.breaker.0.lock() {
                *until = Instant::now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> Arc<Breaker> {
        let breaker = Breaker::new();
        for n in 1..=limits::BREAKER_FAULTS {
            let change = breaker.admit().expect("closed").settle(false);
            assert_eq!(change, (n == limits::BREAKER_FAULTS).then_some(BreakerChange::Opened));
        }
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_faults_in_a_row_and_closes_with_the_first_answer() {
        let breaker = Breaker::new();
        for n in 0..10 * limits::BREAKER_FAULTS {
            let answered = n % limits::BREAKER_FAULTS == 0;
            assert_eq!(breaker.admit().expect("never a whole row").settle(answered), None);
        }
        let breaker = opened();
        assert!(breaker.admit().is_err());
        tokio::time::advance(limits::BREAKER_PAUSE_MIN).await;
        let probe = breaker.admit().expect("a probe");
        assert!(breaker.admit().is_err(), "one for each pause");
        assert_eq!(probe.settle(true), Some(BreakerChange::Closed));
        assert!(breaker.admit().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_a_limit_and_a_lost_probe_blocks_nobody() {
        let breaker = opened();
        let mut pause = limits::BREAKER_PAUSE_MIN;
        for _ in 0..12 {
            tokio::time::advance(pause).await;
            assert_eq!(breaker.admit().expect("a probe").settle(false), None);
            pause = (pause * 2).min(limits::BREAKER_PAUSE_MAX);
            assert_eq!(breaker.admit().expect_err("open"), pause);
        }
        tokio::time::advance(limits::BREAKER_PAUSE_MAX).await;
        drop(breaker.admit().expect("a probe"));
        assert!(breaker.admit().is_ok(), "the next one probes at once");
        // Neither does one that hangs, nor one that fails later than the next begins.
        let (breaker, mut hanging) = (opened(), Vec::new());
        for _ in 0..3 {
            tokio::time::advance(limits::BREAKER_PAUSE_MIN).await;
            hanging.push(breaker.admit().expect("a probe"));
        }
        let answered = hanging.pop().expect("one");
        assert_eq!(hanging.pop().expect("one").settle(false), None);
        assert_eq!(answered.settle(true), Some(BreakerChange::Closed));
        assert_eq!(hanging.pop().expect("one").settle(false), None);
        assert!(breaker.admit().is_ok());
        // A response to a request from before it opened closes it as well.
        let breaker = Breaker::new();
        let early = breaker.admit().expect("closed");
        for _ in 0..limits::BREAKER_FAULTS {
            breaker.admit().expect("closed").settle(false);
        }
        assert_eq!(early.settle(true), Some(BreakerChange::Closed));
    }
}
