//! Why frames are not here any more: the latest departures, for whoever asks.

use std::collections::{HashMap, VecDeque};

use kvasir_types::Medium;

use crate::{
    eviction::{ClassId, Moment},
    layout::ChunkKey,
    limits,
};

use super::{EvictReason, FrameKey, HotTier, keep::Place};

/// One frame that left a medium of the hot tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Departure {
    /// The medium it left.
    pub medium: Medium,
    /// Why.
    pub reason: EvictReason,
    /// Which frame of the object.
    pub frame: u32,
    /// The level it belonged to.
    pub level: u8,
    /// Its size.
    pub bytes: u64,
    /// Class of the request that used it last.
    pub class: ClassId,
    /// Seconds ago.
    pub seconds_ago: f64,
    /// How long it had been there, in seconds.
    pub age_seconds: f64,
    /// How long it had not been used, in seconds.
    pub idle_seconds: f64,
}

/// The latest departures, oldest first; ~100 bytes each.
#[derive(Debug, Default)]
pub(super) struct DepartureLog(VecDeque<(FrameKey, Moment, Departure)>);

impl DepartureLog {
    /// Takes note of a departure and answers how long the frame had been there and idle.
    pub(super) fn note(
        &mut self,
        medium: Medium,
        reason: EvictReason,
        place: &Place,
        now: Moment,
    ) -> (f64, f64) {
        if self.0.len() >= limits::HOT_DEPARTURES_KEPT {
            self.0.pop_front();
        }
        let departure = Departure {
            medium,
            reason,
            frame: place.file.key.frame,
            level: place.file.level,
            bytes: u64::from(place.file.bytes),
            class: place.access.class,
            seconds_ago: 0.0,
            age_seconds: now.seconds_since(place.since),
            idle_seconds: now.seconds_since(place.access.now.max(place.since)),
        };
        self.0.push_back((place.file.key, now, departure));
        (departure.age_seconds, departure.idle_seconds)
    }
}

impl HotTier {
    /// What left of some objects, each with its place among `objects`, the latest first, as far back as the log goes.
    pub fn departures_of(&self, objects: &[ChunkKey]) -> Vec<(usize, Departure)> {
        let places: HashMap<[u8; 16], usize> =
            objects.iter().enumerate().map(|(place, key)| (FrameKey::first(key).object, place)).collect();
        let now = self.clock.now();
        let state = self.state.lock();
        let found = state.departures.0.iter().rev().filter_map(|(key, at, departure)| {
            let seconds_ago = now.seconds_since(*at);
            Some((*places.get(&key.object)?, Departure { seconds_ago, ..*departure }))
        });
        found.collect()
    }
}
