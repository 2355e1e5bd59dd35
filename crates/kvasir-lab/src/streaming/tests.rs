use std::time::Duration;

use kvasir_client::tuning::{
    DecodeModel, EstimatorKind, FetchPlan, FetcherAction, FetcherConfig, Fixed, PlannedChunk, Progressive,
    TextMode,
};
use kvasir_types::Level;
use proptest::prelude::*;

use super::{study::*, *};
use kvasir_replay::link::BandwidthSeries;

fn config(engine: &Engine) -> FetcherConfig {
    FetcherConfig {
        estimator: EstimatorKind::Harmonic,
        recompute: engine.recompute.clone(),
        decode: DecodeModel::from_seconds(engine.decode_per_token, 0.0),
        text_mode: TextMode::Overlapped,
        decodes_on_gpu: false,
    }
}

fn simulation(engine: &Engine, link: LinkRate) -> SimulationConfig {
    SimulationConfig {
        link,
        first_byte: Duration::from_millis(2),
        recompute: engine.recompute.clone(),
        decode: DecodeModel::from_seconds(engine.decode_per_token, 0.0),
        noise: Noise::default(),
        sharing: Sharing::RoundRobin,
        text_mode: TextMode::Overlapped,
    }
}

fn constant(mbps: f64) -> LinkRate {
    LinkRate::Series(BandwidthSeries::constant(mbps).unwrap())
}

#[test]
fn a_fixed_level_takes_what_arithmetic_says() {
    let engine = Engine::mistral_7b_a40();
    let plan = engine.plan(&Ladder::paper(), 9_400, 1536, Duration::from_secs(1));
    let bytes: u64 = plan.chunks.iter().map(|c| c.level_bytes[2]).sum();
    let suffix = plan.suffix_time;
    let load = LoadSpec {
        arrival: Duration::from_secs(7),
        plan,
        policy: Box::new(Fixed::new(Level(2)).without_giving_up()),
        config: config(&engine),
    };
    let (outcomes, _) = Simulation::run(simulation(&engine, constant(3_000.0)), vec![load]).unwrap();
    let expected = bytes as f64 * 8.0 / 3e9 + suffix.as_secs_f64();
    let found = outcomes[0].ttft.as_secs_f64();
    // Beyond the bytes: one first byte and the decode of the last (short) chunk.
    assert!(found > expected && found < expected + 0.006, "{found} {expected}");
    assert_eq!(outcomes[0].bytes, bytes);
}

#[test]
fn one_seed_gives_one_trace() {
    let engine = Engine::mistral_7b_a40();
    let run = || {
        let load = |arrival| LoadSpec {
            arrival: Duration::from_millis(arrival),
            plan: engine.plan(&Ladder::basis(), 9_400, 1536, Duration::from_millis(700)),
            policy: Box::new(Progressive::new()),
            config: config(&engine),
        };
        let link = LinkRate::Series(BandwidthSeries::builtin("jitter").unwrap().scaled(4.0));
        Simulation::run(simulation(&engine, link), vec![load(0), load(50), load(90)]).unwrap()
    };
    let (a, b) = (run(), run());
    assert_eq!(a, b);
    assert!(a.1.len() > 20);
}

/// Eight requests that arrive one after the other share a link and a GPU, whether there is enough of both for all or
/// not, and whichever way the link takes turns: each makes progress, and none ends much later than the others.
#[test]
fn with_eight_requests_none_starves() {
    let engine = Engine::mistral_7b_a40();
    for (mbps, sharing) in
        [(24_000.0, Sharing::RoundRobin), (2_000.0, Sharing::RoundRobin), (2_000.0, Sharing::LeastSlack)]
    {
        let load = |i: u64| LoadSpec {
            arrival: Duration::from_millis(20 * i),
            plan: engine.plan(&Ladder::paper(), 9_200 + 50 * i, 1536, Duration::from_secs(1)),
            policy: Box::new(Progressive::new()),
            config: config(&engine),
        };
        let simulation = SimulationConfig { sharing, ..simulation(&engine, constant(mbps)) };
        let (outcomes, trace) = Simulation::run(simulation, (0..8).map(load).collect()).unwrap();
        let ttfts: Vec<f64> = outcomes.iter().map(|o| o.ttft.as_secs_f64()).collect();
        let (first, last) =
            (ttfts.iter().copied().fold(f64::MAX, f64::min), ttfts.iter().copied().fold(0.0, f64::max));
        if mbps > 10_000.0 {
            assert!(outcomes.iter().all(|o| o.met), "there is enough for all: {ttfts:?}");
        }
        assert!(last < 3.0 * first.max(1.0), "{mbps} {sharing:?}: {ttfts:?}");
        // The first half second already serves everyone.
        for load in 0..8 {
            let served = trace.iter().any(|(at, l, action)| {
                *l == load
                    && *at < Duration::from_millis(700)
                    && matches!(action, FetcherAction::Decode { .. } | FetcherAction::Recompute { .. })
            });
            assert!(served, "{mbps} {sharing:?}: load {load} waits");
        }
    }
}

