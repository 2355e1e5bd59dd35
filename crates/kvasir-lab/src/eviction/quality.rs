//! Evicting the refinements of blocks before their bases, against evicting whole objects.

use kvasir_eviction::{Access, ClassTable, EvictionPolicy, PolicyKind};
use kvasir_replay::trace::{Request, TraceError};

use super::{TraceSource, lane::access_to, profile::TraceProfile, replay::class_of};

/// The levels of a chunk, coarsest first.
#[derive(Debug, Clone, PartialEq)]
pub struct LevelQualities {
    /// Bytes that each level adds to those before it.
    pub bytes: Vec<u64>,
    /// Share of tokens predicted as with the exact cache, when the levels up to this one are loaded.
    pub quality: Vec<f64>,
}

impl LevelQualities {
    /// As measured for a chunk of 256 tokens under the shipped profile (`results/quality.csv`, `bench quality`).
    pub fn shipped() -> Self {
        let rows = include_str!("../../results/quality.csv").lines().map(|line| line.split(',').collect());
        let is_shipped = |row: &Vec<&str>| row[0] == "kvasir" && row[1] == "\"budget\"" && row[3] == "256";
        let (mut bytes, mut quality, mut before) = (Vec::new(), Vec::new(), 0);
        for row in rows.filter(is_shipped) {
            let number = |column: usize| row[column].parse::<f64>().expect("the file is this crate's own");
            let total = number(6) as u64;
            bytes.push(total - before);
            quality.push(number(13));
            before = total;
        }
        Self { bytes, quality }
    }

    fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

/// What is evicted at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictedUnit {
    /// All levels of a block.
    Object,
    /// One level. A byte of a level is worth a ninth of one of the level before, as in the hot tier.
    Level,
    /// One level. Its bytes are worth the quality that they add.
    LevelByQuality,
}

impl EvictedUnit {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Object, Self::Level, Self::LevelByQuality];

    /// The name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Object => "whole objects",
            Self::Level => "levels",
            Self::LevelByQuality => "levels by their quality",
        }
    }

    /// Entries of a block: bytes and worth, each depending on the one before.
    fn entries(self, levels: &LevelQualities) -> Vec<(u64, f32)> {
        let gains = levels.quality.iter().scan(0.0, |before, quality| {
            let gain = quality - *before;
            *before = *quality;
            Some(gain as f32)
        });
        match self {
            Self::Object => vec![(levels.total(), 1.0)],
            Self::Level => {
                let base = levels.bytes[0] as f32;
                let worth = |(level, bytes): (usize, &u64)| {
                    (
                        *bytes,
                        kvasir_storage::limits::HOT_LEVEL_WORTH.powi(level as i32) * *bytes as f32 / base,
                    )
                };
                levels.bytes.iter().enumerate().map(worth).collect()
            }
            Self::LevelByQuality => levels.bytes.iter().copied().zip(gains).collect(),
        }
    }
}

/// A cache of blocks in levels under one policy.
#[derive(Debug)]
struct LevelCache {
    policy: Box<dyn EvictionPolicy<(u64, u8)>>,
    entries: Vec<(u64, f32)>,
    /// Quality of a block of which this many entries are held, from 1.
    quality: Vec<f64>,
    capacity: u64,
}

impl LevelCache {
    fn new(kind: PolicyKind, unit: EvictedUnit, levels: &LevelQualities, capacity: u64) -> Self {
        let entries = unit.entries(levels);
        let quality = levels.quality[levels.quality.len() - entries.len()..].to_vec();
        Self { policy: kind.build(), entries, quality, capacity }
    }

    /// Adds the blocks found, up to the first one that is not.
    fn lookup(&self, request: &Request, found: &mut FoundBlocks) {
        let held = |block: &u64| {
            (0..self.entries.len()).take_while(|entry| self.policy.contains(&(*block, *entry as u8))).count()
        };
        for held in request.blocks.iter().map(held).take_while(|held| *held > 0) {
            found.blocks += 1;
            found.quality += self.quality[held - 1];
            found.bytes += self.entries[..held].iter().map(|(bytes, _)| bytes).sum::<u64>();
        }
    }

