//! What is promised of opaque objects: a key has one value at a time, and who was told that his is the one finds it there.
//!
//! Values are numbered; a test makes bytes of them. A key is a register that may become empty: by a removal, by the collector
//! ([`Bounds::ttl`]), and where writers of different values met and one of them did not get to its end.

use std::time::Duration;

use super::{Bounds, Interval, Outcome};

/// Why a value may be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gone {
    No,
    /// Only once the collector has come, after this moment.
    After(Duration),
    Yes,
}

#[derive(Debug)]
struct Put {
    key: u8,
    value: u8,
    begun: Duration,
    ended: Option<(Duration, Outcome)>,
}

#[derive(Debug)]
struct Removal {
    key: u8,
    begun: Duration,
    ended: Option<(Duration, Outcome)>,
}

/// The keys of one history.
#[derive(Debug)]
pub struct Keys {
    bounds: Bounds,
    grace: Duration,
    puts: Vec<Put>,
    removals: Vec<Removal>,
    /// When somebody changed an object, a tombstone or a marker of some key behind the service's back.
    tampered: Vec<Duration>,
}

impl Keys {
    /// Nothing has happened; a collector waits for `grace`.
    pub fn new(bounds: Bounds, grace: Duration) -> Self {
        Self { bounds, grace, puts: Vec::new(), removals: Vec::new(), tampered: Vec::new() }
    }

    /// Somebody changes objects of keys: which, is not told apart.
    pub fn tampered(&mut self, at: Duration) {
        self.tampered.push(at);
    }

    /// A PUT begins. Gives its number.
    pub fn put_begins(&mut self, key: u8, value: u8, at: Duration) -> usize {
        self.puts.push(Put { key, value, begun: at, ended: None });
        self.puts.len() - 1
    }

    /// A PUT ends.
    ///
    /// # Errors
    /// It was acknowledged beside another value that cannot be gone.
    pub fn put_ends(&mut self, put: usize, at: Duration, outcome: Outcome) -> Result<(), String> {
        self.puts[put].ended = Some((at, outcome));
        if outcome != Outcome::Acknowledged {
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
        self.removals.push(Removal { key, begun: at, ended: None });
        self.removals.len() - 1
    }

    /// A removal ends.
    pub fn removal_ends(&mut self, removal: usize, at: Duration, outcome: Outcome) {
        self.removals[removal].ended = Some((at, outcome));
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
        // Who has not heard of a removal has what was there before.
        let was_removed = |removal: &Removal| {
            let before =
                |put: &Put| put.value == value && removal.ended.is_none_or(|(ended, _)| put.begun <= ended);
            removal.key == key && removal.begun <= at.ended && of_key().any(before)
        };
        let is_stale = self.removals.iter().any(was_removed);
        let stands = |put: &&Put| {
            let is_acknowledged =
                matches!(put.ended, Some((ended, Outcome::Acknowledged)) if ended < at.begun);
            put.value != value && is_acknowledged && !self.may_be_gone(put, at.ended)
        };
        match of_key().find(stands) {
            Some(put) if !is_stale => {
                Err(format!("at {:?}: key {key} has value {value} in place of {}", at.ended, put.value))
            }
            _ => Ok(()),
        }
    }

    /// Keys that everybody must find at `now`, long after the last request, and their values.
    pub fn owed(&self, now: Duration) -> Vec<(u8, u8)> {
        let acknowledged = |put: &&Put| matches!(put.ended, Some((_, Outcome::Acknowledged)));
        let owed = self.puts.iter().filter(acknowledged).filter(|put| self.gone(put, now) == Gone::No);
        let mut owed: Vec<_> = owed.map(|put| (put.key, put.value)).collect();
        owed.sort_unstable();
        owed.dedup();
        owed
    }

    fn may_be_gone(&self, put: &Put, by: Duration) -> bool {
        match self.gone(put, by) {
            Gone::No => false,
            Gone::After(moment) => by >= moment,
            Gone::Yes => true,
        }
    }

    fn gone(&self, put: &Put, by: Duration) -> Gone {
        let late = |ended: &Option<(Duration, Outcome)>| match ended {
            Some((ended, Outcome::Unknown)) => *ended + self.bounds.unknown,
            Some((ended, _)) => *ended,
            None => Duration::MAX,
        };
        let is_removed = |removal: &&Removal| {
            removal.key == put.key && removal.begun <= by && late(&removal.ended) >= put.begun
        };
        // An object is as old as the first PUT of its bytes that may have made it.
        let is_old =
            |made: &Put, ttl| made.key == put.key && made.value == put.value && by >= made.begun + ttl;
        if self.removals.iter().any(|removal| is_removed(&removal))
            || self.tampered.iter().any(|at| put.begun <= *at && *at <= by)
            || self.bounds.ttl.is_some_and(|ttl| self.puts.iter().any(|made| is_old(made, ttl)))
        {
            return Gone::Yes;
        }
        // Who is acknowledged met nobody.
        let met = |other: &&Put| {
            let is_there = other.key == put.key && other.begun <= by;
            let is_there = is_there && !matches!(other.ended, Some((_, Outcome::Acknowledged)));
            // What it wrote may stay where it is refused: an attempt of it that nobody heard of again.
            let late = match &other.ended {
                Some((ended, Outcome::Refused)) => *ended + self.bounds.unknown,
                ended => late(ended),
            };
            is_there && late >= put.begun && !std::ptr::eq(*other, put)
        };
        // The collector waits until all that contradict each other are old.
        let others = self.puts.iter().filter(met).filter(|other| other.value != put.value);
        let Some(met) = others.map(|other| other.begun).min() else { return Gone::No };
        let alike = self.puts.iter().filter(|made| made.key == put.key && made.value == put.value);
        let made = alike.map(|made| made.begun).min().unwrap_or(put.begun);
        Gone::After(made.max(met) + self.grace)
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
    fn a_writer_that_met_another_may_lose_its_value_to_the_collector() {
        let mut keys = keys();
        put(&mut keys, 1, 1, 2, Outcome::Acknowledged).expect("the first");
        put(&mut keys, 2, 1, 9, Outcome::Unknown).expect("may be");
        assert!(keys.got(0, at(10, 11), 2).is_err(), "before a collector can have come");
        assert!(keys.got(0, at(30, 31), 2).is_ok());
        assert_eq!(keys.owed(s(40)), []);
    }
}
