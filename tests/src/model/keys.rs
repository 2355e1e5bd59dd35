//! The promises for opaque objects: a key has one value at a time, and a client whose value was acknowledged
//! as the current one can read it.
//!
//! Values are numbered; a test makes bytes of them. A key is a register that may become empty: by a removal, by the collector
//! ([`Bounds::ttl`]), and where writers of different values met and one of them did not get to its end.

use std::time::Duration;

use super::{Bounds, Interval, Outcome, late};

#[derive(Debug)]
struct Put {
    key: u8,
    value: u8,
    begun: Duration,
    ended: Option<(Duration, Outcome)>,
    /// Until when it may take effect.
    settled: Duration,
}

#[derive(Debug)]
struct Removal {
    key: u8,
    begun: Duration,
    ended: Option<(Duration, Outcome)>,
    settled: Duration,
}

fn interval(begun: Duration, ended: Option<(Duration, Outcome)>) -> Interval {
    Interval { begun, ended: ended.map_or(Duration::MAX, |(ended, _)| ended) }
}

/// The keys of one history.
#[derive(Debug)]
pub struct Keys {
    bounds: Bounds,
    grace: Duration,
    puts: Vec<Put>,
    removals: Vec<Removal>,
    /// When the adversary changed an object, a tombstone or a marker of some key.
    tampered: Vec<Duration>,
}

impl Keys {
    /// Nothing has happened; a collector waits for `grace`.
    pub fn new(bounds: Bounds, grace: Duration) -> Self {
        Self { bounds, grace, puts: Vec::new(), removals: Vec::new(), tampered: Vec::new() }
    }

    /// From now on, a replica must know others' removals after `bound`. Returns the bound until then.
    pub fn set_removal_bound(&mut self, bound: Option<Duration>) -> Option<Duration> {
        std::mem::replace(&mut self.bounds.removal, bound)
    }

    /// Somebody changes objects of keys: which, is not told apart.
    pub fn tampered(&mut self, at: Duration) {
        self.tampered.push(at);
    }

    /// As [`Model::requests`](super::Model::requests).
    pub fn requests(&self) -> impl Iterator<Item = Interval> {
        let puts = self.puts.iter().map(|put| interval(put.begun, put.ended));
        puts.chain(self.removals.iter().map(|removal| interval(removal.begun, removal.ended)))
    }

    /// As [`Model::settle`](super::Model::settle).
    pub fn settle(&mut self, requests: &[Interval], now: Duration) {
        let puts = self.puts.iter_mut().map(|put| (interval(put.begun, put.ended), &mut put.settled));
        let removals = self.removals.iter_mut();
        let removals = removals.map(|removal| (interval(removal.begun, removal.ended), &mut removal.settled));
        late::settle(puts.chain(removals), requests, now);
    }

    /// A PUT begins. Gives its number.
    pub fn put_begins(&mut self, key: u8, value: u8, at: Duration) -> usize {
        self.puts.push(Put { key, value, begun: at, ended: None, settled: Duration::MAX });
        self.puts.len() - 1
    }

    /// A PUT ends.
    ///
    /// # Errors
    /// It was acknowledged beside another value that cannot be gone.
    pub fn put_ends(&mut self, put: usize, at: Duration, outcome: Outcome) -> Result<(), String> {
        (self.puts[put].ended, self.puts[put].settled) = (Some((at, outcome)), at);
        if outcome != Outcome::Acknowledged {
            // What it wrote may stay where it is refused, too: an attempt of it that nobody heard of again.
            self.puts[put].settled = at + self.bounds.unknown;
            return Ok(());
        }
        let mine = &self.puts[put];
        for other in self.puts.iter().filter(|other| other.key == mine.key && other.value != mine.value) {
            let Some((ended, Outcome::Acknowledged)) = other.ended else { continue };
            let is_before = ended < mine.begun;
            let one_went = self.may_be_gone(other, at) || (!is_before && self.may_be_gone(mine, at));
            if !one_went {
                let history: Vec<_> = self.puts.iter().filter(|put| put.key == mine.key).collect();
                let removals: Vec<_> =
                    self.removals.iter().filter(|removal| removal.key == mine.key).collect();
                let (mine, other) = (mine.value, other.value);
                return Err(format!(
                    "at {at:?}: acknowledged {mine} beside {other}: {history:?} {removals:?}"
                ));
            }
        }
        Ok(())
    }

    /// A removal begins. Gives its number.
    pub fn removal_begins(&mut self, key: u8, at: Duration) -> usize {
        self.removals.push(Removal { key, begun: at, ended: None, settled: Duration::MAX });
        self.removals.len() - 1
    }

    /// A removal ends.
    pub fn removal_ends(&mut self, removal: usize, at: Duration, outcome: Outcome) {
        let removal = &mut self.removals[removal];
        removal.ended = Some((at, outcome));
        removal.settled = if outcome == Outcome::Unknown { at + self.bounds.unknown } else { at };
    }

