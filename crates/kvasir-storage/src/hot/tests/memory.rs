//! What the tier does where memory ends, and where what it has is not what it should be.

use super::*;

/// Readers that take a frame each and then nothing more, of more objects than there is memory for.
#[tokio::test]
async fn slow_readers_hold_no_more_than_the_tiers_memory_and_all_get_their_bytes() {
    let ram_bytes = 24 << 20;
    for disk_bytes in [0, 256 << 20] {
        let bench = bench(ram_bytes, disk_bytes, PolicyKind::Lru);
        let samples: Vec<_> = (0..48).map(|seed| sample(seed, &[700_000, 3 << 20])).collect();
        let open = |sample: &Sample| {
            let fetch = bench.store.fetch(&sample.content);
            bench.tier.read(&sample.object, 5..3 << 20, HotContext::UNKNOWN, fetch)
        };
        let (mut held, mut readers) = (Vec::new(), Vec::new());
        for sample in &samples {
            let mut reader = open(sample);
            held.push(vec![reader.try_next().await.unwrap().unwrap()]);
            readers.push(reader);
        }
        // And so on, part by part, each reader holding whatever it ever got.
        for _ in 0..2 {
            for (reader, parts) in readers.iter_mut().zip(&mut held) {
                parts.extend(reader.try_next().await.unwrap());
            }
        }
        let in_hand: usize = held.iter().flatten().map(bytes::Bytes::len).sum();
        assert!(in_hand > 0 && bench.tier.memory().used() > ram_bytes / 2, "{in_hand}");
        // What slow readers hold keeps nobody else from reading.
        bench.check(&sample(99, &[700_000, 3 << 20]), 0..3 << 20).await;
        for ((sample, reader), mut parts) in samples.iter().zip(readers).zip(held) {
            parts.extend(reader.try_collect::<Vec<_>>().await.unwrap());
            assert!(parts.concat() == sample.content[5..3 << 20]);
        }
        bench.settled().await;
        let memory = bench.tier.memory();
        assert!(memory.peak() <= ram_bytes, "{} of {ram_bytes}", memory.peak());
        // With everybody gone, what is kept is all that is paid for, each frame rounded up by less than 64 KiB.
        let kept = bench.tier.usage();
        let rounded = kept.ram_bytes..=kept.ram_bytes + ((kept.ram_frames as u64) << 16);
        assert!(rounded.contains(&memory.used()), "{} of {rounded:?}", memory.used());
    }
}

/// Frames just above a step of their memory's lengths: the policy, which counts their bytes, makes room before memory ends.
#[tokio::test]
async fn frames_of_any_length_make_room_for_others() {
    for bytes in [65_600, 131_100, 263_000, 600_000, 1_049_000] {
        let bench = bench(24 << 20, 0, PolicyKind::Lru);
        let samples: Vec<_> = (0..500).map(|seed| sample(seed, &[bytes])).collect();
        for sample in &samples {
            bench.check(sample, 0..bytes).await;
        }
        bench.settled().await;
        assert_eq!(bench.tier.medium(&samples[499].object, &(0..bytes)), Medium::Cpu, "{bytes}");
    }
}

/// A bit of memory flips after its frame was verified.
#[tokio::test]
async fn a_damaged_frame_is_dropped_when_it_is_verified_again_and_a_sound_one_stays() {
    let bench = bench(16 << 20, 0, PolicyKind::Lru);
    let sample = sample(1, &[50_000]);
    let mut frame = bench.tier.space(&sample.object, 0).unwrap();
    frame.copy_from_slice(&sample.content);
    frame[49_999] ^= 1;
    bench.tier.offer(&sample.object, 0, HotContext::UNKNOWN, frame);
    assert!(bench.read(&sample, 0..50_000).await.unwrap() != sample.content[..]);
    for _ in 0..2 {
        bench.tier.drop_damaged(&sample.object, &(10..20));
        bench.check(&sample, 0..50_000).await;
        assert_eq!(bench.store.requests(), 1);
    }
    assert_eq!(*bench.counts.1.lock(), [(Medium::Cpu, EvictReason::Corrupt)]);
}

/// A store that misdirects may give the head of another object of the same chunk: its frames are cut elsewhere.
#[tokio::test]
async fn frames_that_another_head_has_cut_are_not_taken_for_this_ones() {
    for disk_bytes in [0, 1 << 20] {
        let bench = bench(1 << 20, disk_bytes, PolicyKind::Lru);
        let (right, other) = (sample(1, &[1_000, 90_000]), sample(2, &[1_300, 80_000]));
        let head = Head::parse(&other.content).unwrap();
        let mistaken = Arc::new(HotObject::new(right.object.chunk(), &head));
        let mistaken = Sample { object: mistaken, content: other.content.clone() };
        bench.check(&mistaken, 0..80_000).await;
        bench.check(&right, 0..90_000).await;
        bench.check(&right, 500..1_000).await;
        assert_eq!(bench.tier.medium(&right.object, &(0..90_000)), Medium::Cpu);
    }
}

#[tokio::test]
async fn a_tier_without_room_passes_everything_through_once() {
    let bench = bench(0, 0, PolicyKind::Adaptive);
    let sample = sample(1, &[3 << 20, 20 << 20]);
    bench.check(&sample, 5..(20 << 20)).await;
    // Runs of 8 MiB, cut at frames: nothing is asked for twice although nothing is kept.
    assert!(bench.store.requests() <= 4, "{}", bench.store.requests());
    assert_eq!(bench.tier.usage().ram_bytes, 0);
}
