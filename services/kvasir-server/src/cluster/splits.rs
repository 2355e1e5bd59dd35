//! The routes that this replica has split, by tenant.

use kvasir_eviction::{Moment, RouteSplits};
use kvasir_types::{Name, RouteKey, SeqHash};
use parking_lot::Mutex;
use tokio::time::Instant;

/// See [`RouteSplits`].
#[derive(Debug)]
pub(super) struct Splits {
    begun: Instant,
    routes: Mutex<RouteSplits<(Name, RouteKey), SeqHash>>,
}

impl Default for Splits {
    fn default() -> Self {
        Self { begun: Instant::now(), routes: Mutex::default() }
    }
}

impl Splits {
    fn now(&self) -> Moment {
        Moment::from_micros(u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Counts a lookup; gives whether its route is split.
    pub(super) fn note(&self, tenant: &Name, route: RouteKey, blocks: &[SeqHash]) -> bool {
        let (now, mut routes) = (self.now(), self.routes.lock());
        let before = routes.made();
        let is_split = routes.note(&(tenant.clone(), route), blocks, now);
        if routes.made() > before {
            tracing::info!(%route, %tenant, "a route is split: too many prompts share its prefix");
        }
        is_split
    }

    /// The routes of a tenant that are split.
    pub(super) fn of_tenant(&self, tenant: &Name) -> Vec<RouteKey> {
        let (now, routes) = (self.now(), self.routes.lock());
        routes.split(now).filter(|(of, _)| of == tenant).map(|(_, route)| *route).collect()
    }

    /// Splits so far.
    pub(super) fn made(&self) -> u64 {
        self.routes.lock().made()
    }
}
