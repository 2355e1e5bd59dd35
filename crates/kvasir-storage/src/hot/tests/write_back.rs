//! What is written to disk when a replica ends.

use std::time::Duration;

use super::*;

#[tokio::test]
async fn what_is_in_memory_at_the_end_is_found_on_disk_after_a_restart() {
    let open = |folder: &std::path::Path, disk_bytes| settings(folder, 1 << 20, disk_bytes, PolicyKind::Lru);
    let folder = tempfile::tempdir().unwrap();
    let settings = open(folder.path(), 20_000);
    let bench = bench_with(folder, settings);
    let samples: Vec<_> = (0..20).map(|seed| sample(seed, &[1_000, 2_000])).collect();
    for (at, sample) in samples.iter().enumerate() {
        bench.clock.set(at as u64 * 10);
        bench.check(sample, 0..2_000).await;
    }
    assert_eq!(bench.tier.usage().disk_bytes, 0, "all of it fits into memory");
    assert_eq!(bench.tier.write_back(Duration::ZERO), 0, "there is no time");
    assert_eq!(bench.tier.write_back(Duration::from_secs(600)), 20_000, "the disk has no room for more");
    let tier = HotTier::open(open(bench.folder.path(), 20_000), bench.clock.clone(), bench.counts.clone());
    let again = Bench { tier: tier.unwrap(), ..bench };
    let requests = again.store.requests();
    for sample in &samples[10..] {
        assert_eq!(again.tier.medium(&sample.object, &(0..2_000)), Medium::Disk, "those used last stay");
        again.check(sample, 0..2_000).await;
    }
    assert_eq!(again.store.requests(), requests);
    let without = HotTier::open(open(again.folder.path(), 0), again.clock.clone(), again.counts.clone());
    assert_eq!(without.unwrap().write_back(Duration::from_secs(600)), 0);
}
