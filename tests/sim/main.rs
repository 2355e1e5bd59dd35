//! The storage core of several replicas over one faulty store: one seed, one trace.
//!
//! `KVASIR_TEST_SIM_SEEDS=N` runs N seeds instead of some, `KVASIR_TEST_SIM_FROM=M` those from M on.

#![allow(clippy::print_stdout, reason = "the figures of a run; --nocapture shows them")]

mod client;
mod cluster;
mod disk;
mod keys;
mod late;
mod node;
mod salts;
mod traffic;
mod uploads;
mod world;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use kvasir_server::Layers;
use kvasir_storage::transitions::Transition;
use kvasir_tests::faulty::Fault;

use crate::{
    cluster::{BY_ANOTHER_LIST, BY_LIST, PASSED_OVER, SITUATIONS, SLOW_DNS, SPLIT_EPOCHS, WITHOUT_CLIENTS},
    uploads::UPLOAD_ENDS,
    world::{Outcome, REPLICAS, World},
};

/// Seeds of every run.
const SEEDS: u64 = 80;
/// Maximum number of seeds, if a transition was not cut often enough.
const SEEDS_MAX: u64 = 300;
/// Seeds of every run in which clients follow routes.
const SEEDS_BY_ROUTES: u64 = 16;
const ROUNDS: usize = 40;
/// Rounds of the simulations with many replicas.
const ROUNDS_OF_MANY: usize = 15;
/// Seeds that may go wrong before the others are left out.
const FAILED_MAX: usize = 20;
/// Least number of times that each transition must be cut.
const CUTS: u64 = 5;
/// Seeds after which a long run prints its progress.
const SEEDS_A_LINE: u64 = 500;

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

/// `by_routes`: clients follow lists of members; otherwise they ask anybody.
fn simulate(seed: u64, replicas: usize, rounds: usize, by_routes: bool) -> Outcome {
    on_simulated_time(async {
        let mut world = World::new(seed, replicas, by_routes).await;
        for _ in 0..rounds {
            Box::pin(world.round()).await;
        }
        Box::pin(world.end()).await
    })
}

/// Of all seeds.
#[derive(Default)]
struct Sums {
    seeds: u64,
    kept: usize,
    kept_keys: usize,
    uploads: BTreeMap<&'static str, u64>,
    delivered: usize,
    judged: BTreeMap<&'static str, u64>,
    corruptions: (u64, u64),
    injected: [u64; Fault::ALL.len()],
    cuts: BTreeMap<Transition, u64>,
    restarts: [u64; 2],
    situations: BTreeMap<&'static str, u64>,
}

impl Sums {
    fn add(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.kept += outcome.kept;
        self.kept_keys += outcome.kept_keys;
        outcome.uploads.into_iter().for_each(|(end, n)| *self.uploads.entry(end).or_default() += n);
        self.delivered += outcome.delivered;
        outcome.judged.into_iter().for_each(|(what, n)| *self.judged.entry(what).or_default() += n);
        self.corruptions.0 += outcome.corruptions.0;
        self.corruptions.1 += outcome.corruptions.1;
        self.injected.iter_mut().zip(outcome.injected).for_each(|(sum, n)| *sum += n);
        outcome.cuts.into_iter().for_each(|(transition, n)| *self.cuts.entry(transition).or_default() += n);
        self.restarts.iter_mut().zip(outcome.restarts).for_each(|(sum, n)| *sum += n);
        outcome.situations.into_iter().for_each(|(what, n)| *self.situations.entry(what).or_default() += n);
    }

    /// A transition that was not cut often enough: rare ones may need a few seeds more.
    fn missing(&self) -> Option<Transition> {
        Transition::ALL.into_iter().find(|t| self.cuts.get(t).copied().unwrap_or(0) < CUTS)
    }
}

/// Runs seeds on two threads, each seed on one of them, and returns the failed ones, with the first wrong
/// answer of each.
fn all_seeds(first: u64, wanted: u64, most: u64, simulate: fn(u64) -> Outcome) -> (Sums, Vec<(u64, String)>) {
    let (next, sums, failed) = (AtomicU64::new(first), Mutex::new(Sums::default()), Mutex::new(Vec::new()));
    let begun = std::time::Instant::now();
    let work = || {
        while failed.lock().expect("not poisoned").len() < FAILED_MAX {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let done = seed - first;
            let is_enough = |sums: &Sums| wanted < SEEDS || sums.missing().is_none();
            if done >= most || (done >= wanted && is_enough(&sums.lock().expect("not poisoned"))) {
                return;
            }
            let mut outcome = simulate(seed);
            if !outcome.wrong.is_empty() {
                let wrong = outcome.wrong.swap_remove(0);
                println!("seed {seed}: {wrong}");
                failed.lock().expect("not poisoned").push((seed, wrong));
            }
            let mut sums = sums.lock().expect("not poisoned");
            sums.add(outcome);
            if sums.seeds.is_multiple_of(SEEDS_A_LINE) {
                println!("{} seeds after {:?}: {:?}", sums.seeds, begun.elapsed(), sums.judged);
            }
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(work);
        threads.spawn(work);
    });
    (sums.into_inner().expect("not poisoned"), failed.into_inner().expect("not poisoned"))
}

