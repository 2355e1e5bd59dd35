//! Bytes that are kept for routes of which this replica is the first.

use super::*;

#[tokio::test]
async fn bytes_are_of_the_first_replica_while_their_last_use_was() {
    let bench = bench(48_000, 1_000_000, PolicyKind::Lru);
    let samples: Vec<_> = (0..30).map(|seed| sample(seed, &[1_000, 2_000])).collect();
    let read = async |of: &Sample, at: u64, is_first: bool| {
        bench.clock.set(at);
        let context = HotContext { is_first, at: Some(Moment::from_millis(at)), ..HotContext::UNKNOWN };
        let parts = bench.tier.read(&of.object, 0..2_000, context, bench.store.fetch(&of.content));
        parts.try_collect::<Vec<_>>().await.expect("reads");
        bench.settled().await;
    };
    let first = || {
        let usage = bench.tier.usage();
        (usage.ram_first_bytes, usage.disk_first_bytes)
    };
    read(&samples[0], 1, true).await;
    read(&samples[1], 2, false).await;
    assert_eq!(first(), (2_000, 0));
    read(&samples[0], 3, false).await;
    read(&samples[1], 4, true).await;
    assert_eq!(first(), (2_000, 0), "the last use counts");
    for (at, sample) in samples.iter().enumerate().skip(2) {
        read(sample, 10 + at as u64, false).await;
    }
    assert_eq!(first(), (0, 2_000), "it left memory for the disk");
    bench.tier.remove(&samples[1].object);
    bench.settled().await;
    assert_eq!(first(), (0, 0));
}
