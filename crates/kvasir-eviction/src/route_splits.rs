//! Routes that too many prompts share, among the replicas of a cluster.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use crate::{
    Moment,
    limits::{
        ROUTE_WINDOW_SECONDS, ROUTES_COUNTED_MAX, SPLIT_DEPTH_MAX, SPLIT_PROMPTS_MIN, SPLIT_SECONDS,
        SPLIT_SHARE, SPLITS_MAX,
    },
};

/// Counts the prompts of each route at one replica, and splits the routes that more than a quarter of them share.
///
/// A route belongs to its first replica, which sees its lookups and decides alone. It tells callers with its answers, and they
/// use a longer prefix from then on, so replicas need not agree on anything. The longer routes that all counted prompts have in
/// common are split together with it: step by step, the prompts would crowd one replica after another. The turns of one
/// conversation are one prompt: a lookup that continues the one before it does not count. Memory is bounded, whatever routes
/// are invented.
///
/// `K` names a route among those of all callers, `B` is a block's hash, and `R` a route of a caller.
#[derive(Debug)]
pub struct RouteSplits<K, B, R> {
    window: Option<Moment>,
    lookups: u32,
    /// Of this window. Routes beyond the limit are not counted before the next one.
    of_routes: HashMap<K, RouteCount<B, R>>,
    splits: BTreeMap<K, Split<R>>,
    made: u64,
}

#[derive(Debug)]
struct RouteCount<B, R> {
    prompts: u32,
    /// The last block of the last lookup, and its index.
    last: Option<(usize, B)>,
    /// Longer routes that all of the prompts have.
    shared: Vec<R>,
}

#[derive(Debug)]
struct Split<R> {
    since: Moment,
    /// Longer routes that are split with it.
    shared: Vec<R>,
}

impl<R> Split<R> {
    fn lasts(&self, now: Moment) -> bool {
        now.seconds_since(self.since) < SPLIT_SECONDS
    }
}

impl<K, B, R> Default for RouteSplits<K, B, R> {
    fn default() -> Self {
        Self { window: None, lookups: 0, of_routes: HashMap::new(), splits: BTreeMap::new(), made: 0 }
    }
}

impl<K: Hash + Ord + Clone, B: Copy + Eq, R: Copy + Eq> RouteSplits<K, B, R> {
    /// Counts a lookup of a prompt with these block hashes. `longer` are the prompt's routes beyond this one, shortest first.
    /// Returns those of them that are split as well, if the route is split.
    pub fn note(&mut self, route: &K, blocks: &[B], longer: &[R], now: Moment) -> Option<&[R]> {
        if self.splits.get(route).is_some_and(|split| !split.lasts(now)) {
            self.splits.remove(route);
        }
        if !self.splits.contains_key(route) {
            self.count(route, blocks, longer, now);
        }
        self.splits.get(route).map(|split| &split.shared[..])
    }

    /// Counts a lookup of a route that is not split, and splits it if it is crowded.
    fn count(&mut self, route: &K, blocks: &[B], longer: &[R], now: Moment) {
        if self.window.is_none_or(|since| now.seconds_since(since) >= ROUTE_WINDOW_SECONDS) {
            (self.window, self.lookups) = (Some(now), 0);
            self.of_routes.clear();
        }
        self.lookups = self.lookups.saturating_add(1);
        if self.of_routes.len() >= ROUTES_COUNTED_MAX && !self.of_routes.contains_key(route) {
            return;
        }
        let count = self.of_routes.entry(route.clone()).or_insert_with(|| {
            let shared = longer[..longer.len().min(SPLIT_DEPTH_MAX)].to_vec();
            RouteCount { prompts: 0, last: None, shared }
        });
        let continues = count.last.is_some_and(|(index, block)| blocks.get(index) == Some(&block));
        if !continues {
            count.prompts += 1;
            let in_common = count.shared.iter().zip(longer).take_while(|(shared, own)| shared == own).count();
            count.shared.truncate(in_common);
        }
        count.last = blocks.iter().copied().enumerate().next_back();
        if count.prompts < SPLIT_PROMPTS_MIN || count.prompts <= self.lookups / SPLIT_SHARE {
            return;
        }
        let shared = self.of_routes.remove(route).map(|count| count.shared).unwrap_or_default();
        if self.splits.len() >= SPLITS_MAX {
            let oldest =
                self.splits.iter().min_by_key(|(_, split)| split.since).map(|(route, _)| route.clone());
            oldest.and_then(|oldest| self.splits.remove(&oldest));
        }
        self.splits.insert(route.clone(), Split { since: now, shared });
        self.made += 1;
    }

