//! What is learnt about reuse: a sliding window of reuse times per class, and a bounded sample of keys that is
//! observed whether or not they are cached.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::{
    EntryKey, Moment, limits,
    table::{List, NONE, Table},
};

/// Parts into which a window is cut; it forgets one part at a time.
const PARTS: usize = 12;

/// An exponential distribution of reuse times, fitted by maximum likelihood.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExponentialFit {
    /// Reuses per second of waiting: the inverse of the mean reuse time.
    pub rate: f64,
    /// Samples behind the fit.
    pub samples: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct WindowPart {
    epoch: u64,
    count: u64,
    reuse_seconds: f64,
    life_seconds: f64,
}

/// Reuse times and lifespans of the last [`limits::REUSE_WINDOW_SECONDS`], in constant memory: the fit of an
/// exponential needs only their count and sum.
#[derive(Debug, Clone, Default)]
pub struct ReuseWindow {
    parts: [WindowPart; PARTS],
}

impl ReuseWindow {
    fn epoch(now: Moment) -> u64 {
        (now.seconds_since(Moment::default()) / (limits::REUSE_WINDOW_SECONDS / PARTS as f64)) as u64
    }

    /// Notes that an entry was used again `reuse_seconds` after its last use, `life_seconds` after its first.
    pub fn record(&mut self, now: Moment, reuse_seconds: f64, life_seconds: f64) {
        let epoch = Self::epoch(now);
        let part = &mut self.parts[(epoch % PARTS as u64) as usize];
        if part.epoch != epoch {
            *part = WindowPart { epoch, ..WindowPart::default() };
        }
        part.count += 1;
        part.reuse_seconds += reuse_seconds;
        part.life_seconds += life_seconds;
    }

    fn sum(&self, now: Moment) -> WindowPart {
        let newest = Self::epoch(now);
        let mut total = WindowPart::default();
        for part in &self.parts {
            if newest.abs_diff(part.epoch) < PARTS as u64 {
                total.count += part.count;
                total.reuse_seconds += part.reuse_seconds;
                total.life_seconds += part.life_seconds;
            }
        }
        total
    }

    /// The exponential that fits the window best; `None` without samples.
    pub fn fit(&self, now: Moment) -> Option<ExponentialFit> {
        let total = self.sum(now);
        let mean = (total.reuse_seconds / total.count.max(1) as f64).max(limits::REUSE_SECONDS_MIN);
        (total.count > 0).then(|| ExponentialFit { rate: 1.0 / mean, samples: total.count })
    }

    /// Mean time from first to latest use, over the window's reuses; `None` without samples.
    pub fn life_seconds(&self, now: Moment) -> Option<f64> {
        let total = self.sum(now);
        (total.count > 0).then(|| total.life_seconds / total.count as f64)
    }
}

/// A sampled key's history.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyHistory<C> {
    /// Class of the last use.
    pub class: C,
    /// First use within the window.
    pub first: Moment,
    /// Last use.
    pub last: Moment,
}

/// Follows the uses of a sample of keys chosen by hash (as SHARDS, FAST'15, does), so what is learnt does not
/// depend on what the policy chose to keep. At most [`limits::SAMPLED_KEYS_MAX`] keys are followed: when they
/// do not suffice for a window, half of the hash space is given up.
#[derive(Debug)]
pub(super) struct ReuseSampler<K, C> {
    table: Table<K, KeyHistory<C>>,
    by_last_use: List,
    hasher: FixedState,
    threshold: u64,
}

impl<K: EntryKey, C: Copy> ReuseSampler<K, C> {
    pub(super) fn new() -> Self {
        Self {
            table: Table::new(),
            by_last_use: List::EMPTY,
            hasher: FixedState::with_seed(0x6b76_6173_6972),
            threshold: u64::MAX,
        }
    }

    /// Notes a use of `key`; answers what was known before if the key is sampled and was seen in the window.
    pub(super) fn note(&mut self, key: K, class: C, now: Moment) -> Option<KeyHistory<C>> {
        if self.hasher.hash_one(key) > self.threshold {
            return None;
        }
        let Some(slot) = self.table.find(&key) else {
            let slot = self.table.add(key, 0, KeyHistory { class, first: now, last: now });
            self.by_last_use.push_back(&mut self.table.slab, slot);
            self.forget_old(now);
            return None;
        };
        let seen = *self.table.meta(slot);
        *self.table.meta_mut(slot) = KeyHistory { class, last: now, ..seen };
        self.by_last_use.move_to_back(&mut self.table.slab, slot);
        Some(seen)
    }

    fn forget_old(&mut self, now: Moment) {
        while let Some(slot) = self.by_last_use.front() {
            if now.seconds_since(self.table.meta(slot).last) <= limits::REUSE_WINDOW_SECONDS {
                break;
            }
            self.by_last_use.unlink(&mut self.table.slab, slot);
            self.table.drop_slot(slot);
        }
        while self.table.len() > limits::SAMPLED_KEYS_MAX {
            self.threshold /= 2;
            let mut next = self.by_last_use.front();
            while let Some(slot) = next {
                next = Some(self.table.slab.next(slot)).filter(|next| *next != NONE);
                if self.hasher.hash_one(self.table.key(slot)) > self.threshold {
                    self.by_last_use.unlink(&mut self.table.slab, slot);
                    self.table.drop_slot(slot);
                }
            }
        }
    }

    /// Keys followed.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Every followed key's history, oldest last use first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &KeyHistory<C>> {
        let mut next = self.by_last_use.front();
        std::iter::from_fn(move || {
            let slot = next?;
            next = Some(self.table.slab.next(slot)).filter(|next| *next != NONE);
            Some(self.table.meta(slot))
        })
    }
}
