//! The tier against a store that counts.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use kvasir_types::Medium;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::{StorageError, limits};

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
    fn served(&self, medium: Medium, _: crate::eviction::ClassId, bytes: u64) {
        self.0.lock().push((medium, bytes));
    }

    fn left(&self, medium: Medium, reason: EvictReason, _: f64, _: f64) {
        self.1.lock().push((medium, reason));
    }
}

/// A store of one object per name, whose bytes follow from name and offset.
#[derive(Debug, Default)]
struct Store {
    requests: AtomicUsize,
    fails: AtomicUsize,
}

fn content(seed: u64, range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| (at.wrapping_mul(31).wrapping_add(seed * 7 + at / 251)) as u8).collect()
}

impl Store {
    fn fetch(self: &Arc<Self>, seed: u64) -> Fetch {
        let store = Arc::clone(self);
        Arc::new(move |range| {
            store.requests.fetch_add(1, Ordering::SeqCst);
            let fails = store.fails.load(Ordering::SeqCst) > 0;
            async move {
                tokio::task::yield_now().await;
                let part = |bytes: &[u8]| Ok(bytes::Bytes::copy_from_slice(bytes));
                let all = content(seed, range);
                let mut parts: Vec<Result<_, StorageError>> = all.chunks(60_000).map(part).collect();
                if fails {
                    parts.truncate(parts.len() / 2);
                    parts.push(Err(StorageError::Store {
                        operation: "testing",
                        source: object_store::Error::NotImplemented {
                            operation: "x".into(),
                            implementer: "y".into(),
                        },
                    }));
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
    HotSettings { ram_bytes, disk_bytes, directory: folder.join("hot"), policy }
}

fn bench(ram_bytes: u64, disk_bytes: u64, policy: PolicyKind) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let (clock, counts) = (Arc::new(ManualClock::default()), Arc::new(Counts::default()));
    let settings = settings(folder.path(), ram_bytes, disk_bytes, policy);
    let tier = HotTier::open(settings, clock.clone(), counts.clone()).unwrap();
    Bench { tier, clock, counts, store: Arc::new(Store::default()), folder }
}

fn object(seed: u64, levels: &[u64]) -> Arc<HotObject> {
    let bytes = levels.last().copied().unwrap_or(0);
    Arc::new(HotObject::new(&"acme".parse().unwrap(), &format!("object {seed}"), levels, bytes))
}

impl Bench {
    async fn read(
        &self,
        seed: u64,
        object: &Arc<HotObject>,
        range: std::ops::Range<u64>,
    ) -> Result<Vec<u8>, StorageError> {
        let parts = self.tier.read(object, range, HotContext::UNKNOWN, self.store.fetch(seed));
        Ok(parts.try_collect::<Vec<_>>().await?.concat())
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
    let bench = Arc::new(bench(16 << 20, 0, PolicyKind::AdaptiveCost));
    let object = object(1, &[50_000, 150_000, 300_000]);
    let readers = (0..1_000).map(|_| {
        let (bench, object) = (Arc::clone(&bench), Arc::clone(&object));
        tokio::spawn(async move { bench.read(1, &object, 0..300_000).await.unwrap() })
    });
    let expected = content(1, 0..300_000);
    for read in futures::future::join_all(readers).await {
        assert!(read.unwrap() == expected);
    }
    assert_eq!(bench.store.requests(), 1);
}

#[tokio::test]
async fn refinements_go_before_bases() {
    // Room for the bases of four objects and little more.
    let bench = bench(450, 0, PolicyKind::AdaptiveCost);
    let objects: Vec<_> = (0..4).map(|seed| object(seed, &[100, 250, 500])).collect();
    for (seed, object) in objects.iter().enumerate() {
        bench.clock.set(seed as u64 * 10);
        bench.read(seed as u64, object, 0..500).await.unwrap();
        assert!(bench.tier.usage().ram_bytes <= 450);
    }
    for object in &objects {
        assert_eq!(bench.tier.medium(object, &(0..100)), Medium::Cpu, "{:?}", bench.tier.usage());
    }
    assert_eq!(bench.tier.usage().level_bytes, [400]);
    // With LRU the last object would have pushed the others out.
    let lru = self::bench(450, 0, PolicyKind::Lru);
    for (seed, object) in objects.iter().enumerate() {
        lru.read(seed as u64, object, 0..500).await.unwrap();
    }
    assert_eq!(lru.tier.medium(&objects[0], &(0..100)), Medium::Object);
}

#[tokio::test]
async fn what_leaves_memory_is_found_on_disk_also_after_a_restart() {
    let bench = bench(1_000, 100_000, PolicyKind::Lru);
    let objects: Vec<_> = (0..20).map(|seed| object(seed, &[500, 1_000])).collect();
    for (seed, object) in objects.iter().enumerate() {
        bench.read(seed as u64, object, 0..1_000).await.unwrap();
    }
    bench.settled().await;
    assert_eq!(bench.store.requests(), 20);
    assert_eq!(bench.tier.medium(&objects[3], &(0..1_000)), Medium::Disk);
    assert_eq!(bench.read(3, &objects[3], 100..900).await.unwrap(), content(3, 100..900));
    assert_eq!(bench.store.requests(), 20, "served from disk");
    bench.settled().await;

    let settings = settings(bench.folder.path(), 1_000, 100_000, PolicyKind::Lru);
    let tier = HotTier::open(settings, bench.clock.clone(), bench.counts.clone()).unwrap();
    let again = Bench { tier, ..bench };
    for seed in 0..19 {
        let object = &objects[seed as usize];
        assert_eq!(again.read(seed, object, 0..1_000).await.unwrap(), content(seed, 0..1_000));
    }
    assert_eq!(again.store.requests(), 20, "everything that left memory before the restart is still there");
    assert!(again.tier.usage().ram_bytes <= 1_000 && again.tier.usage().disk_bytes <= 100_000);
}

#[tokio::test]
async fn a_torn_file_is_never_served() {
    let bench = bench(500, 100_000, PolicyKind::Lru);
    let (first, second) = (object(1, &[500]), object(2, &[500]));
    bench.read(1, &first, 0..500).await.unwrap();
    bench.read(2, &second, 0..500).await.unwrap();
    bench.settled().await;
    let shard =
        std::fs::read_dir(bench.folder.path().join("hot/acme")).unwrap().next().unwrap().unwrap().path();
    let file = std::fs::read_dir(shard).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[100] ^= 0x40;
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(bench.read(1, &first, 0..500).await.unwrap(), content(1, 0..500));
    assert_eq!(bench.store.requests(), 3, "read again from the store");
    assert!(bench.counts.1.lock().contains(&(Medium::Disk, EvictReason::Corrupt)));
}

#[tokio::test]
async fn a_failed_read_is_an_error_and_leaves_nothing_wrong_behind() {
    let bench = bench(1 << 20, 0, PolicyKind::AdaptiveCost);
    let object = object(1, &[100_000, 300_000]);
    bench.store.fails.store(1, Ordering::SeqCst);
    assert!(bench.read(1, &object, 0..300_000).await.is_err());
    bench.store.fails.store(0, Ordering::SeqCst);
    assert_eq!(bench.read(1, &object, 0..300_000).await.unwrap(), content(1, 0..300_000));
    let before = bench.store.requests();
    bench.read(1, &object, 0..300_000).await.unwrap();
    assert_eq!(bench.store.requests(), before);
}

#[tokio::test]
async fn written_and_prefetched_objects_are_hits_and_removed_ones_are_not() {
    let bench = bench(1 << 20, 0, PolicyKind::AdaptiveCost);
    let (written, fetched) = (object(1, &[1_000, 2_000]), object(2, &[1_000, 2_000]));
    bench.tier.offer(&written, HotContext::UNKNOWN, &content(1, 0..1_500));
    assert_eq!(bench.tier.medium(&written, &(0..1_000)), Medium::Cpu);
    assert_eq!(bench.tier.medium(&written, &(0..1_001)), Medium::Object, "half a frame is none");
    bench.tier.prefetch(&fetched, 0..1_000, HotContext::UNKNOWN, bench.store.fetch(2));
    bench.settled().await;
    assert_eq!(bench.tier.medium(&fetched, &(0..1_000)), Medium::Cpu);
    assert!(bench.counts.0.lock().is_empty(), "a prefetch serves nobody");
    assert_eq!(bench.read(2, &fetched, 0..1_000).await.unwrap(), content(2, 0..1_000));
    assert_eq!(*bench.counts.0.lock(), [(Medium::Cpu, 1_000)]);
    bench.tier.remove(&fetched);
    assert_eq!(bench.tier.medium(&fetched, &(0..1_000)), Medium::Object);
}

#[tokio::test]
async fn a_tier_without_room_passes_everything_through() {
    let bench = bench(0, 0, PolicyKind::AdaptiveCost);
    let object = object(1, &[3 << 20]);
    assert_eq!(bench.read(1, &object, 5..(3 << 20)).await.unwrap(), content(1, 5..(3 << 20)));
    assert!(bench.store.requests() <= object.frames() as usize);
    assert_eq!(bench.tier.usage().ram_bytes, 0);
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
    let settings = settings(folder.path(), 0, 400_000, PolicyKind::AdaptiveCost);
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
            for policy in [PolicyKind::AdaptiveCost, PolicyKind::Lru, PolicyKind::Ttl] {
                let bench = bench(ram, disk, policy);
                let objects: Vec<_> = (0..6).map(|seed| object(seed, &[5_000, 12_000, 30_000])).collect();
                for (seed, from, to, millis) in &reads {
                    bench.clock.set(millis * 10);
                    let range = *from.min(to)..*from.max(to);
                    let read = bench.read(*seed, &objects[*seed as usize], range.clone()).await.unwrap();
                    assert_eq!(read, content(*seed, range));
                    let usage = bench.tier.usage();
                    assert!(usage.ram_bytes <= ram && usage.disk_bytes <= disk);
                }
                bench.settled().await;
            }
        });
    }
}

const _: () = assert!(limits::HOT_FLIGHT_BYTES >= limits::HOT_FRAME_BYTES);