/// Two loads of 10.1 MB begin together on a link of 100 MB/s, which carries pieces of 2 ms: 50 and a half each. The second
/// has less time. In turn, the first ends half a piece before all 20.2 MB are through, after 201 ms, the second after
/// 202 ms. By slack, the second waits for the one piece that the first has on the link, and ends after 2 + 101 ms; the
/// first after 202 ms.
#[test]
fn a_link_is_shared_in_equal_parts_or_by_slack() {
    let engine = Engine::mistral_7b_a40();
    let load = |slo: u64| {
        let tokens = kvasir_types::TokenRange { start: 0, end: 1536 };
        let chunk = PlannedChunk { tokens, level_bytes: vec![10_100_000], loss: vec![0.0] };
        let plan = FetchPlan {
            chunks: vec![chunk],
            slo: Duration::from_millis(slo),
            suffix_time: Duration::ZERO,
            prior_rate: None,
            first_byte: None,
        };
        let policy = Box::new(Fixed::new(Level(0)).without_giving_up());
        LoadSpec { arrival: Duration::ZERO, plan, policy, config: config(&engine) }
    };
    for (sharing, ends) in [(Sharing::RoundRobin, [0.201, 0.202]), (Sharing::LeastSlack, [0.202, 0.103])] {
        let simulation = SimulationConfig {
            first_byte: Duration::ZERO,
            decode: DecodeModel::from_seconds(0.0, 0.0),
            sharing,
            ..simulation(&engine, constant(800.0))
        };
        let (outcomes, _) = Simulation::run(simulation, vec![load(1_000), load(150)]).unwrap();
        for (outcome, end) in outcomes.iter().zip(ends) {
            let ttft = outcome.ttft.as_secs_f64();
            assert!((ttft - end).abs() < 0.000_5, "{sharing:?}: {ttft} instead of {end}");
        }
        assert_eq!([outcomes[0].met, outcomes[1].met], [true, sharing == Sharing::LeastSlack]);
    }
}

/// Two loads share a link in equal parts, one with little time and one with much: the patient one waits as long as it
/// can afford to, and both are in time. A third with as little slack as the first takes its fair share.
#[test]
fn who_has_slack_lets_others_go_first() {
    let engine = Engine::mistral_7b_a40_data_sheet();
    let load = |slo: u64| LoadSpec {
        arrival: Duration::ZERO,
        plan: engine.plan(&Ladder::paper(), 9_216, 1536, Duration::from_millis(slo)),
        policy: Box::new(Progressive::sparing()),
        config: config(&engine),
    };
    let run = |slos: &[u64]| {
        let loads = slos.iter().map(|&slo| load(slo)).collect();
        Simulation::run(simulation(&engine, constant(1_500.0)), loads).unwrap().0
    };
    // 93 MB of bases each. With half of the link and all of the GPU a load had 92 MB of them after 660 ms.
    assert!(run(&[660])[0].met);
    let both = run(&[660, 5_000]);
    assert!(both[0].met && both[1].met, "{both:?}");
    let equal = run(&[1_400, 1_400]);
    assert!(equal.iter().all(|o| o.met), "{equal:?}");
}

#[test]
fn a_study_is_reproducible_and_complete() {
    let study = StreamStudy::paper(Bandwidth::Random(0.1, 10.0), 5, vec![Duration::from_secs(1)]);
    let report = study.run();
    assert_eq!(report, study.run());
    assert_eq!(report.rows.len(), 2 * StudyPolicy::ALL.len());
    for row in report.rows {
        assert_eq!((row.requests, row.sharing), (5, "equal"));
        assert!((0.0..=1.0).contains(&row.violation_rate) && (0.0..=1.0).contains(&row.quality), "{row:?}");
        assert!(row.ttft_ms_p50 > 0.0 && row.ttft_ms_p50 <= row.ttft_ms_p95);
        let [low, high] = row.avoidable_interval;
        assert!(low <= row.avoidable_violation_rate && row.avoidable_violation_rate <= high);
    }
}

