//! The routes that this replica has split, by tenant.

use kvasir_eviction::{Moment, RouteSplits, limits::SPLIT_DEPTH_MAX};
use kvasir_types::{Name, ROUTE_TOKENS, RouteKey, SeqHash};
use parking_lot::Mutex;
use tokio::time::Instant;

/// See [`RouteSplits`].
#[derive(Debug)]
pub(super) struct Splits {
    begun: Instant,
    routes: Mutex<RouteSplits<(Name, RouteKey), SeqHash, RouteKey>>,
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

    /// Counts a lookup; gives the routes that its caller has to take for split, which are none if its own is not.
    pub(super) fn note(&self, tenant: &Name, route: RouteKey, blocks: &[SeqHash]) -> Vec<RouteKey> {
        let longer: Vec<RouteKey> = route.longer(blocks).take(SPLIT_DEPTH_MAX).collect();
        let (now, mut routes) = (self.now(), self.routes.lock());
        let before = routes.made();
        let shared = routes.note(&(tenant.clone(), route), blocks, &longer, now);
        let split = shared.map(|shared| [&[route][..], shared].concat()).unwrap_or_default();
        if routes.made() > before {
            let tokens = split.len() * ROUTE_TOKENS;
            tracing::info!(%route, %tenant, tokens, "a route is split: too many prompts share its prefix");
        }
        split
    }

    /// The routes of a tenant that are split.
    pub(super) fn of_tenant(&self, tenant: &Name) -> Vec<RouteKey> {
        let (now, routes) = (self.now(), self.routes.lock());
        let own = routes.split(now).filter(|((of, _), _)| of == tenant);
        own.flat_map(|((_, route), shared)| [&[*route][..], shared].concat()).collect()
    }

    /// Splits so far.
    pub(super) fn made(&self) -> u64 {
        self.routes.lock().made()
    }
}
