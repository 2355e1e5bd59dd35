//! Routes that too many prompts share, among the replicas of a cluster.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use crate::{
    Moment,
    limits::{
        ROUTE_WINDOW_SECONDS, ROUTES_COUNTED_MAX, SPLIT_PROMPTS_MIN, SPLIT_SECONDS, SPLIT_SHARE, SPLITS_MAX,
    },
};

/// Counts the prompts of each route at one replica, and splits the routes that more than a quarter of them share.
///
/// A route belongs to its first replica, which sees its lookups and decides alone. It tells callers with its answers, and they
/// use a longer prefix from then on, so replicas need not agree on anything. The turns of one conversation are one prompt: a
/// lookup that continues the one before it does not count. Memory is bounded, whatever routes are invented.
#[derive(Debug)]
pub struct RouteSplits<K, B> {
    window: Option<Moment>,
    lookups: u32,
    /// Of this window. Routes beyond the limit are not counted before the next one.
    of_routes: HashMap<K, RouteCount<B>>,
    /// When each split began.
    splits: BTreeMap<K, Moment>,
    made: u64,
}

#[derive(Debug)]
struct RouteCount<B> {
    prompts: u32,
    /// The last block of the last lookup, and its index.
    last: Option<(usize, B)>,
}

impl<K, B> Default for RouteSplits<K, B> {
    fn default() -> Self {
        Self { window: None, lookups: 0, of_routes: HashMap::new(), splits: BTreeMap::new(), made: 0 }
    }
}

impl<K: Hash + Ord + Clone, B: Copy + Eq> RouteSplits<K, B> {
    /// Counts a lookup of a prompt with these block hashes; returns whether its route is split.
    pub fn note(&mut self, route: &K, blocks: &[B], now: Moment) -> bool {
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
        let count = self.of_routes.entry(route.clone()).or_insert(RouteCount { prompts: 0, last: None });
        let continues = count.last.is_some_and(|(index, block)| blocks.get(index) == Some(&block));
        count.prompts += u32::from(!continues);
        count.last = blocks.iter().copied().enumerate().next_back();
        if count.prompts < SPLIT_PROMPTS_MIN || count.prompts <= self.lookups / SPLIT_SHARE {
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
    fn a_route_with_more_than_a_quarter_of_the_prompts_is_split_and_others_are_not() {
        let mut splits = RouteSplits::default();
        // A fifth each: none.
        assert!((0..5_000).all(|n| !splits.note(&(n % 5), &[n], at(1.0))));
        // One has half of the lookups, but they are few.
        let later = at(1.0 + ROUTE_WINDOW_SECONDS);
        let half = |n: u32| if n.is_multiple_of(2) { 7 } else { 100 + n };
        assert!((0..2 * SPLIT_PROMPTS_MIN - 2).all(|n| !splits.note(&half(n), &[n], later)));
        assert!(splits.note(&7, &[u32::MAX], later));
        assert_eq!((splits.split(later).collect::<Vec<_>>(), splits.made()), (vec![&7], 1));
        let end = at(1.0 + ROUTE_WINDOW_SECONDS + SPLIT_SECONDS);
        assert_eq!(splits.split(end).count(), 0);
        assert!(!splits.note(&7, &[0], end), "it begins anew");
    }

    #[test]
    fn the_turns_of_one_conversation_are_one_prompt() {
        let mut splits = RouteSplits::default();
        let conversation: Vec<u32> = (0..10_000).collect();
        assert!((1..10_000).all(|turn| !splits.note(&7, &conversation[..turn], at(1.0))));
        // Two of them that take turns are two prompts.
        let other: Vec<u32> = (0..10_000).map(|block| block + 20_000).collect();
        let of = |turn: usize| if turn.is_multiple_of(2) { &conversation } else { &other };
        assert!((1..10_000).any(|turn| splits.note(&8, &of(turn)[..turn], at(1.0 + ROUTE_WINDOW_SECONDS))));
    }

    #[test]
    fn invented_routes_cost_bounded_memory() {
        let mut splits = RouteSplits::default();
        for n in 0..2 * ROUTES_COUNTED_MAX as u64 {
            splits.note(&n, &[n], at(0.0));
        }
        assert_eq!(splits.of_routes.len(), ROUTES_COUNTED_MAX);
        for n in 0..SPLITS_MAX as u64 + 10 {
            let now = at((n + 1) as f64 * ROUTE_WINDOW_SECONDS);
            (0..u64::from(SPLIT_PROMPTS_MIN)).for_each(|prompt| _ = splits.note(&n, &[prompt], now));
        }
        assert!(splits.splits.len() <= SPLITS_MAX && splits.made() == SPLITS_MAX as u64 + 10);
    }
}