/// A GPU that is slower than believed costs no deadlines that another could keep, where it is found out in time.
#[test]
fn a_slower_gpu_is_noticed() {
    let links = Bandwidth::Series(BandwidthSeries::all_builtin(), Some(SERIES_MEAN_GBPS));
    let study = StreamStudy {
        policies: vec![StudyPolicy::CacheGen, StudyPolicy::Progressive],
        ladders: vec![Ladder::paper()],
        gpu_truth: 0.25,
        ..StreamStudy::paper(links, 15, vec![Duration::from_millis(500)])
    };
    let rows = study.run().rows;
    let mean = |policy: &str, value: fn(&StreamRow) -> f64| {
        let own: Vec<_> = rows.iter().filter(|row| row.policy == policy).map(value).collect();
        own.iter().sum::<f64>() / own.len() as f64
    };
    let avoidable = |policy| mean(policy, |row| row.avoidable_violation_rate);
    assert!(avoidable("cachegen") > 0.2, "it matters: {}", avoidable("cachegen"));
    assert!(avoidable("progressive") < 0.05, "{}", avoidable("progressive"));
    assert!(mean("progressive", |row| row.quality) > mean("cachegen", |row| row.quality));
}

/// An engine that computes after the load: what is left to it comes on top, and the oracle reckons so as well.
#[test]
fn what_is_computed_after_the_load_adds_to_it() {
    let slo = Duration::from_secs(1);
    let mut mixed = 0;
    for context in 0..8 {
        // Fast enough for some chunks, then hardly for any.
        let series = BandwidthSeries::steps("falls", "n", 0.5, &[1_000.0, 20.0]).unwrap();
        let study = StreamStudy {
            text_mode: TextMode::Deferred,
            tokens: (9_400, 9_400),
            ..StreamStudy::paper(Bandwidth::Series(vec![series], None), 1, vec![slo])
        };
        let case = study.case((0, "falls"), context);
        let plan = study.plan(&Ladder::paper(), 9_400, slo);
        let (outcomes, trace) = study.simulate(StudyPolicy::Progressive, &case, &Ladder::paper(), slo);
        let is_done = |action: &FetcherAction| *action == FetcherAction::Done;
        let loaded = trace.iter().find(|(_, _, action)| is_done(action)).unwrap().0;
        let texts = plan.chunks.iter().zip(&outcomes[0].levels).filter(|(_, level)| level.is_none());
        let computed: Vec<_> =
            texts.map(|(chunk, _)| case.simulation.recompute.predict(chunk.tokens)).collect();
        assert_eq!(outcomes[0].ttft, loaded + computed.iter().sum::<Duration>() + plan.suffix_time);
        mixed += usize::from(!computed.is_empty() && computed.len() < plan.chunks.len());
        let best = study.possible(&case, &Ladder::paper(), slo);
        assert!(best[0].met || !outcomes[0].met, "{context}");
    }
    assert!(mixed > 0, "some are read and some are computed");
    // All of it, with nothing to read.
    let text = |text_mode| {
        let links = Bandwidth::Series(vec![BandwidthSeries::constant(1.0).unwrap()], None);
        let study = StreamStudy { text_mode, ..StreamStudy::paper(links, 1, vec![slo]) };
        let case = study.case((0, "constant"), 0);
        study.simulate(StudyPolicy::Text, &case, &Ladder::paper(), slo).0[0].ttft
    };
    assert_eq!(text(TextMode::Deferred), text(TextMode::Overlapped));
}

/// Requests wait for their batch under CacheGen's policies, which counts for their TTFT, and under no other.
#[test]
fn requests_are_served_in_batches() {
    let mut study = StreamStudy::paper(Bandwidth::Random(5.0, 10.0), 1, vec![Duration::from_secs(1)]);
    (study.concurrent, study.spread) = (6, Duration::from_millis(200));
    let ttfts = |study: &StreamStudy, policy| -> Vec<Duration> {
        let case = study.case((0, "random:5-10"), 0);
        let (outcomes, trace) = study.simulate(policy, &case, &Ladder::paper(), Duration::from_secs(1));
        for (i, &arrival) in case.arrivals.iter().enumerate() {
            let first = trace.iter().find(|(_, load, _)| *load == i).map(|(at, ..)| *at).unwrap();
            let waits = first - arrival;
            let batched = policy == StudyPolicy::CacheGen;
            assert!(if batched { waits <= study.batch.0 } else { waits.is_zero() }, "{i}: {waits:?}");
        }
        outcomes.iter().map(|o| o.ttft).collect()
    };
    study.batch = (Duration::from_millis(50), 3);
    let waited = ttfts(&study, StudyPolicy::CacheGen);
    assert_eq!(waited.len(), 6);
    ttfts(&study, StudyPolicy::Progressive);
    study.batch = (Duration::ZERO, 1);
    assert!(ttfts(&study, StudyPolicy::CacheGen) != waited, "who waits for nobody begins sooner");
}

