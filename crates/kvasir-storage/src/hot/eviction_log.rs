//! The latest evictions from the tier's media, for `explain`.

use std::collections::{HashMap, VecDeque};

use kvasir_eviction::{ClassId, Moment};
use kvasir_store::layout::ChunkKey;
use kvasir_types::Medium;

use crate::limits;

use super::{frame_record::FrameRecord, frames::FrameKey, observe::EvictReason};

/// The eviction of one frame from one medium of the hot tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FrameEviction {
    /// The medium that the frame was evicted from.
    pub medium: Medium,
    /// The reason.
    pub reason: EvictReason,
    /// Which frame of the object.
    pub frame: u32,
    /// The level it belonged to.
    pub level: u8,
    /// Its size.
    pub bytes: u64,
    /// Class of the request that last used it.
    pub class: ClassId,
    /// Seconds ago.
    pub seconds_ago: f64,
    /// Age at eviction, in seconds.
    pub age_seconds: f64,
    /// Time since the last use, in seconds.
    pub idle_seconds: f64,
}

/// The latest evictions, oldest first; ~100 bytes each.
#[derive(Debug, Default)]
pub(super) struct EvictionLog(VecDeque<(FrameKey, Moment, FrameEviction)>);

impl EvictionLog {
    /// Records an eviction. Returns the frame's age and idle time in seconds.
    pub(super) fn record(
        &mut self,
        medium: Medium,
        reason: EvictReason,
        record: &FrameRecord,
        now: Moment,
    ) -> (f64, f64) {
        if self.0.len() >= limits::HOT_EVICTIONS_KEPT {
            self.0.pop_front();
        }
        let eviction = FrameEviction {
            medium,
            reason,
            frame: record.file.key.frame,
            level: record.file.level,
            bytes: u64::from(record.file.bytes),
            class: record.access.class,
            seconds_ago: 0.0,
            age_seconds: now.seconds_since(record.since),
            idle_seconds: now.seconds_since(record.access.now.max(record.since)),
        };
        self.0.push_back((record.file.key, now, eviction));
        (eviction.age_seconds, eviction.idle_seconds)
    }

    /// The evictions of frames of `objects`, each with its object's index in `objects`, latest first.
    pub(super) fn of_objects(&self, objects: &[ChunkKey], now: Moment) -> Vec<(usize, FrameEviction)> {
        let indices: HashMap<[u8; 16], usize> =
            objects.iter().enumerate().map(|(index, key)| (FrameKey::first(key).object, index)).collect();
        let found = self.0.iter().rev().filter_map(|(key, at, eviction)| {
            let seconds_ago = now.seconds_since(*at);
            Some((*indices.get(&key.object)?, FrameEviction { seconds_ago, ..*eviction }))
        });
        found.collect()
    }
}
