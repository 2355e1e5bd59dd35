//! Metrics of the cluster of replicas.

use prometheus::{Counter, IntCounter, IntCounterVec, IntGauge, Registry};

use super::{counter, counters, gauge};
use crate::cluster::{Cluster, RoutePlace};

/// Those metrics; every series is there from the start.
#[derive(Debug)]
pub(crate) struct ClusterMetrics {
    members: IntGauge,
    route_requests: IntCounterVec,
    route_splits: IntCounter,
    route_moves: Counter,
    resolve_failures: IntCounter,
}

impl ClusterMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let this = Self {
            members: gauge("kvasir_cluster_members", "Replicas in this replica's list; 0 where it has none."),
            route_requests: counters(
                "kvasir_route_requests_total",
                "Requests with a route, by the place of this replica among those that keep it.",
                &["place"],
            ),
            route_splits: counter(
                "kvasir_route_splits_total",
                "Routes that this replica has split because too many prompts shared them.",
            ),
            route_moves: Counter::new(
                "kvasir_route_moves_total",
                "Share of all routes that other replicas keep since the list of members changed, added up.",
            )
            .expect("a constant name"),
            resolve_failures: counter(
                "kvasir_cluster_resolve_failures_total",
                "Times that DNS gave no list of members, and the former list stayed.",
            ),
        };
        for place in RoutePlace::ALL {
            this.route_requests.with_label_values(&[place.as_str()]);
        }
        registry.register(Box::new(this.members.clone())).expect("names are distinct");
        registry.register(Box::new(this.route_requests.clone())).expect("names are distinct");
        registry.register(Box::new(this.route_splits.clone())).expect("names are distinct");
        registry.register(Box::new(this.route_moves.clone())).expect("names are distinct");
        registry.register(Box::new(this.resolve_failures.clone())).expect("names are distinct");
        this
    }

    pub(crate) fn routed(&self, place: RoutePlace) {
        self.route_requests.with_label_values(&[place.as_str()]).inc();
    }

    pub(crate) fn resolve_failed(&self) {
        self.resolve_failures.inc();
    }

    /// Takes over what the cluster knows.
    pub(crate) fn refresh(&self, cluster: &Cluster) {
        self.members.set(i64::try_from(cluster.len()).unwrap_or(i64::MAX));
        self.route_splits.inc_by(cluster.splits_made().saturating_sub(self.route_splits.get()));
        self.route_moves.inc_by((cluster.routes_moved() - self.route_moves.get()).max(0.0));
    }
}
