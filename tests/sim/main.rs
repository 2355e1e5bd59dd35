//! The storage core of several replicas over one faulty store: one seed, one trace.

#![allow(clippy::print_stdout, reason = "the figures of a run; --nocapture shows them")]

mod world;

use kvasir_tests::faulty::Fault;

use crate::world::{Outcome, World};

/// Seeds of every run.
const SEEDS: u64 = 4;
const ROUNDS: usize = 120;

fn simulate(seed: u64) -> Outcome {
    // One thread and a clock that only moves when everyone waits: the seed decides everything.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let mut world = World::new(seed).await;
        for _ in 0..ROUNDS {
            world.round().await;
        }
        world.end().await
    })
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_wrong_is_delivered() {
    let (mut corruptions, mut kept, mut delivered) = (0, 0, 0);
    let mut injected = [0; Fault::ALL.len()];
    for seed in 0..SEEDS {
        let outcome = simulate(seed);
        assert_eq!(outcome.lost, Vec::<String>::new(), "seed {seed}");
        assert_eq!(outcome.wrong, Vec::<String>::new(), "seed {seed}");
        corruptions += outcome.corruptions;
        kept += outcome.kept;
        delivered += outcome.delivered;
        injected.iter_mut().zip(outcome.injected).for_each(|(sum, n)| *sum += n);
    }
    // The simulation is of no use if it does not get to the point.
    assert!(kept > 60 && delivered > 500, "{kept} kept, {delivered} delivered");
    for (fault, count) in Fault::ALL.iter().zip(injected) {
        assert!(count >= 30, "{fault:?} was injected only {count} times");
    }
    println!(
        "{corruptions} corrupt bodies, {delivered} chunks delivered, {kept} acknowledged chunks, faults {injected:?}"
    );
}

#[test]
fn one_seed_one_trace() {
    let (a, b, other) = (simulate(77), simulate(77), simulate(78));
    assert_eq!(a.trace, b.trace);
    assert_ne!(a.trace, other.trace);
}
