//! How an object is cut into frames.

use std::ops::Range;

use kvasir_types::Name;

use crate::limits;

/// Names a frame: the object in its tenant's space, and the frame's number from the object's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameKey {
    /// The object.
    pub object: [u8; 16],
    /// The frame.
    pub frame: u32,
}

/// An object as the hot tier sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotObject {
    id: [u8; 16],
    tenant: Name,
    /// Start of each frame, and the object's size at the end.
    cuts: Vec<u64>,
    /// First frame of each level.
    levels: Vec<u32>,
}

impl HotObject {
    /// An object of `tenant` stored at `path`, of `object_bytes`, whose prefixes of `level_bytes` decode to its
    /// levels. Level ends that are out of order are ignored: they come from a header that may lie.
    pub fn new(tenant: &Name, path: &str, level_bytes: &[u64], object_bytes: u64) -> Self {
        let mut id = [0; 16];
        blake3::Hasher::new().update(path.as_bytes()).finalize_xof().fill(&mut id);
        let (mut cuts, mut levels) = (vec![0], Vec::new());
        for end in level_bytes.iter().copied().chain([object_bytes]) {
            let start = *cuts.last().expect("it starts with 0");
            if end <= start || end > object_bytes {
                continue;
            }
            levels.push(cuts.len() as u32 - 1);
            let frames = (end - start).div_ceil(limits::HOT_FRAME_BYTES);
            // Even frames rather than full ones and a rest: a frame is the unit of every cost.
            let length = (end - start).div_ceil(frames);
            cuts.extend((1..frames).map(|frame| start + frame * length));
            cuts.push(end);
        }
        Self { id, tenant: tenant.clone(), cuts, levels }
    }

    /// Whose it is.
    pub fn tenant(&self) -> &Name {
        &self.tenant
    }

    /// Size of the object.
    pub fn bytes(&self) -> u64 {
        self.cuts.last().copied().unwrap_or(0)
    }

    /// How many frames it has.
    pub fn frames(&self) -> u32 {
        self.cuts.len() as u32 - 1
    }

    /// The key of a frame.
    pub fn key(&self, frame: u32) -> FrameKey {
        FrameKey { object: self.id, frame }
    }

    /// The bytes of a frame.
    pub fn range(&self, frame: u32) -> Range<u64> {
        self.cuts[frame as usize]..self.cuts[frame as usize + 1]
    }

    /// The level whose sections a frame holds.
    pub fn level(&self, frame: u32) -> u8 {
        (self.levels.partition_point(|first| *first <= frame).saturating_sub(1)) as u8
    }

    /// The frames that hold some of `range`.
    pub fn frames_of(&self, range: &Range<u64>) -> Range<u32> {
        if range.is_empty() {
            return 0..0;
        }
        let first = self.cuts.partition_point(|cut| *cut <= range.start).saturating_sub(1);
        let end = self.cuts.partition_point(|cut| *cut < range.end);
        first as u32..end.min(self.frames() as usize) as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_tile_the_object(
            mut levels in prop::collection::vec(0..20_000_000u64, 0..8),
            rest in 0..5_000_000u64,
            from in 0..25_000_000u64,
            length in 1..5_000_000u64,
        ) {
            levels.sort_unstable();
            let bytes = levels.last().copied().unwrap_or(0) + rest;
            let tenant: Name = "t".parse().unwrap();
            let object = HotObject::new(&tenant, "p", &levels, bytes);
            prop_assert_eq!(object.bytes(), bytes);
            let mut at = 0;
            for frame in 0..object.frames() {
                let range = object.range(frame);
                prop_assert_eq!(range.start, at);
                prop_assert!(range.end > at && range.end - at <= limits::HOT_FRAME_BYTES);
                let crosses = levels.iter().any(|end| range.start < *end && *end < range.end);
                prop_assert!(!crosses, "a frame never holds two levels");
                at = range.end;
            }
            prop_assert_eq!(at, bytes);
            let wanted = from.min(bytes)..(from + length).min(bytes);
            let frames = object.frames_of(&wanted);
            for frame in 0..object.frames() {
                let range = object.range(frame);
                let overlaps = range.start < wanted.end && wanted.start < range.end && !wanted.is_empty();
                prop_assert_eq!(frames.contains(&frame), overlaps);
            }
        }
    }

    #[test]
    fn levels_are_found_and_lies_ignored() {
        let tenant: Name = "t".parse().unwrap();
        let object = HotObject::new(&tenant, "p", &[10, 30, 20, 900], 100);
        assert_eq!(
            (0..object.frames()).map(|frame| object.range(frame)).collect::<Vec<_>>(),
            [0..10, 10..30, 30..100]
        );
        assert_eq!((0..3).map(|frame| object.level(frame)).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