    /// The routes that are split now, each with the longer ones that are split with it.
    pub fn split(&self, now: Moment) -> impl Iterator<Item = (&K, &[R])> {
        let split = self.splits.iter().filter(move |(_, split)| split.lasts(now));
        split.map(|(route, split)| (route, &split.shared[..]))
    }

    /// Splits so far.
    pub fn made(&self) -> u64 {
        self.made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Splits = RouteSplits<u32, u32, u32>;

    fn at(seconds: f64) -> Moment {
        Moment::from_micros((seconds * 1e6) as u64)
    }

    #[test]
    fn a_route_with_more_than_a_quarter_of_the_prompts_is_split_and_others_are_not() {
        let mut splits = Splits::default();
        // A fifth each: none.
        assert!((0..5_000).all(|n| splits.note(&(n % 5), &[n], &[], at(1.0)).is_none()));
        // One has half of the lookups, but they are few.
        let later = at(1.0 + ROUTE_WINDOW_SECONDS);
        let half = |n: u32| if n.is_multiple_of(2) { 7 } else { 100 + n };
        assert!((0..2 * SPLIT_PROMPTS_MIN - 2).all(|n| splits.note(&half(n), &[n], &[], later).is_none()));
        assert!(splits.note(&7, &[u32::MAX], &[], later).is_some());
        assert_eq!((splits.split(later).collect::<Vec<_>>(), splits.made()), (vec![(&7, &[][..])], 1));
        let end = at(1.0 + ROUTE_WINDOW_SECONDS + SPLIT_SECONDS);
        assert_eq!(splits.split(end).count(), 0);
        assert!(splits.note(&7, &[0], &[], end).is_none(), "it begins anew");
    }

    #[test]
    fn what_all_prompts_of_a_route_share_is_split_with_it() {
        let mut splits = Splits::default();
        let (template, most) = ([1, 2, 3], SPLIT_PROMPTS_MIN - 1);
        for n in 0..most {
            assert_eq!(splits.note(&7, &[n], &[&template[..], &[100 + n]].concat(), at(1.0)), None);
        }
        // A turn of the last prompt, with another end, changes nothing; the last prompt has two of the three.
        assert_eq!(splits.note(&7, &[most - 1, 0], &[], at(1.0)), None);
        assert_eq!(splits.note(&7, &[most], &[1, 2, 9], at(1.0)), Some(&[1, 2][..]));
        assert_eq!(splits.note(&7, &[most + 1], &[5], at(1.0)), Some(&[1, 2][..]));
        assert_eq!(splits.split(at(1.0)).collect::<Vec<_>>(), [(&7, &[1, 2][..])]);
        // A document that is longer than that is split as far as it goes.
        let document: Vec<u32> = (0..2 * SPLIT_DEPTH_MAX as u32).collect();
        let later = at(1.0 + ROUTE_WINDOW_SECONDS);
        let split =
            (0..SPLIT_PROMPTS_MIN).find_map(|n| splits.note(&8, &[n], &document, later).map(<[u32]>::len));
        assert_eq!(split, Some(SPLIT_DEPTH_MAX));
    }

    #[test]
    fn the_turns_of_one_conversation_are_one_prompt() {
        let mut splits = Splits::default();
        let conversation: Vec<u32> = (0..10_000).collect();
        assert!((1..10_000).all(|turn| splits.note(&7, &conversation[..turn], &[], at(1.0)).is_none()));
        // Two of them that take turns are two prompts.
        let other: Vec<u32> = (0..10_000).map(|block| block + 20_000).collect();
        let of = |turn: usize| if turn.is_multiple_of(2) { &conversation } else { &other };
        let later = at(1.0 + ROUTE_WINDOW_SECONDS);
        assert!((1..10_000).any(|turn| splits.note(&8, &of(turn)[..turn], &[], later).is_some()));
    }

    #[test]
    fn invented_routes_cost_bounded_memory() {
        let mut splits = Splits::default();
        for n in 0..2 * ROUTES_COUNTED_MAX as u32 {
            splits.note(&n, &[n], &[], at(0.0));
        }
        assert_eq!(splits.of_routes.len(), ROUTES_COUNTED_MAX);
        for n in 0..SPLITS_MAX as u32 + 10 {
            let now = at(f64::from(n + 1) * ROUTE_WINDOW_SECONDS);
            (0..SPLIT_PROMPTS_MIN).for_each(|prompt| _ = splits.note(&n, &[prompt], &[], now));
        }
        assert!(splits.splits.len() <= SPLITS_MAX && splits.made() == SPLITS_MAX as u64 + 10);
    }
}
