//! The property suite that every policy passes, here and in kvasir-lab, which includes this file. What includes it names its
//! policies in `every_policy`.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{Access, ClassId, ClassTable, EvictionPolicy, Moment, RequestClass, TurnBucket, every_policy};

#[derive(Debug, Clone)]
pub(super) enum Op {
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

pub(super) fn ops() -> impl Strategy<Value = Vec<Op>> {
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

pub(super) fn request_class(tenant: &str, kind: &str) -> RequestClass {
    RequestClass { tenant: tenant.to_owned(), kind: kind.to_owned(), turn: TurnBucket::First }
}

/// Runs the operations against a plain map and answers the victims. `expire` takes an entry whose time is over, of a policy
/// that has such.
pub(super) fn run<P: EvictionPolicy<u64> + ?Sized>(
    policy: &mut P,
    ops: &[Op],
    expire: impl Fn(&mut P, Moment) -> Option<u64>,
) -> Vec<Option<u64>> {
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
                let expired = expire(policy, moment);
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
        for ((name, mut one), (_, mut other)) in every_policy(capacity).into_iter().zip(every_policy(capacity)) {
            let first = run(&mut *one, &ops, |_, _| None);
            let second = run(&mut *other, &ops, |_, _| None);
            prop_assert_eq!(first, second, "{}", name);
        }
    }

    #[test]
    fn every_tier_stays_within_its_capacity(keys in prop::collection::vec((0..60u64, 0..90u64), 1..300), capacity in 0..80u64) {
        for (name, mut policy) in every_policy(capacity) {
            for (step, (key, bytes)) in keys.iter().enumerate() {
                let access = Access::new(Moment::from_millis(step as u64), ClassId::OTHER).bytes(*bytes);
                serve(&mut *policy, *key, &access, capacity);
                prop_assert!(policy.bytes() <= capacity, "{}", name);
            }
        }
    }
}

/// A tenant that invents a class for every request.
#[test]
fn every_policy_is_bounded_under_a_hostile_tenant() {
    let mut table = ClassTable::default();
    let ids: Vec<ClassId> =
        (0..100_000).map(|n| table.intern(&request_class("mallory", &n.to_string()))).collect();
    for (name, mut policy) in every_policy(1_000) {
        for (key, class) in ids.iter().cycle().take(4_000).enumerate() {
            let access = Access::new(Moment::from_millis(key as u64), *class).paced(Some(key as f32));
            serve(&mut *policy, key as u64, &access, 1_000);
        }
        assert_eq!(policy.len(), 1_000, "{name}");
    }
}

/// What a tier does on an access; `true` for a hit.
pub(super) fn serve(
    policy: &mut dyn EvictionPolicy<u64>,
    key: u64,
    access: &Access<u64>,
    capacity: u64,
) -> bool {
    let hit = policy.touch(&key, access);
    if !hit {
        policy.insert(key, access);
    }
    while policy.bytes() > capacity && policy.evict(access.now).is_some() {}
    hit
}

pub(super) fn access(millis: u64) -> Access<u64> {
    Access::new(Moment::from_millis(millis), ClassId::OTHER)
}

pub(super) fn victims(policy: &mut dyn EvictionPolicy<u64>, millis: u64, count: usize) -> Vec<u64> {
    (0..count).filter_map(|_| policy.evict(Moment::from_millis(millis))).collect()
}

/// Inserts 1, 2, 3, 4 and then uses 1 twice and 2 once.
pub(super) fn fill_small(policy: &mut dyn EvictionPolicy<u64>) {
    (1..=4).for_each(|key| policy.insert(key, &access(key)));
    for (millis, key) in [(5, 1), (6, 2), (7, 1)] {
        assert!(policy.touch(&key, &access(millis)));
    }
}

/// What is known of all classes stands in for a class that was never seen again.
pub(super) fn judge_a_fresh_class_by_the_others(name: &str, policy: &mut dyn EvictionPolicy<u64>) {
    let mut table = ClassTable::default();
    let known = table.intern(&request_class("t", "known"));
    let fresh = table.intern(&request_class("t", "fresh"));
    for round in 0..60u64 {
        for key in 0..100 {
            let access = Access::new(Moment::from_millis(round * 10_000), known);
            serve(policy, key, &access, 1 << 20);
        }
    }
    policy.insert(9_000, &Access::new(Moment::from_millis(600_000), fresh));
    policy.insert(9_001, &Access::new(Moment::from_millis(645_000), known));
    let order = victims(policy, 660_000, 1_000);
    let place = |key| order.iter().position(|victim| *victim == key);
    assert!(place(9_000) < place(9_001), "{name}: it has been overdue for longer");
    assert_eq!(order.len(), 102, "{name}");
}