/// Three transfers share the link. One's rate, taken for the link's, leaves time for coarser levels only.
#[test]
fn pipelined_requests_measure_the_whole_link() {
    let slo = Duration::from_secs(1);
    let links = Bandwidth::Series(vec![BandwidthSeries::constant(3_000.0).unwrap()], None);
    let study = StreamStudy {
        engine: Engine::mistral_7b_a40_data_sheet(),
        tokens: (9_400, 9_400),
        ..StreamStudy::paper(links, 1, vec![slo])
    };
    let case = study.case((0, "constant"), 0);
    let (outcomes, _) = study.simulate(StudyPolicy::CacheGenPipelined, &case, &Ladder::paper(), slo);
    // The first three are requested before anything is measured. At the finest level all seven take 0.6 s.
    assert_eq!(outcomes[0].levels[3..], [Some(Level(3)); 4]);
}

#[test]
fn arguments_are_read_or_refused() {
    assert_eq!(Bandwidth::parse_random("random:0.1-10"), Ok(Bandwidth::Random(0.1, 10.0)));
    for bad in ["random:", "random:1", "random:0-1", "random:2-1", "0.1-10", "random:a-b", "random:1-inf"] {
        assert!(Bandwidth::parse_random(bad).is_err(), "{bad}");
    }
    assert_eq!(
        StudyPolicy::parse("cachegen, oracle"),
        Some(vec![StudyPolicy::CacheGen, StudyPolicy::Oracle])
    );
    assert_eq!(StudyPolicy::parse("nonesuch"), None);
    for sharing in [Sharing::RoundRobin, Sharing::LeastSlack] {
        assert_eq!(Sharing::parse(sharing.name()), Some(sharing));
    }
    assert_eq!(Sharing::parse("layers"), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Where the oracle misses, so does every policy; what the oracle meets has a quality that none beats by
    /// more than its greedy refinement may leave.
    #[test]
    fn the_oracle_bounds_every_policy(
        rates in prop::collection::vec(20.0f64..12_000.0, 1..8), per_chunk: bool, tokens in 200u64..11_000, slo in 100u64..2_000,
    ) {
        let engine = Engine::mistral_7b_a40();
        let link = if per_chunk {
            LinkRate::PerChunk(rates)
        } else {
            LinkRate::Series(BandwidthSeries::steps("s", "n", 0.1, &rates).unwrap())
        };
        let simulation = simulation(&engine, link);
        for ladder in [Ladder::paper(), Ladder::basis()] {
            let plan = engine.plan(&ladder, tokens, 1536, Duration::from_millis(slo));
            let best = oracle(&plan, &simulation, Duration::ZERO);
            for (policy, estimator) in [
                (Box::new(Progressive::new()) as Box<dyn kvasir_client::tuning::Policy>, EstimatorKind::Harmonic),
                (Box::new(kvasir_client::tuning::CacheGen::default()), EstimatorKind::LastChunk),
            ] {
                let config = FetcherConfig { estimator, ..config(&engine) };
                let load = LoadSpec { arrival: Duration::ZERO, plan: plan.clone(), policy, config };
                let (outcomes, _) = Simulation::run(simulation.clone(), vec![load]).unwrap();
                prop_assert!(best.met || !outcomes[0].met, "{outcomes:?} {best:?}");
            }
        }
    }

    /// The worst case is bounded: however bad the link, a load costs at most a small multiple of computing plus
    /// the SLO.
    #[test]
    fn no_load_is_much_worse_than_computing(
        rates in prop::collection::vec(0.05f64..3_000.0, 1..8), tokens in 200u64..11_000, slo in 100u64..2_000, which in 0usize..2,
    ) {
        let engine = Engine::mistral_7b_a40();
        let simulation = simulation(&engine, LinkRate::Series(BandwidthSeries::steps("s", "n", 0.2, &rates).unwrap()));
        let plan = engine.plan(&Ladder::paper(), tokens, 1536, Duration::from_millis(slo));
        let compute: Duration = plan.chunks.iter().map(|c| engine.recompute.predict(c.tokens)).sum();
        let policy: Box<dyn kvasir_client::tuning::Policy> = match which {
            0 => Box::new(Progressive::new()),
            _ => Box::new(kvasir_client::tuning::CacheGen::default()),
        };
        let load = LoadSpec { arrival: Duration::ZERO, plan: plan.clone(), policy, config: config(&engine) };
        let (outcomes, _) = Simulation::run(simulation, vec![load]).unwrap();
        let bound = compute * 2 + plan.slo * 2 + Duration::from_millis(500);
        prop_assert!(outcomes[0].ttft <= bound, "{:?} against {compute:?}", outcomes[0]);
    }
}
