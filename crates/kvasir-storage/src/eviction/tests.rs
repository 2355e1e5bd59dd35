//! One property suite that every policy passes, and each policy's own order of victims.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

type Boxed = Box<dyn EvictionPolicy<u64>>;

#[derive(Debug, Clone)]
enum Op {
    Use {
        key: u64,
        offset: u32,
        class: u32,
        bytes: u64,
        parent: Option<u64>,
        pace: Option<f32>,
    },
    Remove(u64),
    Evict,
    Expire,
    /// Sets the clock: to anything, so it leaps and goes back.
    Clock(u64),
    Tick(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = 0..40u64;
    let pace = prop::option::of(prop_oneof![Just(f32::NAN), Just(-1.0), Just(f32::INFINITY), 0.0..1e6f32]);
    let uses = (key.clone(), 0..50u32, 0..400u32, 0..30u64, prop::option::of(key.clone()), pace).prop_map(
        |(key, offset, class, bytes, parent, pace)| Op::Use { key, offset, class, bytes, parent, pace },
    );
    let op = prop_oneof![
        12 => uses,
        2 => key.prop_map(Op::Remove),
        4 => Just(Op::Evict),
        1 => Just(Op::Expire),
        1 => prop_oneof![Just(0), Just(u64::MAX), any::<u64>()].prop_map(Op::Clock),
        6 => (0..10_000_000u64).prop_map(Op::Tick),
    ];
    prop::collection::vec(op, 0..200)
}

/// Class ids as a table gives them out.
fn classes() -> Vec<ClassId> {
    let mut table = ClassTable::default();
    (0..40).map(|kind| table.intern(&request_class("t", &kind.to_string()))).collect()
}

fn request_class(tenant: &str, kind: &str) -> RequestClass {
    RequestClass { tenant: tenant.to_owned(), kind: kind.to_owned(), turn: TurnBucket::First }
}

/// Runs the operations against a plain map and answers the victims.
fn run(policy: &mut Boxed, ops: &[Op]) -> Vec<Option<u64>> {
    let classes = classes();
    let (mut model, mut now, mut victims) = (HashMap::<u64, u64>::new(), 0u64, Vec::new());
    for op in ops {
        let moment = Moment::from_micros(now);
        match *op {
            Op::Use { key, offset, class: number, bytes, parent, pace } => {
                let access = Access::new(moment, classes[number as usize % 40])
                    .bytes(bytes)
                    .at(offset, parent)
                    .paced(pace);
                assert_eq!(policy.touch(&key, &access), model.contains_key(&key));
                if offset % 2 == 0 || !model.contains_key(&key) {
                    policy.insert(key, &access);
                    model.insert(key, bytes);
                }
            }
            Op::Remove(key) => assert_eq!(policy.remove(&key), model.remove(&key).is_some()),
            Op::Evict => {
                let victim = policy.evict(moment);
                assert_eq!(victim.is_none(), model.is_empty());
                victim.iter().for_each(|key| assert!(model.remove(key).is_some(), "{key} was not there"));
                victims.push(victim);
            }
            Op::Expire => {
                let expired = policy.expire(moment);
                expired.iter().for_each(|key| assert!(model.remove(key).is_some(), "{key} was not there"));
            }
            Op::Clock(time) => now = time,
            Op::Tick(micros) => now = now.saturating_add(micros),
        }
        assert_eq!((policy.len(), policy.is_empty()), (model.len(), model.is_empty()));
        assert_eq!(policy.bytes(), model.values().sum::<u64>());
        (0..40).for_each(|key| assert_eq!(policy.contains(&key), model.contains_key(&key)));
    }
    while let Some(victim) = policy.evict(Moment::from_micros(now)) {
        assert!(model.remove(&victim).is_some());
        victims.push(Some(victim));
    }
    assert!(model.is_empty() && policy.bytes() == 0);
    victims
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_policy_keeps_exact_books_and_repeats_itself(ops in ops(), capacity in 0..200u64) {
        for kind in PolicyKind::ALL {
            let first = run(&mut kind.build(capacity), &ops);
            let second = run(&mut kind.build(capacity), &ops);
            prop_assert_eq!(first, second, "{}", kind);
        }
    }

    #[test]
    fn every_tier_stays_within_its_capacity(keys in prop::collection::vec((0..60u64, 0..90u64), 1..300), capacity in 0..80u64) {
        for kind in PolicyKind::ALL {
            let mut policy = kind.build(capacity);
            for (step, (key, bytes)) in keys.iter().enumerate() {
                let access = Access::new(Moment::from_millis(step as u64), ClassId::OTHER).bytes(*bytes);
                serve(&mut policy, *key, &access, capacity);
                prop_assert!(policy.bytes() <= capacity, "{}", kind);
            }
        }
    }

    /// Prefixes stay whole: no block goes while one behind it is present.
    #[test]
    fn adaptive_takes_dependants_first(requests in prop::collection::vec((0..6u64, 1..12u32, 0..100_000u64), 1..80), capacity in 1..60u64) {
        let mut policy = PolicyKind::Adaptive.build(capacity);
        let mut now = 0;
        for (chain, blocks, wait) in requests {
            now += wait;
            let key = |offset: u32| chain * 1_000 + u64::from(offset);
            for offset in 0..blocks {
                let parent = offset.checked_sub(1).map(key);
                let access = Access::new(Moment::from_millis(now), ClassId::OTHER).at(offset, parent);
                serve(&mut policy, key(offset), &access, capacity);
            }
            for chain in 0..6u64 {
                let present: Vec<bool> = (0..12).map(|offset| policy.contains(&(chain * 1_000 + offset))).collect();
                prop_assert!(present.is_sorted_by(|before, after| before >= after), "a hole: {:?}", present);
            }
        }
    }
}

/// What a tier does on an access; `true` for a hit.
fn serve(policy: &mut Boxed, key: u64, access: &Access<u64>, capacity: u64) -> bool {
    let hit = policy.touch(&key, access);
    if !hit {
        policy.insert(key, access);
    }
    while policy.bytes() > capacity && policy.evict(access.now).is_some() {}
    hit
}

fn access(millis: u64) -> Access<u64> {
    Access::new(Moment::from_millis(millis), ClassId::OTHER)
}

fn victims(policy: &mut Boxed, millis: u64, count: usize) -> Vec<u64> {
    (0..count).filter_map(|_| policy.evict(Moment::from_millis(millis))).collect()
}

/// Inserts 1, 2, 3, 4 and then uses 1 twice and 2 once.
fn small(kind: PolicyKind) -> Boxed {
    let mut policy = kind.build(10);
    (1..=4).for_each(|key| policy.insert(key, &access(key)));
    for (millis, key) in [(5, 1), (6, 2), (7, 1)] {
        assert!(policy.touch(&key, &access(millis)));
    }
    policy
}

#[test]
fn simple_policies_have_their_textbook_order() {
    for (kind, order) in [
        (PolicyKind::Fifo, [1, 2, 3, 4]),
        (PolicyKind::Lru, [3, 4, 2, 1]),
        (PolicyKind::Ttl, [3, 4, 2, 1]),
        (PolicyKind::Lfu, [3, 4, 2, 1]),
        (PolicyKind::Gdsf, [3, 4, 2, 1]),
        // The hand passes 1 and 2 and comes back to them.
        (PolicyKind::Sieve, [3, 4, 1, 2]),
        // 1 was used twice in the small queue and moves to the main one.
        (PolicyKind::S3Fifo, [2, 3, 4, 1]),
        (PolicyKind::Workload, [3, 4, 2, 1]),
    ] {
        assert_eq!(victims(&mut small(kind), 8, 9), order, "{kind}");
    }
}

#[test]
fn s3_fifo_remembers_what_it_dropped() {
    let mut policy = PolicyKind::S3Fifo.build(10);
    policy.insert(1, &access(0));
    assert_eq!(policy.evict(Moment::from_millis(1)), Some(1));
    policy.insert(1, &access(2));
    policy.insert(2, &access(3));
    (4..8).for_each(|millis| policy.insert(millis, &access(millis)));
    assert_eq!(victims(&mut policy, 9, 4), [2, 4, 5, 6], "1 came back as a ghost and sits in the main queue");
}

#[test]
fn gdsf_keeps_what_is_small_and_dear() {
    let mut policy = PolicyKind::Gdsf.build(100);
    policy.insert(1, &access(0).bytes(50).recompute(1.0));
    policy.insert(2, &access(0).bytes(1).recompute(1.0));
    policy.insert(3, &access(0).bytes(50).recompute(9.0));
    policy.touch(&3, &access(0).bytes(50).recompute(9.0));
    assert_eq!(victims(&mut policy, 1, 3), [1, 3, 2]);
}

#[test]
fn ttl_expires_what_is_idle_and_survives_a_clock_that_goes_back() {
    let mut policy = PolicyKind::Ttl.build(100);
    policy.insert(1, &access(0));
    policy.insert(2, &access(1));
    policy.touch(&1, &access(200_000));
    let seconds = |s: u64| Moment::from_millis(s * 1_000);
    assert_eq!(policy.expire(seconds(299)), None);
    assert_eq!(policy.expire(seconds(301)), Some(2));
    assert_eq!(policy.expire(seconds(301)), None);
    assert_eq!(policy.expire(Moment::default()), None);
    assert_eq!(policy.expire(Moment::from_micros(u64::MAX)), Some(1));
}

/// Two classes with reuse times of 10 s and 1,000 s: after 100 s idle the quick one is dead, the slow one is not.
#[test]
fn workload_learns_each_class_apart() {
    let mut table = ClassTable::default();
    let quick = table.intern(&request_class("t", "quick"));
    let slow = table.intern(&request_class("t", "slow"));
    let mut policy = PolicyKind::Workload.build::<u64>(1 << 20);
    let mut now = 0;
    for round in 0..40u64 {
        for key in 0..100 {
            let use_of = |key, class, millis| (key, Access::new(Moment::from_millis(millis), class));
            let mut uses = vec![use_of(key, quick, now), use_of(key, quick, now + 10_000)];
            if round % 10 == 0 {
                uses.push(use_of(1_000 + key, slow, now + 20_000));
            }
            for (key, access) in uses {
                serve(&mut policy, key, &access, 1 << 20);
            }
        }
        now += 100_000;
    }
    policy.insert(5_000, &Access::new(Moment::from_millis(now), slow));
    policy.insert(5_001, &Access::new(Moment::from_millis(now + 1), quick));
    let order = victims(&mut policy, now + 100_000, 1_000);
    let place = |key| order.iter().position(|victim| *victim == key);
    assert!(place(5_001) < place(5_000), "the quick class' block is older in its own terms");
}

/// What is known of all classes stands in for a class that was never seen again.
#[test]
fn classes_without_samples_are_judged_by_the_others() {
    for kind in [PolicyKind::Workload, PolicyKind::Adaptive] {
        let mut table = ClassTable::default();
        let known = table.intern(&request_class("t", "known"));
        let fresh = table.intern(&request_class("t", "fresh"));
        let mut policy = kind.build::<u64>(1 << 20);
        for round in 0..60u64 {
            for key in 0..100 {
                let access = Access::new(Moment::from_millis(round * 10_000), known);
                serve(&mut policy, key, &access, 1 << 20);
            }
        }
        policy.insert(9_000, &Access::new(Moment::from_millis(600_000), fresh));
        policy.insert(9_001, &Access::new(Moment::from_millis(645_000), known));
        let order = victims(&mut policy, 660_000, 1_000);
        let place = |key| order.iter().position(|victim| *victim == key);
        assert!(place(9_000) < place(9_001), "{kind}: it has been overdue for longer");
        assert_eq!(order.len(), 102, "{kind}");
    }
}

#[test]
fn workload_takes_later_blocks_of_a_request_first() {
    let mut policy = PolicyKind::Workload.build::<u64>(100);
    for request in 0..2u64 {
        for offset in 0..3u32 {
            let key = request * 10 + u64::from(offset);
            policy.insert(key, &access(request).at(offset, None));
        }
    }
    assert_eq!(victims(&mut policy, 5, 6), [2, 1, 0, 12, 11, 10]);
}

#[test]
fn adaptive_starts_as_lru_over_whole_requests() {
    let mut policy = PolicyKind::Adaptive.build::<u64>(100);
    for request in 0..2u64 {
        for offset in 0..3u32 {
            let key = |offset: u32| request * 10 + u64::from(offset);
            let parent = offset.checked_sub(1).map(key);
            policy.insert(key(offset), &access(request * 60_000).at(offset, parent));
        }
    }
    assert_eq!(victims(&mut policy, 70_000, 6), [2, 1, 0, 12, 11, 10]);
}

#[test]
fn adaptive_drops_first_what_came_without_its_base() {
    let mut policy = PolicyKind::Adaptive.build::<u64>(100);
    policy.insert(1, &access(0));
    policy.insert(2, &access(1).at(1, Some(1)));
    policy.insert(9, &access(2).at(7, Some(8)));
    assert_eq!(victims(&mut policy, 3, 3), [9, 2, 1]);
}

/// In a loop that is longer than the cache LRU never hits. Who learns how long the wait is keeps a part.
#[test]
fn adaptive_hits_where_lru_thrashes() {
    let hits = |kind: PolicyKind| {
        let mut policy = kind.build(50);
        let steps = 20_000u64;
        (0..steps).filter(|step| serve(&mut policy, step % 100, &access(step * 1_000), 50)).count()
    };
    assert_eq!(hits(PolicyKind::Lru), 0);
    assert!(hits(PolicyKind::Adaptive) > 5_000, "{}", hits(PolicyKind::Adaptive));
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

    for kind in PolicyKind::ALL {
        let mut policy = kind.build(1_000);
        for (key, class) in ids.iter().cycle().take(4_000).enumerate() {
            let access = Access::new(Moment::from_millis(key as u64), *class).paced(Some(key as f32));
            serve(&mut policy, key as u64, &access, 1_000);
        }
        assert_eq!(policy.len(), 1_000, "{kind}");
    }
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
