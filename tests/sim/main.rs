//! The storage core of several replicas over one faulty store: one seed, one trace.
//!
//! `KVASIR_TEST_SIM_SEEDS=N` runs N seeds instead of a few.

#![allow(clippy::print_stdout, reason = "the figures of a run; --nocapture shows them")]

mod client;
mod disk;
mod late;
mod node;
mod salts;
mod world;

use std::collections::BTreeMap;

use kvasir_server::Layers;
use kvasir_storage::transitions::Transition;
use kvasir_tests::faulty::Fault;

use crate::world::{Outcome, World};

/// Seeds of every run.
const SEEDS: u64 = 8;
/// Most of them, where a transition was not cut often enough.
const SEEDS_MAX: u64 = 60;
const ROUNDS: usize = 130;
/// Least number of times that each transition must be cut.
const CUTS: u64 = 5;

/// A number from the environment: how much more to do than by default.
pub(crate) fn wanted(variable: &str, otherwise: u64) -> u64 {
    let env = Layers::from_process().env;
    let set = env.iter().find(|(name, _)| name == variable).map(|(_, value)| value);
    set.map_or(otherwise, |value| value.parse().unwrap_or_else(|e| panic!("{variable}={value}: {e}")))
}

/// Runs a simulation on one thread and a clock that only moves when everyone waits: the seed decides everything.
pub(crate) fn on_simulated_time<T>(simulation: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(simulation)
}

fn simulate(seed: u64, rounds: usize) -> Outcome {
    on_simulated_time(async {
        let mut world = World::new(seed).await;
        for _ in 0..rounds {
            Box::pin(world.round()).await;
        }
        world.end().await
    })
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_wrong_is_delivered() {
    let (mut corruptions, mut misdirections, mut kept, mut delivered) = (0, 0, 0, 0);
    let mut injected = [0; Fault::ALL.len()];
    let mut cuts: BTreeMap<Transition, u64> = BTreeMap::new();
    let (mut seeds, mut restarts) = (0, [0; 2]);
    // Rare transitions may need a few seeds more.
    let missing = |cuts: &BTreeMap<Transition, u64>| {
        Transition::ALL.into_iter().find(|t| cuts.get(t).copied().unwrap_or(0) < CUTS)
    };
    while seeds < wanted("KVASIR_TEST_SIM_SEEDS", SEEDS) || (missing(&cuts).is_some() && seeds < SEEDS_MAX) {
        let seed = seeds;
        seeds += 1;
        let outcome = simulate(seed, ROUNDS);
        assert_eq!(outcome.lost, Vec::<String>::new(), "seed {seed}");
        assert_eq!(outcome.wrong, Vec::<String>::new(), "seed {seed}");
        corruptions += outcome.corruptions.0;
        misdirections += outcome.corruptions.1;
        kept += outcome.kept;
        delivered += outcome.delivered;
        injected.iter_mut().zip(outcome.injected).for_each(|(sum, n)| *sum += n);
        restarts.iter_mut().zip(outcome.restarts).for_each(|(sum, n)| *sum += n);
        outcome.cuts.into_iter().for_each(|(transition, n)| *cuts.entry(transition).or_default() += n);
    }
    println!(
        "{seeds} seeds: {corruptions} corrupt bodies, of them {misdirections} misdirected; {delivered} chunks \
         delivered; {kept} acknowledged chunks kept; 0 lost, 0 wrong\nreplicas on a disk of another, on an empty one: \
         {restarts:?}\nfaults: {:?}\ncuts: {cuts:?}",
        Fault::ALL.iter().zip(injected).collect::<Vec<_>>()
    );
    // The simulation is of no use if it does not get to the point.
    assert!(kept > 60 && delivered > 500, "{kept} kept, {delivered} delivered");
    assert!(
        corruptions > 400 && misdirections > 200,
        "{corruptions} corruptions, {misdirections} misdirections"
    );
    assert!(restarts.iter().all(|n| *n > 50), "{restarts:?}");
    for (fault, count) in Fault::ALL.iter().zip(injected) {
        assert!(count >= 30, "{fault:?} was injected only {count} times");
    }
    assert_eq!(missing(&cuts), None, "it was cut less than {CUTS} times: {cuts:?}");
}

#[test]
fn one_seed_one_trace() {
    let (a, b, other) = (simulate(9, ROUNDS), simulate(9, ROUNDS), simulate(78, ROUNDS));
    assert_eq!(a.trace, b.trace);
    assert_ne!(a.trace, other.trace);
}
