//! Rate limit on refused credentials by client address.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::limits;

const WINDOW: Duration = Duration::from_secs(60);

/// Counts refused credentials by address, in windows of a minute. Rejects an address that has exhausted its
/// failures.
#[derive(Debug)]
pub(super) struct FailureLimiter {
    failures_max: u32,
    peers: Mutex<HashMap<IpAddr, FailureWindow>>,
}

#[derive(Debug, Clone, Copy)]
struct FailureWindow {
    start: Instant,
    failures: u32,
}

impl FailureLimiter {
    pub(super) fn new(failures_per_minute: u32) -> Self {
        Self { failures_max: failures_per_minute, peers: Mutex::default() }
    }

    /// Whether `peer` has exhausted its failures for this minute.
    pub(super) fn is_limited(&self, peer: IpAddr) -> bool {
        let peers = self.peers.lock();
        let current = peers.get(&network(peer)).filter(|window| window.start.elapsed() < WINDOW);
        current.is_some_and(|window| window.failures >= self.failures_max)
    }

    /// Counts a refused credential of `peer`.
    pub(super) fn record_failure(&self, peer: IpAddr) {
        let mut peers = self.peers.lock();
        if peers.len() >= limits::FAILURE_LIMITER_PEERS_MAX {
            peers.retain(|_, window| window.start.elapsed() < WINDOW);
        }
        // More addresses than this are a flood that counting by address cannot stop.
        if peers.len() >= limits::FAILURE_LIMITER_PEERS_MAX {
            return;
        }
        let window =
            peers.entry(network(peer)).or_insert(FailureWindow { start: Instant::now(), failures: 0 });
        if window.start.elapsed() >= WINDOW {
            *window = FailureWindow { start: Instant::now(), failures: 0 };
        }
        window.failures = window.failures.saturating_add(1);
    }
}

/// The network of one subscriber, who has 2^64 IPv6 addresses.
pub(crate) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => (u128::from(address) >> 64 << 64).to_be_bytes().into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_limit_one_network_and_no_other() {
        let limiter = FailureLimiter::new(3);
        let (a, b): (IpAddr, IpAddr) = ("2001:db8::1".parse().expect("ip"), "10.0.0.1".parse().expect("ip"));
        for _ in 0..3 {
            assert!(!limiter.is_limited(a));
            limiter.record_failure(a);
        }
        assert!(limiter.is_limited(a) && limiter.is_limited("2001:db8::2".parse().expect("ip")));
        assert!(!limiter.is_limited(b) && !limiter.is_limited("2001:db8:0:1::1".parse().expect("ip")));
    }

    #[test]
    fn many_addresses_cost_bounded_memory() {
        let limiter = FailureLimiter::new(1);
        for n in 0..limits::FAILURE_LIMITER_PEERS_MAX as u32 + 100 {
            limiter.record_failure(IpAddr::from(n.to_be_bytes()));
        }
        assert_eq!(limiter.peers.lock().len(), limits::FAILURE_LIMITER_PEERS_MAX);
    }
}
