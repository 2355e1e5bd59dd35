//! LHD (Beckmann, Chen and Cidon, NSDI'18): evicts the lowest hit density among a few drawn entries.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use kvasir_eviction::{Access, EntryKey, EvictionPolicy, Moment};

use super::{draws::Draws, limits};

/// Ages in accesses, four bins an octave instead of the paper's linear bins, which have to be coarsened to the workload.
const BINS: usize = 160;
/// Classes by the age at the last hit, an octave each, as in §4.3.
const CLASSES: usize = 24;

fn bin_of(age: u64) -> usize {
    let log2 = age.max(4).ilog2();
    let quarter = (age.max(4) >> (log2 - 2)) & 3;
    (((log2 - 2) * 4) as usize + quarter as usize).min(BINS - 1)
}

fn width_of(bin: usize) -> f64 {
    ((bin / 4) as f64).exp2()
}

/// Ends of lives by age, and the densities that follow from them.
#[derive(Debug, Clone)]
struct Class {
    hits: [f64; BINS],
    evictions: [f64; BINS],
    density: [f64; BINS],
}

impl Class {
    /// Before any observation: younger entries are worth more, as in LRU.
    fn new() -> Self {
        let density = std::array::from_fn(|bin| 1.0 / ((bin + 1) as f64));
        Self { hits: [0.0; BINS], evictions: [0.0; BINS], density }
    }

    /// §4.2: expected hits over the time until the end of the life, from the oldest age to the youngest.
    fn learn(&mut self) {
        let (mut hits, mut ends, mut life) = (0.0, 0.0, 0.0);
        for bin in (0..BINS).rev() {
            hits += self.hits[bin];
            ends += self.hits[bin] + self.evictions[bin];
            life += ends * width_of(bin);
            self.density[bin] = if ends > 0.0 { hits / life } else { 0.0 };
            self.hits[bin] *= limits::LHD_KEEP;
            self.evictions[bin] *= limits::LHD_KEEP;
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry<K> {
    key: K,
    bytes: u64,
    last: u64,
    class: usize,
}

/// The policy; entries are stored densely so that it can sample them. The draws come from a fixed seed.
#[derive(Debug)]
pub struct Lhd<K> {
    places: HashMap<K, usize, RandomState>,
    entries: Vec<Entry<K>>,
    bytes: u64,
    classes: Vec<Class>,
    clock: u64,
    next_fit: u64,
    draws: Draws,
}

impl<K: EntryKey> Default for Lhd<K> {
    fn default() -> Self {
        Self {
            places: HashMap::default(),
            entries: Vec::new(),
            bytes: 0,
            classes: vec![Class::new(); CLASSES],
            clock: 0,
            next_fit: limits::LHD_FIT_ACCESSES_MIN,
            draws: Draws::default(),
        }
    }
}

impl<K: EntryKey> Lhd<K> {
    fn tick(&mut self) {
        self.clock += 1;
        if self.clock >= self.next_fit {
            self.next_fit = self.clock + limits::LHD_FIT_ACCESSES_MIN.max(self.entries.len() as u64);
            self.classes.iter_mut().for_each(Class::learn);
        }
    }

    fn take(&mut self, place: usize) -> Entry<K> {
        let entry = self.entries.swap_remove(place);
        self.places.remove(&entry.key);
        if let Some(moved) = self.entries.get(place) {
            self.places.insert(moved.key, place);
        }
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        entry
    }

    fn density(&self, place: usize) -> f64 {
        let entry = &self.entries[place];
        let density = self.classes[entry.class].density[bin_of(self.clock - entry.last)];
        density / entry.bytes.max(1) as f64
    }
}

impl<K: EntryKey> EvictionPolicy<K> for Lhd<K> {
    fn insert(&mut self, key: K, access: &Access<K>) {
        if self.touch(&key, access) {
            let entry = &mut self.entries[self.places[&key]];
            self.bytes = self.bytes.saturating_sub(entry.bytes).saturating_add(access.bytes);
            entry.bytes = access.bytes;
            return;
        }
        self.tick();
        self.places.insert(key, self.entries.len());
        self.entries.push(Entry { key, bytes: access.bytes, last: self.clock, class: 0 });
        self.bytes = self.bytes.saturating_add(access.bytes);
    }

    fn touch(&mut self, key: &K, _access: &Access<K>) -> bool {
        let Some(place) = self.places.get(key).copied() else { return false };
        self.tick();
        let entry = &mut self.entries[place];
        let age = self.clock - entry.last;
        self.classes[entry.class].hits[bin_of(age)] += 1.0;
        // Class 0 is for entries that were not used again; a short wait is more informative than a long one.
        (entry.last, entry.class) = (self.clock, 1 + (age.max(1).ilog2() as usize).min(CLASSES - 2));
        true
    }

    fn remove(&mut self, key: &K) -> bool {
        let Some(place) = self.places.get(key).copied() else { return false };
        self.take(place);
        true
    }

    fn evict(&mut self, _now: Moment) -> Option<K> {
        let count = self.entries.len();
        if count == 0 {
            return None;
        }
        let drawn: Vec<usize> = (0..limits::LHD_DRAWN).map(|_| self.draws.below(count)).collect();
        let place =
            drawn.into_iter().min_by(|one, other| self.density(*one).total_cmp(&self.density(*other)))?;
        let entry = self.take(place);
        self.classes[entry.class].evictions[bin_of(self.clock - entry.last)] += 1.0;
        Some(entry.key)
    }

    fn contains(&self, key: &K) -> bool {
        self.places.contains_key(key)
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}
