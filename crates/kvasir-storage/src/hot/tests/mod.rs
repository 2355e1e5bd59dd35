//! The tier against a store that counts.

mod kept_bytes;
mod memory;
mod write_back;

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use kvasir_container::{ChunkBuilder, ChunkMeta, Head, SectionId};
use kvasir_store::{StoreError, layout::ChunkKey};
use kvasir_types::{ChainLink, Level, Medium};
use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::{error::ChunkError, limits};

#[derive(Debug, Default)]
struct ManualClock(AtomicU64);

impl ManualClock {
    fn set(&self, millis: u64) {
        self.0.store(millis * 1_000, Ordering::SeqCst);
    }
}

impl HotClock for ManualClock {
    fn now(&self) -> Moment {
        Moment::from_micros(self.0.load(Ordering::SeqCst))
    }
}

#[derive(Debug, Default)]
struct Counts(Mutex<Vec<(Medium, u64)>>, Mutex<Vec<(Medium, EvictReason)>>);

impl HotObserver for Counts {
    fn served(&self, medium: Medium, _: kvasir_eviction::ClassId, bytes: u64) {
        self.0.lock().push((medium, bytes));
    }

    fn evicted(&self, medium: Medium, reason: EvictReason, _: f64, _: f64) {
        self.1.lock().push((medium, reason));
    }
}

/// A chunk object and the store that it lies in.
#[derive(Debug)]
struct Sample {
    object: Arc<HotObject>,
    content: bytes::Bytes,
}

/// A real chunk object of `tenant` whose levels end at `levels`, the first of them above 500.
fn sample_of(tenant: &str, seed: u64, levels: &[u64]) -> Sample {
    let model_id = kvasir_types::ModelId::from([7; 32]);
    let tokens: Vec<u32> = (0..16).map(|token| token + 100 * seed as u32).collect();
    let build = |first: u64| {
        let mut meta =
            ChunkMeta::new(model_id, kvasir_types::ProfileHash::of(b"p"), ChainLink::first([3; 32].into()));
        meta.level_count = levels.len() as u8;
        let mut builder = ChunkBuilder::new(meta, tokens.clone()).unwrap();
        let mut start = levels[0] - first;
        for (level, end) in levels.iter().enumerate() {
            // Sections of at most 200 KB: as many as it takes. Those of the first level are cut as if it began with the
            // object, so their number does not depend on the length of the head.
            let level_start = if level == 0 { 0 } else { start };
            let mut scope = 0;
            while start < *end {
                let bytes = (*end - start).min(200_000 - (start - level_start) % 200_000);
                let id = SectionId { scope, band: 0, level: Level(level as u8), flags: 0 };
                let piece = (0..bytes).map(|at| (at.wrapping_mul(31) + seed * 7 + at / 251) as u8).collect();
                builder.section(id, vec![Some(piece)]).unwrap();
                (start, scope) = (start + bytes, scope + 1);
            }
        }
        builder.finish().unwrap()
    };
    // The head grows with the number of sections only, so its length in any object of so many is its length.
    let head_bytes = Head::parse(&build(levels[0])).unwrap().header.head_bytes();
    let content = bytes::Bytes::from(build(levels[0] - head_bytes));
    let head = Head::parse(&content).unwrap();
    assert_eq!(head.header.object_bytes(), *levels.last().unwrap());
    let key = ChunkKey {
        tenant: tenant.parse().unwrap(),
        model_id,
        seq_hash: head.header.seq_hash,
        object_digest: kvasir_types::ObjectDigest::of(&content),
    };
    Sample { object: Arc::new(HotObject::new(&key, &head)), content }
}

fn sample(seed: u64, levels: &[u64]) -> Sample {
    sample_of("acme", seed, levels)
}

#[derive(Debug, Default)]
struct Store {
    requests: AtomicUsize,
    /// Requests that break off midway from now on.
    fails: AtomicUsize,
    /// Requests that bring a flipped bit from now on.
    flips: AtomicUsize,
}

