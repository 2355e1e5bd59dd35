//! How many connections each address has.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

/// Addresses with connections; at most as many as there are connections.
#[derive(Debug, Clone)]
pub(crate) struct Peers {
    /// 0: no limit.
    max: usize,
    connections: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A connection's place among those of its address, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    peers: Peers,
    address: IpAddr,
}

impl Peers {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, connections: Arc::default() }
    }

    /// A place for one more connection of `address`, if it may have one.
    pub(crate) fn seat(&self, address: IpAddr) -> Option<Seat> {
        let mut connections = self.connections.lock();
        let count = connections.entry(address).or_default();
        if self.max > 0 && *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Seat { peers: self.clone(), address })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut connections = self.peers.connections.lock();
        if let Some(count) = connections.get_mut(&self.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                connections.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_take_another_s_places() {
        let peers = Peers::new(2);
        let (a, b): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let first = peers.seat(a).expect("the first");
        let second = peers.seat(a).expect("the second");
        assert!(peers.seat(a).is_none() && peers.seat(b).is_some());
        drop(first);
        assert!(peers.seat(a).is_some());
        drop(second);
        assert!(peers.connections.lock().is_empty());
        let open = Peers::new(0);
        let many: Vec<_> = (0..100).map(|_| open.seat(a)).collect();
        assert!(many.iter().all(Option::is_some));
    }
}