    /// A key was read with a value.
    ///
    /// # Errors
    /// Nobody wrote it, or another value was there and cannot be gone.
    pub fn got(&self, key: u8, at: Interval, value: u8) -> Result<(), String> {
        let of_key = || self.puts.iter().filter(|put| put.key == key);
        if !of_key().any(|put| put.value == value && put.begun <= at.ended) {
            return Err(format!("at {:?}: key {key} has value {value}, which nobody wrote", at.ended));
        }
        // Who has not heard of a removal, or of the collector's, has what was there before.
        let was_removed = |removal: &Removal| {
            let before =
                |put: &Put| put.value == value && removal.ended.is_none_or(|(ended, _)| put.begun <= ended);
            let must_be_known = match (removal.ended, self.bounds.removal) {
                (Some((ended, Outcome::Acknowledged)), Some(bound)) => at.begun >= ended + bound,
                _ => false,
            };
            removal.key == key && removal.begun <= at.ended && of_key().any(before) && !must_be_known
        };
        let was_collected = |put: &Put| {
            let is_refused = matches!(put.ended, Some((_, Outcome::Refused)));
            put.value == value && !is_refused && self.may_be_collected(put, at.ended)
        };
        let is_stale = self.removals.iter().any(was_removed) || of_key().any(was_collected);
        let stands = |put: &&Put| {
            let is_acknowledged =
                matches!(put.ended, Some((ended, Outcome::Acknowledged)) if ended < at.begun);
            put.value != value && is_acknowledged && !self.may_be_gone(put, at.ended)
        };
        match of_key().find(stands) {
            Some(put) if !is_stale => {
                let puts: Vec<_> = of_key().collect();
                let other = put.value;
                Err(format!("{at:?}: key {key} has value {value} in place of {other}: {puts:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Keys that everybody must find at `now`, long after the last request, and their values.
    pub fn owed(&self, now: Duration) -> Vec<(u8, u8)> {
        let acknowledged = |put: &&Put| matches!(put.ended, Some((_, Outcome::Acknowledged)));
        let owed = self
            .puts
            .iter()
            .filter(acknowledged)
            .filter(|put| !self.may_be_removed(put, now) && self.collected_from(put, now).is_none());
        let mut owed: Vec<_> = owed.map(|put| (put.key, put.value)).collect();
        owed.sort_unstable();
        owed.dedup();
        owed
    }

    fn may_be_gone(&self, put: &Put, by: Duration) -> bool {
        self.may_be_removed(put, by) || self.may_be_collected(put, by)
    }

    /// Whether a request, or the adversary, may have removed it.
    fn may_be_removed(&self, put: &Put, by: Duration) -> bool {
        let is_removed =
            |removal: &Removal| removal.key == put.key && removal.begun <= by && removal.settled >= put.begun;
        self.removals.iter().any(is_removed) || self.tampered.iter().any(|at| put.begun <= *at && *at <= by)
    }

    /// The collector may have taken it.
    fn may_be_collected(&self, put: &Put, by: Duration) -> bool {
        self.collected_from(put, by).is_some_and(|moment| by >= moment)
    }

    /// From when on the collector may take it, as far as is known at `by`; none: it may not.
    fn collected_from(&self, put: &Put, by: Duration) -> Option<Duration> {
        // An object is as old as the first PUT of its bytes that may have made it.
        let alike = self.puts.iter().filter(|made| made.key == put.key && made.value == put.value);
        let made = alike.map(|made| made.begun).min().unwrap_or(put.begun);
        if let Some(old) = self.bounds.ttl.map(|ttl| made + ttl).filter(|old| *old <= by) {
            return Some(old);
        }
        // Who is acknowledged met nobody.
        let met = |other: &&Put| {
            let is_there = other.key == put.key && other.begun <= by;
            let is_there = is_there && !matches!(other.ended, Some((_, Outcome::Acknowledged)));
            is_there && other.settled >= put.begun && !std::ptr::eq(*other, put)
        };
        // The collector waits until all that contradict each other are old.
        let others = self.puts.iter().filter(met).filter(|other| other.value != put.value);
        others.map(|other| other.begun).min().map(|met| made.max(met) + self.grace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn keys() -> Keys {
        let bounds =
            Bounds { unknown: s(5), negative_ttl: s(1), removal: None, tombstone: s(100), ttl: None };
        Keys::new(bounds, s(20))
    }

    fn put(keys: &mut Keys, value: u8, begun: u64, ended: u64, outcome: Outcome) -> Result<(), String> {
        let put = keys.put_begins(0, value, s(begun));
        keys.put_ends(put, s(ended), outcome)
    }

    fn at(begun: u64, ended: u64) -> Interval {
        Interval { begun: s(begun), ended: s(ended) }
    }

    #[test]
    fn a_key_has_one_value() {
        let mut keys = keys();
        put(&mut keys, 1, 0, 1, Outcome::Acknowledged).expect("the first");
        put(&mut keys, 1, 2, 3, Outcome::Acknowledged).expect("the same");
        assert_eq!(keys.owed(s(3)), [(0, 1)]);
        assert!(keys.got(0, at(4, 5), 1).is_ok());
        assert!(keys.got(0, at(4, 5), 2).is_err(), "nobody wrote it");
        assert!(keys.got(1, at(4, 5), 1).is_err(), "under another key");
        put(&mut keys, 2, 10, 11, Outcome::Refused).expect("as it must");
        assert!(
            keys.got(0, at(60, 61), 2).is_ok(),
            "its first attempt came late, and the collector took both"
        );
    }

    #[test]
    fn what_somebody_changed_may_be_gone() {
        let mut keys = keys();
        put(&mut keys, 1, 0, 1, Outcome::Acknowledged).expect("the first");
        keys.tampered(s(2));
        assert_eq!((keys.owed(s(1)), keys.owed(s(3))), (vec![(0, 1)], vec![]));
        put(&mut keys, 2, 3, 4, Outcome::Acknowledged).expect("in its place");
        assert_eq!(keys.owed(s(5)), [(0, 2)]);
    }

    #[test]
    fn two_acknowledged_values_are_one_too_many() {
        for (begun, ended) in [(2, 3), (0, 3)] {
            let mut keys = keys();
            put(&mut keys, 1, 0, 1, Outcome::Acknowledged).expect("the first");
            assert!(put(&mut keys, 2, begun, ended, Outcome::Acknowledged).is_err());
        }
        let mut keys = keys();
        put(&mut keys, 1, 0, 1, Outcome::Acknowledged).expect("the first");
        let removal = keys.removal_begins(0, s(2));
        keys.removal_ends(removal, s(3), Outcome::Acknowledged);
        put(&mut keys, 2, 4, 5, Outcome::Acknowledged).expect("after a removal");
        assert_eq!(keys.owed(s(5)), [(0, 2)]);
        assert!(keys.got(0, at(6, 7), 2).is_ok());
        assert!(put(&mut keys, 3, 100, 101, Outcome::Acknowledged).is_err(), "time alone takes nothing");
    }

    #[test]
    fn who_has_not_heard_of_the_collector_has_the_old_value() {
        let mut keys = keys();
        keys.bounds.ttl = Some(s(100));
        put(&mut keys, 1, 0, 1, Outcome::Acknowledged).expect("the first");
        put(&mut keys, 2, 120, 121, Outcome::Acknowledged).expect("its time is over");
        assert!(keys.got(0, at(122, 123), 1).is_ok());
        put(&mut keys, 3, 124, 125, Outcome::Refused).expect("as it must");
        assert!(keys.got(0, at(126, 127), 3).is_err(), "it was never there");
    }

    #[test]
    fn a_removal_is_known_to_all_within_its_bound() {
        let mut keys = keys();
        keys.bounds.removal = Some(s(10));
        put(&mut keys, 1, 0, 1, Outcome::Acknowledged).expect("the first");
        let removal = keys.removal_begins(0, s(2));
        keys.removal_ends(removal, s(3), Outcome::Acknowledged);
        put(&mut keys, 2, 4, 5, Outcome::Acknowledged).expect("after a removal");
        assert!(keys.got(0, at(12, 13), 1).is_ok());
        assert!(keys.got(0, at(13, 14), 1).is_err());
    }

    #[test]
    fn a_removal_of_unknown_outcome_comes_no_later_than_a_request_beside_it_took() {
        let mut keys = keys();
        let removal = keys.removal_begins(0, s(0));
        keys.removal_ends(removal, s(1), Outcome::Unknown);
        put(&mut keys, 1, 7, 8, Outcome::Acknowledged).expect("the first");
        assert_eq!(keys.owed(s(9)), [(0, 1)]);
        keys.settle(&[at(5, 12)], s(20));
        assert_eq!(keys.owed(s(9)), []);
        put(&mut keys, 1, 9, 10, Outcome::Acknowledged).expect("the same");
        assert_eq!(keys.owed(s(11)), [(0, 1)]);
    }

    #[test]
    fn a_writer_that_met_another_may_lose_its_value_to_the_collector() {
        let mut keys = keys();
        put(&mut keys, 1, 1, 2, Outcome::Acknowledged).expect("the first");
        put(&mut keys, 2, 1, 9, Outcome::Unknown).expect("may be");
        assert!(keys.got(0, at(10, 11), 2).is_err(), "before a collector can have come");
        assert!(keys.got(0, at(30, 31), 2).is_ok());
        assert_eq!(keys.owed(s(40)), []);
    }
}