/// Counts down to zero; whether there was something left.
fn spent(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Store {
    fn fetch(self: &Arc<Self>, content: &bytes::Bytes) -> RangeReader {
        let (store, content) = (Arc::clone(self), content.clone());
        Arc::new(move |range| {
            store.requests.fetch_add(1, Ordering::SeqCst);
            let (fails, flips) = (spent(&store.fails), spent(&store.flips));
            let mut all = content[range.start as usize..range.end as usize].to_vec();
            async move {
                tokio::task::yield_now().await;
                if flips {
                    let middle = all.len() / 2;
                    all[middle] ^= 1;
                }
                let part = |bytes: &[u8]| Ok(bytes::Bytes::copy_from_slice(bytes));
                let mut parts: Vec<Result<_, ChunkError>> = all.chunks(60_000).map(part).collect();
                if fails {
                    parts.truncate(parts.len() / 2);
                    parts.push(Err(StoreError::own("reading an object", "a test").into()));
                }
                Ok(stream::iter(parts).boxed())
            }
            .boxed()
        })
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

struct Bench {
    tier: Arc<HotTier>,
    clock: Arc<ManualClock>,
    counts: Arc<Counts>,
    store: Arc<Store>,
    folder: tempfile::TempDir,
}

fn settings(folder: &std::path::Path, ram_bytes: u64, disk_bytes: u64, policy: PolicyKind) -> HotSettings {
    let directory = folder.join("hot");
    HotSettings {
        ram_bytes,
        disk_bytes,
        directory,
        policy,
        tenant_share_max: 1.0,
        read_ahead_chunks: 0,
        keys: None,
    }
}

fn bench(ram_bytes: u64, disk_bytes: u64, policy: PolicyKind) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path(), ram_bytes, disk_bytes, policy);
    bench_with(folder, settings)
}

fn bench_with(folder: tempfile::TempDir, settings: HotSettings) -> Bench {
    let (clock, counts) = (Arc::new(ManualClock::default()), Arc::new(Counts::default()));
    let tier = HotTier::open(settings, clock.clone(), counts.clone()).unwrap();
    Bench { tier, clock, counts, store: Arc::new(Store::default()), folder }
}

impl Bench {
    async fn read(&self, of: &Sample, range: std::ops::Range<u64>) -> Result<Vec<u8>, ChunkError> {
        let parts = self.tier.read(&of.object, range, HotContext::UNKNOWN, self.store.fetch(&of.content));
        Ok(parts.try_collect::<Vec<_>>().await?.concat())
    }

    /// Reads a range and compares.
    async fn check(&self, of: &Sample, range: std::ops::Range<u64>) {
        let read = self.read(of, range.clone()).await.unwrap();
        assert!(read == of.content[range.start as usize..range.end as usize]);
    }

    async fn settled(&self) {
        while !self.tier.is_settled() {
            tokio::task::yield_now().await;
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stampede_makes_one_request() {
    let bench = Arc::new(bench(16 << 20, 0, PolicyKind::Adaptive));
    let sample = Arc::new(sample(1, &[50_000, 150_000, 300_000]));
    let readers = (0..1_000).map(|_| {
        let (bench, sample) = (Arc::clone(&bench), Arc::clone(&sample));
        tokio::spawn(async move { bench.check(&sample, 0..300_000).await })
    });
    for read in futures::future::join_all(readers).await {
        read.unwrap();
    }
    assert_eq!(bench.store.requests(), 1);
}

#[tokio::test]
async fn refinements_go_before_bases() {
    // Room for the bases of four objects and little more.
    let bench = bench(5_200, 0, PolicyKind::Adaptive);
    let samples: Vec<_> = (0..4).map(|seed| sample(seed, &[1_000, 2_500, 5_000])).collect();
    for (seed, sample) in samples.iter().enumerate() {
        bench.clock.set(seed as u64 * 10);
        bench.check(sample, 0..5_000).await;
        assert!(bench.tier.usage().ram_bytes <= 4_550);
    }
    for sample in &samples {
        assert_eq!(bench.tier.medium(&sample.object, &(0..1_000)), Medium::Cpu, "{:?}", bench.tier.usage());
        assert_eq!(bench.tier.medium_of_prefix(sample.object.chunk(), 1_000), Medium::Cpu);
        assert_eq!(bench.tier.medium_of_prefix(sample.object.chunk(), 1_001), Medium::Object);
    }
    let prefixes = [1_000, 1_001].map(|bytes| (samples[0].object.key(0), bytes)).repeat(200);
    assert_eq!(bench.tier.media(&prefixes), [Medium::Cpu, Medium::Object].repeat(200));
    assert_eq!(bench.tier.usage().ram_level_bytes[0], 4_000);
    assert_eq!(bench.tier.usage().ram_level_bytes.iter().skip(1).sum::<u64>(), 0);
    // With LRU the last object would have pushed the others out.
    let lru = self::bench(5_200, 0, PolicyKind::Lru);
    for sample in &samples {
        lru.check(sample, 0..5_000).await;
    }
    assert_eq!(lru.tier.medium(&samples[0].object, &(0..1_000)), Medium::Object);
}

#[tokio::test]
async fn what_leaves_memory_is_found_on_disk_also_after_a_restart() {
    let bench = bench(48_000, 1_000_000, PolicyKind::Lru);
    let samples: Vec<_> = (0..100).map(|seed| sample(seed, &[1_000, 2_000])).collect();
    for sample in &samples {
        bench.check(sample, 0..2_000).await;
        bench.settled().await;
    }
    assert_eq!(bench.store.requests(), 100);
    assert_eq!(bench.tier.medium(&samples[3].object, &(0..2_000)), Medium::Disk);
    bench.check(&samples[3], 100..900).await;
    assert_eq!(bench.store.requests(), 100, "served from disk");
    bench.settled().await;

    let in_memory: Vec<bool> =
        samples.iter().map(|s| bench.tier.medium(&s.object, &(0..2_000)) == Medium::Cpu).collect();
    let settings = settings(bench.folder.path(), 48_000, 1_000_000, PolicyKind::Lru);
    let tier = HotTier::open(settings, bench.clock.clone(), bench.counts.clone()).unwrap();
    let again = Bench { tier, ..bench };
    for (sample, in_memory) in samples.iter().zip(in_memory) {
        if !in_memory {
            assert_eq!(again.tier.medium(&sample.object, &(0..2_000)), Medium::Disk);
            assert_eq!(again.tier.first_frame(sample.object.chunk()).await.unwrap(), sample.content[..1_000]);
            again.check(sample, 0..2_000).await;
        }
    }
    assert_eq!(again.store.requests(), 100, "everything that left memory before the restart is still there");
    assert!(again.tier.usage().ram_bytes <= 48_000 && again.tier.usage().disk_bytes <= 1_000_000);
}

#[tokio::test]
async fn a_torn_file_is_never_served() {
    let bench = bench(16_000, 100_000, PolicyKind::Lru);
    let samples: Vec<_> = (0..20).map(|seed| sample(seed, &[1_000])).collect();
    for sample in &samples {
        bench.check(sample, 0..1_000).await;
        bench.settled().await;
    }
    assert_eq!(bench.tier.medium(&samples[0].object, &(0..1_000)), Medium::Disk);
    for shard in std::fs::read_dir(bench.folder.path().join("hot/acme")).unwrap() {
        for file in std::fs::read_dir(shard.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[600] ^= 0x40;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    let before = bench.store.requests();
    bench.check(&samples[0], 0..1_000).await;
    assert_eq!(bench.store.requests(), before + 1, "read again from the store");
    assert!(bench.counts.1.lock().contains(&(Medium::Disk, EvictReason::Corrupt)));
    let asked = [sample(99, &[1_000]).object.chunk().clone(), samples[0].object.chunk().clone()];
    let evictions = bench.tier.recent_evictions(&asked);
    assert!(evictions.iter().all(|(index, _)| *index == 1), "of another object nothing is known");
    assert_eq!(evictions[0].1.reason, EvictReason::Corrupt, "the latest first");
    assert_eq!(evictions.last().unwrap().1.medium, Medium::Cpu);
}

#[tokio::test]
async fn bytes_that_came_wrong_are_asked_for_again_and_never_kept() {
    let bench = bench(1 << 20, 0, PolicyKind::Adaptive);
    let wrong_once = sample(1, &[1_000, 90_000]);
    bench.store.flips.store(1, Ordering::SeqCst);
    bench.check(&wrong_once, 0..90_000).await;
    assert_eq!(bench.store.requests(), 2);
    let wrong_twice = sample(2, &[1_000, 90_000]);
    bench.store.flips.store(2, Ordering::SeqCst);
    let error = bench.read(&wrong_twice, 0..90_000).await.unwrap_err();
    assert!(matches!(error, ChunkError::Corrupt { .. }), "{error}");
    assert_eq!(bench.store.requests(), 4);
    bench.check(&wrong_twice, 0..90_000).await;
    // Another object's bytes in the place of its head.
    let (mine, other) = (sample(3, &[1_000]), sample(4, &[1_000]));
    let parts =
        bench.tier.read(&mine.object, 0..1_000, HotContext::UNKNOWN, bench.store.fetch(&other.content));
    assert!(parts.try_collect::<Vec<_>>().await.is_err());
    bench.check(&mine, 0..1_000).await;
}

#[tokio::test]
async fn a_failed_read_is_an_error_and_leaves_nothing_wrong_behind() {
    let bench = bench(1 << 20, 0, PolicyKind::Adaptive);
    let sample = sample(1, &[100_000, 300_000]);
    bench.store.fails.store(1, Ordering::SeqCst);
    assert!(bench.read(&sample, 0..300_000).await.is_err());
    bench.check(&sample, 0..300_000).await;
    let before = bench.store.requests();
    bench.check(&sample, 0..300_000).await;
    assert_eq!(bench.store.requests(), before);
}

#[tokio::test]
async fn written_objects_are_hits_and_removed_ones_are_not() {
    let bench = bench(1 << 20, 0, PolicyKind::Adaptive);
    let written = sample(1, &[1_000, 2_000]);
    let mut space = bench.tier.space(&written.object, 0).unwrap();
    space.copy_from_slice(&written.content[..1_000]);
    bench.tier.offer(&written.object, 0, HotContext::UNKNOWN, space);
    assert_eq!(bench.tier.medium(&written.object, &(0..1_000)), Medium::Cpu);
    assert_eq!(bench.tier.medium(&written.object, &(0..1_001)), Medium::Object);
    bench.check(&written, 0..1_000).await;
    assert_eq!(bench.store.requests(), 0);
    bench.tier.remove(&written.object);
    assert_eq!(bench.tier.medium(&written.object, &(0..1_000)), Medium::Object);
    let evictions = bench.tier.recent_evictions(&[written.object.chunk().clone()]);
    assert_eq!(evictions[0].1.reason, EvictReason::Removed);
    assert_eq!(bench.tier.usage(), HotUsage { ram_level_bytes: vec![0], ..HotUsage::default() });
}

#[tokio::test]
async fn what_is_read_ahead_waits_apart_until_it_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let lru = settings(folder.path(), 64_000, 0, PolicyKind::Lru);
    let bench = bench_with(folder, HotSettings { read_ahead_chunks: 2, ..lru });
    let samples: Vec<_> = (0..6).map(|seed| sample(seed, &[1_000, 2_000])).collect();
    for sample in &samples {
        let fetch = bench.store.fetch(&sample.content);
        bench.tier.read_ahead(&sample.object, 0..1_000, HotContext::UNKNOWN, fetch).await;
    }
    // A sixteenth of the memory is 4,000 bytes: the first two had to go.
    assert_eq!((bench.tier.usage().ram_frames, bench.tier.usage().ram_bytes), (0, 4_000));
    let medium = |sample: &Sample| bench.tier.medium_of_prefix(sample.object.chunk(), 1_000);
    assert_eq!(samples.iter().map(medium).filter(|medium| *medium == Medium::Cpu).count(), 4);
    assert!(bench.counts.0.lock().is_empty(), "nobody was served");
    bench.check(&samples[5], 0..1_000).await;
    assert_eq!((bench.tier.usage().ram_frames, bench.store.requests()), (1, 6));
    assert_eq!(*bench.counts.0.lock(), [(Medium::Cpu, 1_000)]);
}

#[test]
fn start_up_with_many_frames_is_a_listing() {
    let folder = tempfile::tempdir().unwrap();
    let shard = folder.path().join("hot/acme/00");
    std::fs::create_dir_all(&shard).unwrap();
    for object in 0..5_000 {
        std::fs::write(shard.join(format!("{object:032x}-00000000-00000064-00")), b"never read at start")
            .unwrap();
    }
    let settings = settings(folder.path(), 0, 400_000, PolicyKind::Adaptive);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _guard = runtime.enter();
    let tier = HotTier::open(settings, Arc::new(MonotonicClock), Arc::new(NoHotObserver)).unwrap();
    assert_eq!((tier.usage().disk_frames, tier.usage().disk_bytes), (4_000, 400_000));
    assert_eq!(std::fs::read_dir(shard).unwrap().count(), 4_000, "what does not fit is deleted");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn reads_are_exact_and_memory_is_bounded(
        reads in prop::collection::vec((0..6u64, 0..30_000u64, 0..30_000u64, 0..60_000u64), 1..40),
        ram in 0..60_000u64,
        disk in 0..60_000u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for policy in PolicyKind::ALL {
                let bench = bench(ram, disk, policy);
                let samples: Vec<_> = (0..6).map(|seed| sample(seed, &[5_000, 12_000, 30_000])).collect();
                for (seed, from, to, millis) in &reads {
                    bench.clock.set(millis * 10);
                    let range = *from.min(to)..*from.max(to);
                    bench.check(&samples[*seed as usize], range).await;
                    let usage = bench.tier.usage();
                    assert!(usage.ram_bytes <= ram && usage.disk_bytes <= disk);
                    assert!(usage.writing_bytes <= limits::HOT_WRITING_BYTES_MIN);
                }
                bench.settled().await;
            }
        });
    }
}

const _: () = assert!(limits::HOT_FETCH_BYTES >= limits::HOT_FRAME_BYTES);

/// First levels around the lengths at which one section more is needed, with and without the head.
#[test]
fn samples_end_their_levels_where_they_are_told() {
    for end in [600, 199_999, 200_001, 400_000, 400_001].into_iter().chain((400_000..402_000).step_by(16)) {
        assert_eq!(sample(5, &[end]).object.bytes(), end);
    }
    assert_eq!(sample(5, &[600, 900_600, 1_800_600]).object.bytes(), 1_800_600);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn frames_tile_the_object_and_prove_their_bytes(
        steps in prop::collection::vec(600..900_000u64, 1..4),
        from in 0..2_500_000u64,
        length in 1..2_000_000u64,
        flip in any::<usize>(),
    ) {
        let levels: Vec<u64> = steps.iter().scan(0, |end, step| { *end += step; Some(*end) }).collect();
        let Sample { object, content } = sample(5, &levels);
        let mut at = 0;
        for frame in 0..object.frames() {
            let range = object.range(frame);
            prop_assert_eq!(range.start, at);
            prop_assert!(range.end > at && range.end - at <= limits::HOT_FRAME_BYTES);
            let crosses = levels.iter().any(|end| range.start < *end && *end < range.end);
            prop_assert!(!crosses, "a frame never holds two levels");
            let bytes = &content[range.start as usize..range.end as usize];
            prop_assert!(object.verify(frame, bytes));
            prop_assert!(!object.verify(frame, &bytes[1..]) && !object.verify(frame + 1, bytes));
            let mut flipped = bytes.to_vec();
            let place = flip % flipped.len();
            flipped[place] ^= 0x10;
            prop_assert!(!object.verify(frame, &flipped), "byte {place} of frame {frame}");
            at = range.end;
        }
        prop_assert_eq!(at, object.bytes());
        let wanted = from.min(object.bytes())..(from + length).min(object.bytes());
        let frames = object.frames_of(&wanted);
        for frame in 0..object.frames() {
            let range = object.range(frame);
            let overlaps = range.start < wanted.end && wanted.start < range.end && !wanted.is_empty();
            prop_assert_eq!(frames.contains(&frame), overlaps);
        }
    }
}
