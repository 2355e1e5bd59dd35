//! The property suite over all policies, and each policy's own order of victims.

mod published;

#[path = "../../../../../kvasir-eviction/src/tests/property_suite.rs"]
mod property_suite;

use kvasir_eviction::{Access, ClassId, ClassTable, Moment, RequestClass, TurnBucket};
use proptest::prelude::*;

use super::*;
use property_suite::{
    access, fill_small, judge_a_fresh_class_by_the_others, ops, request_class, run, serve, victims,
};

/// The policies that the property suite runs over.
fn every_policy(capacity: u64) -> Vec<(&'static str, Box<dyn EvictionPolicy<u64>>)> {
    ComparedPolicy::ALL.into_iter().map(|policy| (policy.name(), policy.build(capacity))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn ttl_keeps_exact_books_while_entries_expire(ops in ops()) {
        let new = || Ttl::new(limits::TTL_SECONDS_DEFAULT);
        prop_assert_eq!(run(&mut new(), &ops, Ttl::expire), run(&mut new(), &ops, Ttl::expire));
    }
}

#[test]
fn simple_policies_have_their_textbook_order() {
    for (kind, order) in [
        (ComparedPolicy::Fifo, [1, 2, 3, 4]),
        (ComparedPolicy::Ttl, [3, 4, 2, 1]),
        (ComparedPolicy::FrontFirst(Baseline::Lfu), [3, 4, 2, 1]),
        (ComparedPolicy::FrontFirst(Baseline::Gdsf), [3, 4, 2, 1]),
        // The hand passes 1 and 2 and comes back to them.
        (ComparedPolicy::FrontFirst(Baseline::Sieve), [3, 4, 1, 2]),
        // 1 was used twice in the small queue and moves to the main one.
        (ComparedPolicy::FrontFirst(Baseline::S3Fifo), [2, 3, 4, 1]),
        (ComparedPolicy::Workload, [3, 4, 2, 1]),
    ] {
        let mut policy = kind.build(10);
        fill_small(&mut *policy);
        assert_eq!(victims(&mut *policy, 8, 9), order, "{kind}");
    }
}

#[test]
fn s3_fifo_remembers_what_it_dropped() {
    let mut policy = ComparedPolicy::FrontFirst(Baseline::S3Fifo).build(10);
    policy.insert(1, &access(0));
    assert_eq!(policy.evict(Moment::from_millis(1)), Some(1));
    policy.insert(1, &access(2));
    policy.insert(2, &access(3));
    (4..8).for_each(|millis| policy.insert(millis, &access(millis)));
    assert_eq!(
        victims(&mut *policy, 9, 4),
        [2, 4, 5, 6],
        "1 came back as a ghost and sits in the main queue"
    );
}

#[test]
fn gdsf_keeps_what_is_small_and_dear() {
    let mut policy = ComparedPolicy::FrontFirst(Baseline::Gdsf).build(100);
    policy.insert(1, &access(0).bytes(50).worth(1.0));
    policy.insert(2, &access(0).bytes(1).worth(1.0));
    policy.insert(3, &access(0).bytes(50).worth(9.0));
    policy.touch(&3, &access(0).bytes(50).worth(9.0));
    assert_eq!(victims(&mut *policy, 1, 3), [1, 3, 2]);
}

#[test]
fn ttl_expires_what_is_idle_and_survives_a_clock_that_goes_back() {
    let mut policy = Ttl::new(limits::TTL_SECONDS_DEFAULT);
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
    let mut policy = ComparedPolicy::Workload.build::<u64>(1 << 20);
    let mut now = 0;
    for round in 0..40u64 {
        for key in 0..100 {
            let use_of = |key, class, millis| (key, Access::new(Moment::from_millis(millis), class));
            let mut uses = vec![use_of(key, quick, now), use_of(key, quick, now + 10_000)];
            if round % 10 == 0 {
                uses.push(use_of(1_000 + key, slow, now + 20_000));
            }
            for (key, access) in uses {
                serve(&mut *policy, key, &access, 1 << 20);
            }
        }
        now += 100_000;
    }
    policy.insert(5_000, &Access::new(Moment::from_millis(now), slow));
    policy.insert(5_001, &Access::new(Moment::from_millis(now + 1), quick));
    let order = victims(&mut *policy, now + 100_000, 1_000);
    let place = |key| order.iter().position(|victim| *victim == key);
    assert!(place(5_001) < place(5_000), "the quick class' block is older in its own terms");
}

#[test]
fn workload_judges_classes_without_samples_by_the_others() {
    judge_a_fresh_class_by_the_others("workload", &mut *ComparedPolicy::Workload.build(1 << 20));
}

#[test]
fn workload_takes_later_blocks_of_a_request_first() {
    let mut policy = ComparedPolicy::Workload.build::<u64>(100);
    for request in 0..2u64 {
        for offset in 0..3u32 {
            let key = request * 10 + u64::from(offset);
            policy.insert(key, &access(request).at(offset, None));
        }
    }
    assert_eq!(victims(&mut *policy, 5, 6), [2, 1, 0, 12, 11, 10]);
}

#[test]
fn names_are_read_back() {
    for kind in ComparedPolicy::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
        assert!("mru".parse::<ComparedPolicy>().unwrap_err().to_string().contains(kind.name()));
    }
}
