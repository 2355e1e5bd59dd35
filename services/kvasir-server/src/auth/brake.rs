//! Slows who guesses credentials.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::limits;

const WINDOW: Duration = Duration::from_secs(60);

/// Counts refused credentials by address, in windows of a minute.
#[derive(Debug)]
pub(super) struct Brake {
    failures_max: u32,
    peers: Mutex<HashMap<IpAddr, Window>>,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    start: Instant,
    failures: u32,
}

impl Brake {
    pub(super) fn new(failures_per_minute: u32) -> Self {
        Self { failures_max: failures_per_minute, peers: Mutex::default() }
    }

    /// Whether `peer` has had its failures for this minute.
    pub(super) fn is_on(&self, peer: IpAddr) -> bool {
        let peers = self.peers.lock();
        let current = peers.get(&network(peer)).filter(|window| window.start.elapsed() < WINDOW);
        current.is_some_and(|window| window.failures >= self.failures_max)
    }

    pub(super) fn failed(&self, peer: IpAddr) {
        let mut peers = self.peers.lock();
        if peers.len() >= limits::BRAKED_PEERS_MAX {
            peers.retain(|_, window| window.start.elapsed() < WINDOW);
        }
        // More guessing addresses than that are a flood that counting by address does not stop.
        if peers.len() >= limits::BRAKED_PEERS_MAX {
            return;
        }
        let window = peers.entry(network(peer)).or_insert(Window { start: Instant::now(), failures: 0 });
        if window.start.elapsed() >= WINDOW {
            *window = Window { start: Instant::now(), failures: 0 };
        }
        window.failures = window.failures.saturating_add(1);
    }
}

/// One subscriber has 2^64 IPv6 addresses.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => (u128::from(address) >> 64 << 64).to_be_bytes().into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_brake_one_network_and_no_other() {
        let brake = Brake::new(3);
        let (a, b): (IpAddr, IpAddr) = ("2001:db8::1".parse().expect("ip"), "10.0.0.1".parse().expect("ip"));
        for _ in 0..3 {
            assert!(!brake.is_on(a));
            brake.failed(a);
        }
        assert!(brake.is_on(a) && brake.is_on("2001:db8::2".parse().expect("ip")));
        assert!(!brake.is_on(b) && !brake.is_on("2001:db8:0:1::1".parse().expect("ip")));
    }

    #[test]
    fn many_addresses_cost_bounded_memory() {
        let brake = Brake::new(1);
        for n in 0..limits::BRAKED_PEERS_MAX as u32 + 100 {
            brake.failed(IpAddr::from(n.to_be_bytes()));
        }
        assert_eq!(brake.peers.lock().len(), limits::BRAKED_PEERS_MAX);
    }
}
