//! Limit on the number of connections per client address.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

/// Counts connections by address. Has at most as many entries as there are connections.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimiter {
    /// 0: no limit.
    max: usize,
    connections: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// Permission for one connection of an address; released when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limiter: ConnectionLimiter,
    address: IpAddr,
}

impl ConnectionLimiter {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, connections: Arc::default() }
    }

    /// A permit for one more connection of `address`, if it is below the limit.
    pub(crate) fn try_acquire(&self, address: IpAddr) -> Option<ConnectionPermit> {
        let mut connections = self.connections.lock();
        let count = connections.entry(address).or_default();
        if self.max > 0 && *count >= self.max {
            return None;
        }
        *count += 1;
        Some(ConnectionPermit { limiter: self.clone(), address })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut connections = self.limiter.connections.lock();
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
    fn one_address_does_not_take_another_s_permits() {
        let limiter = ConnectionLimiter::new(2);
        let (a, b): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let first = limiter.try_acquire(a).expect("the first");
        let second = limiter.try_acquire(a).expect("the second");
        assert!(limiter.try_acquire(a).is_none() && limiter.try_acquire(b).is_some());
        drop(first);
        assert!(limiter.try_acquire(a).is_some());
        drop(second);
        assert!(limiter.connections.lock().is_empty());
        let unlimited = ConnectionLimiter::new(0);
        let many: Vec<_> = (0..100).map(|_| unlimited.try_acquire(a)).collect();
        assert!(many.iter().all(Option::is_some));
    }
}
