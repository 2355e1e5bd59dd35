//! Routes that too many requests share, among the replicas of a cluster.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use crate::{
    Moment,
    limits::{
        ROUTE_WINDOW_SECONDS, ROUTES_COUNTED_MAX, SPLIT_LOOKUPS_MIN, SPLIT_SECONDS, SPLIT_SHARE, SPLITS_MAX,
    },
};

/// Counts the lookups of each route at one replica, and splits those that have more than a quarter of them.
///
/// A route belongs to its first replica, which sees its lookups and decides alone: it tells callers with its answers, and they go
/// by a longer prefix from then on. So nothing is agreed upon between replicas. Memory is bounded, whatever routes are invented.
#[derive(Debug)]
pub struct RouteSplits<K> {
    window: Option<Moment>,
    lookups: u32,
    /// Of this window. Routes beyond the limit are not counted before the next one.
    of_routes: HashMap<K, u32>,
    /// When each split began.
    splits: BTreeMap<K, Moment>,
    made: u64,
}

impl<K> Default for RouteSplits<K> {
    fn default() -> Self {
        Self { window: None, lookups: 0, of_routes: HashMap::new(), splits: BTreeMap::new(), made: 0 }
    }
}

impl<K: Hash + Ord + Clone> RouteSplits<K> {
    /// Counts a lookup; gives whether its route is split.
    pub fn note(&mut self, route: &K, now: Moment) -> bool {
        if let Some(since) = self.splits.get(route) {
            if now.seconds_since(*since) < SPLIT_SECONDS {
                return true;
            }
            self.splits.remove(route);
        }
        if self.window.is_none_or(|since| now.seconds_since(since) >= ROUTE_WINDOW_SECONDS) {
            (self.window, self.lookups) = (Some(now), 0);
            self.of_routes.clear();
        }
        self.lookups = self.lookups.saturating_add(1);
        if self.of_routes.len() >= ROUTES_COUNTED_MAX && !self.of_routes.contains_key(route) {
            return false;
        }
        let count = self.of_routes.entry(route.clone()).or_default();
        *count += 1;
        if *count < SPLIT_LOOKUPS_MIN || *count <= self.lookups / SPLIT_SHARE {
            return false;
        }
        self.of_routes.remove(route);
        if self.splits.len() >= SPLITS_MAX {
            let oldest = self.splits.iter().min_by_key(|(_, since)| **since).map(|(route, _)| route.clone());
            oldest.and_then(|oldest| self.splits.remove(&oldest));
        }
        self.splits.insert(route.clone(), now);
        self.made += 1;
        true
    }

    /// The routes that are split now.
    pub fn split(&self, now: Moment) -> impl Iterator<Item = &K> {
        let lasts = move |since: &Moment| now.seconds_since(*since) < SPLIT_SECONDS;
        self.splits.iter().filter(move |(_, since)| lasts(since)).map(|(route, _)| route)
    }

    /// Splits so far.
    pub fn made(&self) -> u64 {
        self.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Moment {
        Moment::from_micros((seconds * 1e6) as u64)
    }

    #[test]
    fn a_route_with_more_than_a_quarter_of_the_lookups_is_split_and_others_are_not() {
        let mut splits = RouteSplits::default();
        // A fifth each: none.
        assert!((0..5_000).all(|n| !splits.note(&(n % 5), at(1.0))));
        // One has half of the lookups, but they are few.
        let later = at(1.0 + ROUTE_WINDOW_SECONDS);
        let half = |n: u32| if n.is_multiple_of(2) { 7 } else { 100 + n };
        assert!((0..2 * SPLIT_LOOKUPS_MIN - 2).all(|n| !splits.note(&half(n), later)));
        assert!(splits.note(&7, later));
        assert_eq!((splits.split(later).collect::<Vec<_>>(), splits.made()), (vec![&7], 1));
        let end = at(1.0 + ROUTE_WINDOW_SECONDS + SPLIT_SECONDS);
        assert_eq!(splits.split(end).count(), 0);
        assert!(!splits.note(&7, end), "it begins anew");
    }

    #[test]
    fn invented_routes_cost_bounded_memory() {
        let mut splits = RouteSplits::default();
        for n in 0..2 * ROUTES_COUNTED_MAX as u64 {
            splits.note(&n, at(0.0));
        }
        assert_eq!(splits.of_routes.len(), ROUTES_COUNTED_MAX);
        for n in 0..SPLITS_MAX as u64 + 10 {
            let now = at((n + 1) as f64 * ROUTE_WINDOW_SECONDS);
            (0..SPLIT_LOOKUPS_MIN).for_each(|_| _ = splits.note(&n, now));
        }
        assert!(splits.splits.len() <= SPLITS_MAX && splits.made() == SPLITS_MAX as u64 + 10);
    }
}