#[test]
fn the_promises_hold() {
    let wanted = wanted("KVASIR_TEST_SIM_SEEDS", SEEDS);
    let first = self::wanted("KVASIR_TEST_SIM_FROM", 0);
    let (sums, failed) =
        all_seeds(first, wanted, wanted.max(SEEDS_MAX), |seed| simulate(seed, REPLICAS, ROUNDS, false));
    assert!(failed.is_empty(), "{failed:#?}");
    let Sums { seeds, kept, kept_keys, delivered, judged, corruptions, injected, cuts, restarts, .. } = &sums;
    let uploads = &sums.uploads;
    println!(
        "{seeds} seeds: {} corrupt bodies, of them {} misdirected; {delivered} chunks delivered; {kept} chunks and {kept_keys} \
         keys owed at the end\njudged: {judged:?}\nuploads in parts: {uploads:?}\n\
         replicas on a disk of another, on an empty one: {restarts:?}\nfaults: {:?}\ncuts: \
         {cuts:?}",
        corruptions.0,
        corruptions.1,
        Fault::ALL.iter().zip(injected).collect::<Vec<_>>()
    );
    if wanted < SEEDS {
        return;
    }
    // The simulation is of no use if it does not get to the point.
    assert!(*kept > 60 && *delivered > 500, "{kept} kept, {delivered} delivered");
    assert!(*kept_keys > 0, "{kept_keys} keys kept");
    for end in UPLOAD_ENDS {
        assert!(uploads.contains_key(end), "no upload in parts was {end}: {uploads:?}");
    }
    for what in ["tampered chunk", "tampered journal"] {
        assert!(judged.contains_key(what), "there was no {what}: {judged:?}");
    }
    assert!(corruptions.0 > 400 && corruptions.1 > 200, "{corruptions:?}");
    assert!(restarts.iter().all(|n| *n > 50), "{restarts:?}");
    assert!(judged.get("lookup that owed something").is_some_and(|n| *n > 1_000), "{judged:?}");
    for (fault, count) in Fault::ALL.iter().zip(injected) {
        assert!(*count >= 30, "{fault:?} was injected only {count} times");
    }
    assert_eq!(sums.missing(), None, "it was cut less than {CUTS} times: {cuts:?}");
}

/// Clients follow lists of members that are late and differ, while replicas come, go and are cut off: routes decide who is fast,
/// never who is right.
#[test]
fn the_promises_hold_where_clients_follow_routes() {
    let wanted = wanted("KVASIR_TEST_SIM_SEEDS", SEEDS_BY_ROUTES);
    let first = self::wanted("KVASIR_TEST_SIM_FROM", 0);
    let (sums, failed) = all_seeds(first, wanted, wanted, |seed| simulate(seed, REPLICAS, ROUNDS, true));
    assert!(failed.is_empty(), "{failed:#?}");
    println!("{} seeds by routes: {:?}\njudged: {:?}", sums.seeds, sums.situations, sums.judged);
    if wanted < SEEDS_BY_ROUTES {
        return;
    }
    // Without these it would be the simulation of clients that ask anybody.
    for situation in SITUATIONS {
        assert!(sums.situations.contains_key(situation), "there was no {situation}: {:?}", sums.situations);
    }
}

/// The same in clusters of up to a hundred.
#[test]
fn the_promises_hold_in_large_clusters() {
    let first = wanted("KVASIR_TEST_SIM_FROM", 0);
    let mut sums = Sums::default();
    for (seed, replicas) in (first..).zip([12, 30, 100]) {
        let begun = std::time::Instant::now();
        let outcome = simulate(seed, replicas, ROUNDS_OF_MANY, true);
        println!(
            "{replicas} replicas: {:?}, {} delivered, {:?}",
            begun.elapsed(),
            outcome.delivered,
            outcome.judged
        );
        assert!(outcome.wrong.is_empty(), "{replicas} replicas, seed {seed}: {:#?}", outcome.wrong);
        assert!(
            outcome.delivered > 0 && outcome.restarts.iter().sum::<u64>() > replicas as u64,
            "{outcome:?}"
        );
        sums.add(outcome);
    }
    for situation in [BY_LIST, BY_ANOTHER_LIST, SPLIT_EPOCHS, SLOW_DNS, PASSED_OVER, WITHOUT_CLIENTS] {
        assert!(sums.situations.contains_key(situation), "there was no {situation}: {:?}", sums.situations);
    }
}

#[test]
fn one_seed_one_trace() {
    let simulate = |seed| simulate(seed, REPLICAS, ROUNDS, true);
    let (a, b, other) = (simulate(9), simulate(9), simulate(78));
    assert_eq!(a.trace, b.trace);
    assert_ne!(a.trace, other.trace);
}
