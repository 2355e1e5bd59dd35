//! The property suite over the product's policies, and each policy's own order of victims.

mod property_suite;

use proptest::prelude::*;

use super::*;
use property_suite::{access, fill_small, judge_a_fresh_class_by_the_others, request_class, serve, victims};

/// The policies that the property suite runs over.
fn every_policy(_capacity: u64) -> Vec<(&'static str, Box<dyn EvictionPolicy<u64>>)> {
    PolicyKind::ALL.into_iter().map(|kind| (kind.name(), kind.build())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Prefixes stay whole: no block goes while one behind it is present.
    #[test]
    fn adaptive_takes_dependants_first(requests in prop::collection::vec((0..6u64, 1..12u32, 0..100_000u64), 1..80), capacity in 1..60u64) {
        let mut policy = PolicyKind::Adaptive.build();
        let mut now = 0;
        for (chain, blocks, wait) in requests {
            now += wait;
            let key = |offset: u32| chain * 1_000 + u64::from(offset);
            for offset in 0..blocks {
                let parent = offset.checked_sub(1).map(key);
                let access = Access::new(Moment::from_millis(now), ClassId::OTHER).at(offset, parent);
                serve(&mut *policy, key(offset), &access, capacity);
            }
            for chain in 0..6u64 {
                let present: Vec<bool> = (0..12).map(|offset| policy.contains(&(chain * 1_000 + offset))).collect();
                prop_assert!(present.is_sorted_by(|before, after| before >= after), "a hole: {:?}", present);
            }
        }
    }
}

#[test]
fn lru_has_its_textbook_order() {
    let mut policy = PolicyKind::Lru.build();
    fill_small(&mut *policy);
    assert_eq!(victims(&mut *policy, 8, 9), [3, 4, 2, 1]);
}

#[test]
fn adaptive_judges_classes_without_samples_by_the_others() {
    judge_a_fresh_class_by_the_others("adaptive", &mut *PolicyKind::Adaptive.build());
}

#[test]
fn adaptive_starts_as_lru_over_whole_requests() {
    let mut policy = PolicyKind::Adaptive.build::<u64>();
    for request in 0..2u64 {
        for offset in 0..3u32 {
            let key = |offset: u32| request * 10 + u64::from(offset);
            let parent = offset.checked_sub(1).map(key);
            policy.insert(key(offset), &access(request * 60_000).at(offset, parent));
        }
    }
    assert_eq!(victims(&mut *policy, 70_000, 6), [2, 1, 0, 12, 11, 10]);
}

#[test]
fn adaptive_drops_first_what_came_without_its_base() {
    let mut policy = PolicyKind::Adaptive.build::<u64>();
    policy.insert(1, &access(0));
    policy.insert(2, &access(1).at(1, Some(1)));
    policy.insert(9, &access(2).at(7, Some(8)));
    assert_eq!(victims(&mut *policy, 3, 3), [9, 2, 1]);
}

/// In a loop that is longer than the cache LRU never hits. Who learns how long the wait is keeps a part.
#[test]
fn adaptive_hits_where_lru_thrashes() {
    let hits = |kind: PolicyKind| {
        let mut policy = kind.build();
        let steps = 20_000u64;
        (0..steps).filter(|step| serve(&mut *policy, step % 100, &access(step * 1_000), 50)).count()
    };
    assert_eq!(hits(PolicyKind::Lru), 0);
    assert!(hits(PolicyKind::Adaptive) > 5_000, "{}", hits(PolicyKind::Adaptive));
}

/// A few keys are popular, most come once. Who forgets the uses of an evicted key takes a popular one that comes back for
/// one of these.
#[test]
fn adaptive_remembers_the_uses_of_evicted_entries() {
    let mut policy = PolicyKind::Adaptive.build();
    let (mut state, mut once, mut hits) = (1u64, 1_000u64, 0);
    for step in 0..60_000u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = state >> 33;
        let key = if draw.is_multiple_of(4) {
            // Zipf over 1,000 keys.
            let share = (draw >> 2) as f64 / (1u64 << 29) as f64;
            1_000f64.powf(share) as u64 - 1
        } else {
            once += 1;
            once
        };
        let hit = serve(&mut *policy, key, &access(step * 100), 10);
        hits += u32::from(hit && step >= 30_000);
    }
    // The ten most popular keys have 2,500 of the accesses. Without the memory it has 2,150.
    assert!(hits > 2_280, "{hits}");
}

/// Refinements are worth a small part of a base also after invented classes, paces and values have taken all queues.
#[test]
fn adaptive_tells_values_apart_when_there_are_many_kinds_of_entries() {
    let mut table = ClassTable::default();
    let mut policy = PolicyKind::Adaptive.build();
    for number in 0..4_000u64 {
        let class = table.intern(&request_class(&(number % 60).to_string(), ""));
        let access = Access::new(Moment::from_millis(number), class)
            .paced(Some(4f32.powi((number % 7) as i32)))
            .worth(2f32.powi((number % 97) as i32 - 48));
        policy.insert(number, &access);
    }
    let (low, high) = (10_000, 10_001);
    policy.insert(low, &access(4_000).worth(1e-30));
    policy.insert(high, &access(4_000).worth(1e30));
    let order = victims(&mut *policy, 4_001, 4_002);
    let place = |key: u64| order.iter().position(|victim| *victim == key).expect("all are evicted");
    assert!(place(low) < 400 && place(high) > 3_600, "{} {}", place(low), place(high));
}

#[test]
fn a_hostile_tenant_cannot_use_up_the_classes() {
    let mut table = ClassTable::default();
    let ids: Vec<ClassId> =
        (0..100_000).map(|n| table.intern(&request_class("mallory", &n.to_string()))).collect();
    assert_eq!(table.len(), limits::CLASSES_PER_TENANT_MAX + 1);
    assert_eq!(ids[99_999], ClassId::OTHER);
    let other = table.intern(&request_class("alice", "chat"));
    assert_ne!(other, ClassId::OTHER);
    assert_eq!(table.class(other), Some(&request_class("alice", "chat")));
    for tenant in 0..1_000 {
        table.intern(&request_class(&tenant.to_string(), ""));
    }
    assert!(table.len() <= limits::CLASSES_MAX);
}

#[test]
fn a_follow_up_is_recognised_by_the_end_it_continues() {
    let mut turns = TurnInference::default();
    let seconds = |s: u64| Moment::from_millis(s * 1_000);
    assert_eq!(turns.turn_of(&[0, 1, 2, 3], seconds(0)), (1, None));
    // The last block was partial: its hash has changed.
    assert_eq!(turns.turn_of(&[0, 1, 2, 33, 4, 5], seconds(60)), (2, Some(60.0)));
    assert_eq!(turns.turn_of(&[0, 1, 2, 33, 4, 5, 6], seconds(70)), (3, Some(10.0)));
    assert_eq!(
        turns.turn_of(&[0, 7, 8, 9], seconds(80)),
        (1, None),
        "a shared system prompt is no conversation"
    );
    assert_eq!(turns.turn_of(&[], seconds(80)), (1, None));
}

#[test]
fn names_are_read_back() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
        assert!("arc".parse::<PolicyKind>().unwrap_err().to_string().contains(kind.name()));
    }
}