    fn store(&mut self, index: usize, access: &Access<u64>, block: u64) {
        for (entry, (bytes, worth)) in self.entries.iter().enumerate() {
            let parent = match entry.checked_sub(1) {
                Some(before) => Some((block, before as u8)),
                None => access.parent.map(|parent| (parent, 0)),
            };
            let offset = index * self.entries.len() + entry;
            let access = Access::new(access.now, access.class)
                .bytes(*bytes)
                .at(u32::try_from(offset).unwrap_or(u32::MAX), parent)
                .paced(access.pace_seconds)
                .worth(*worth);
            let key = (block, entry as u8);
            if !self.policy.touch(&key, &access) {
                self.policy.insert(key, &access);
            }
            while self.policy.bytes() > self.capacity && self.policy.evict(access.now).is_some() {}
        }
    }
}

/// Blocks found: how many, and the sums of their qualities and of the bytes of their levels.
#[derive(Debug, Clone, Copy, Default)]
struct FoundBlocks {
    blocks: u64,
    quality: f64,
    bytes: u64,
}

/// What a cache of one capacity finds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QualityHits {
    /// The quality-weighted hit ratio: the mean over all requested blocks of the quality at which a block is found, 0 for one
    /// that is not.
    pub quality: f64,
    /// Mean size of a block that is found, in bytes: that of its levels that are there. 0 if none is found.
    pub bytes: f64,
}

/// Replays a trace through caches of blocks with these levels, at each capacity, a share of the bytes of all unique blocks.
///
/// # Errors
/// As [`replay`](super::replay()).
pub fn quality_weighted_hits(
    trace: &TraceSource,
    kind: PolicyKind,
    unit: EvictedUnit,
    levels: &LevelQualities,
    capacities: &[f64],
) -> Result<Vec<QualityHits>, TraceError> {
    let (mut profile, mut classes) = (TraceProfile::default(), ClassTable::default());
    trace.for_each(|request| profile.note(request, class_of(request, &mut classes)))?;
    let profile = profile.finished()?;
    let bytes = (profile.unique_blocks * levels.total()) as f64;
    let cache = |capacity: &f64| LevelCache::new(kind, unit, levels, (bytes * capacity) as u64);
    let mut caches: Vec<(LevelCache, FoundBlocks)> =
        capacities.iter().map(|capacity| (cache(capacity), FoundBlocks::default())).collect();
    let mut classes = ClassTable::default();
    trace.for_each_again(&profile, |request| {
        let class = class_of(request, &mut classes);
        for (cache, found) in &mut caches {
            cache.lookup(request, found);
            for (index, block) in request.blocks.iter().enumerate() {
                cache.store(index, &access_to(request, class, index), *block);
            }
        }
    })?;
    let hits = |(_, found): (LevelCache, FoundBlocks)| QualityHits {
        quality: found.quality / profile.block_accesses as f64,
        bytes: found.bytes as f64 / found.blocks.max(1) as f64,
    };
    Ok(caches.into_iter().map(hits).collect())
}

#[cfg(test)]
mod tests {
    use kvasir_eviction::Moment;

    use super::*;

    #[test]
    fn the_shipped_levels_are_those_of_the_measurement() {
        let levels = LevelQualities::shipped();
        assert_eq!(levels.bytes, [801, 513, 10_360, 34_108]);
        assert!(levels.quality.is_sorted() && levels.quality[0] > 0.95 && levels.quality[3] < 0.99);
    }

    /// Room for one whole block, or for the bases of two. Two blocks are used in turn.
    #[test]
    fn bases_stay_where_whole_objects_do_not_fit() {
        let levels = LevelQualities { bytes: vec![10, 90], quality: vec![0.9, 1.0] };
        let request = |step: u64| Request {
            at: Moment::from_millis(step * 1_000),
            input_tokens: 512,
            blocks: vec![step % 2],
            turn: 1,
            ..Default::default()
        };
        let trace = TraceSource::Requests((0..100).map(request).collect());
        let hits = |unit, kind| quality_weighted_hits(&trace, kind, unit, &levels, &[0.55]).unwrap()[0];
        for kind in PolicyKind::ALL {
            let found = hits(EvictedUnit::Object, kind);
            assert!(found.quality < 0.6, "{kind}");
            assert!(found.bytes == if found.quality > 0.0 { 100.0 } else { 0.0 }, "{kind}: {}", found.bytes);
        }
        for unit in [EvictedUnit::Level, EvictedUnit::LevelByQuality] {
            let found = hits(unit, PolicyKind::Adaptive);
            assert!((0.88..0.98).contains(&found.quality), "{unit:?}: {found:?}");
            // Some with their refinement, at 1.0, and the others at 0.9.
            assert!((10.0..100.0).contains(&found.bytes), "{unit:?}: {found:?}");
        }
    }
}
