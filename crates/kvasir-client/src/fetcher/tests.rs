//! Properties of the core under arbitrary links, failures and event orders.

use std::{collections::BTreeMap, time::Duration};

use kvasir_types::{Level, TokenRange};
use proptest::prelude::*;

use super::*;

pub(super) fn ms(t: u64) -> Duration {
    Duration::from_millis(t)
}

pub(super) fn plan(sizes: &[Vec<u64>], slo: Duration, prior: Option<f64>) -> FetchPlan {
    let chunk = |(i, deltas): (usize, &Vec<u64>)| {
        let start = i as u64 * 1536;
        let level_bytes = deltas.iter().scan(0, |sum, d| Some(*sum + d).inspect(|s| *sum = *s)).collect();
        PlannedChunk::with_default_loss(TokenRange { start, end: start + 1536 }, level_bytes)
    };
    FetchPlan {
        chunks: sizes.iter().enumerate().map(chunk).collect(),
        slo,
        suffix_time: Duration::ZERO,
        prior_rate: prior.and_then(ByteRate::from_mbps),
        first_byte: None,
    }
}

pub(super) fn config(per_token: f64) -> FetcherConfig {
    FetcherConfig {
        estimator: EstimatorKind::Harmonic,
        recompute: RecomputeModel::from_seconds(0.0, per_token, 0.0),
        decode: DecodeModel::from_seconds(1e-7, 0.0),
        text_mode: TextMode::Overlapped,
        decodes_on_gpu: false,
    }
}

pub(super) fn policy(index: usize) -> Box<dyn Policy> {
    match index {
        0 => Box::new(Fixed::new(Level(1))),
        1 => Box::new(CacheGen::default()),
        _ => Box::new(Progressive::new()),
    }
}

/// A policy that asks for anything, possible or not.
#[derive(Debug)]
struct RandomPolicy(u64);

impl Policy for RandomPolicy {
    fn name(&self) -> &'static str {
        "hostile"
    }

    fn next(&mut self, view: &PolicyView<'_>) -> PolicyStep {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chunk = (self.0 >> 33) as usize % (view.chunks.len() + 1);
        match (self.0 >> 60) % 6 {
            0 => PolicyStep::Fetch { chunk, level: Level((self.0 >> 40) as u8 % 9) },
            1 => PolicyStep::Text { chunk },
            2 => PolicyStep::Finish { chunk },
            3 => PolicyStep::Pause { chunk },
            4 => PolicyStep::Hedge { chunk },
            _ => PolicyStep::Wait { until: Some(view.now + ms(self.0 % 50)) },
        }
    }
}

/// A load that answers actions in an order, and with failures, drawn from `choices`.
struct SimulatedLoad {
    fetcher: Fetcher,
    now: Duration,
    open: BTreeMap<RequestId, (usize, u64, u64)>,
    work: Vec<FetcherEvent>,
    decodes: Vec<u32>,
    texts: Vec<u32>,
    withdrawn: Vec<u32>,
    wake: Option<Duration>,
    finished: bool,
    trace: Vec<FetcherAction>,
}

impl SimulatedLoad {
    fn new(plan: FetchPlan, policy: Box<dyn Policy>, config: FetcherConfig) -> Self {
        let n = plan.chunks.len();
        let fetcher = Fetcher::new(plan, policy, config).unwrap();
        let (decodes, texts, withdrawn) = (vec![0; n], vec![0; n], vec![0; n]);
        let (open, work, trace) = (BTreeMap::new(), Vec::new(), Vec::new());
        let (now, wake, finished) = (Duration::ZERO, None, false);
        Self { fetcher, now, open, work, decodes, texts, withdrawn, wake, finished, trace }
    }

    fn send(&mut self, event: FetcherEvent) {
        assert!(!self.finished, "events after Done are not ours to send");
        for action in self.fetcher.on(event, self.now) {
            self.trace.push(action);
            assert!(!self.finished, "nothing may follow Done");
            match action {
                FetcherAction::Fetch { request, chunk, start, end } => {
                    let chunk_plan = &self.fetcher.plan().chunks[chunk];
                    assert!(start < end && chunk_plan.level_bytes.contains(&end));
                    assert!(self.open.values().all(|&(c, ..)| c != chunk), "one request a chunk");
                    assert!(self.open.insert(request, (chunk, start, end)).is_none());
                }
                FetcherAction::Cancel { request } => {
                    assert!(self.open.remove(&request).is_some(), "cancels only what is open");
                }
                FetcherAction::Decode { chunk, .. } => {
                    self.decodes[chunk] += 1;
                    self.work.push(FetcherEvent::Decoded { chunk, took: ms(1) });
                }
                FetcherAction::Recompute { chunk } => {
                    self.texts[chunk] += 1;
                    let took = Some(ms(100)).filter(|_| self.fetcher.text_mode() == TextMode::Overlapped);
                    self.work.push(FetcherEvent::Recomputed { chunk, took });
                }
                FetcherAction::Withdraw { chunk } => {
                    self.withdrawn[chunk] += 1;
                    assert_eq!(
                        self.withdrawn[chunk], self.texts[chunk],
                        "only what is computed is withdrawn"
                    );
                    // Every other engine is too late to stop.
                    if self.trace.len().is_multiple_of(2) {
                        let text = |e: &FetcherEvent| matches!(e, FetcherEvent::Recomputed { chunk: c, .. } if *c == chunk);
                        self.work.retain(|event| !text(event));
                    }
                }
                FetcherAction::WakeAt(at) => {
                    assert!(at > self.now);
                    self.wake = Some(at);
                }
                FetcherAction::Done => self.finished = true,
            }
        }
    }

    /// One arbitrary thing happens.
    fn step(&mut self, choice: u32) {
        self.now += Duration::from_micros(u64::from(choice % 997) * 10);
        if self.wake.is_some_and(|at| at <= self.now) {
            self.wake = None;
            return self.send(FetcherEvent::Tick);
        }
        let kinds = self.open.len() + self.work.len();
        if kinds == 0 {
            self.now = self.wake.take().expect("someone must wait for something").max(self.now);
            return self.send(FetcherEvent::Tick);
        }
        let pick = choice as usize / 7 % kinds;
        if let Some(event) = pick.checked_sub(self.open.len()) {
            let event = match self.work.swap_remove(event) {
                FetcherEvent::Decoded { chunk, .. } if choice.is_multiple_of(11) => {
                    FetcherEvent::DecodeFailed { chunk }
                }
                event => event,
            };
            return self.send(event);
        }
        let (&request, &(_, start, end)) = self.open.iter().nth(pick).unwrap();
        match choice % 13 {
            0 => {
                self.open.remove(&request);
                self.send(FetcherEvent::Failed { request, permanent: choice.is_multiple_of(2) });
            }
            1 => {
                self.open.remove(&request); // a short answer
                self.send(FetcherEvent::Completed { request });
            }
            _ => {
                let bytes = (u64::from(choice) * 37 % (end - start) + 1).min(end - start);
                let slot = self.open.get_mut(&request).unwrap();
                slot.1 += bytes;
                let complete = slot.1 == end;
                self.send(FetcherEvent::Bytes { request, bytes });
                if complete && self.open.remove(&request).is_some() {
                    self.send(FetcherEvent::Completed { request });
                }
            }
        }
    }

    fn run(mut self, choices: &[u32]) -> Self {
        self.send(FetcherEvent::Start);
        for i in 0..20_000usize {
            if self.finished {
                return self;
            }
            let mixed = choices[i % choices.len()] ^ (i as u32).wrapping_mul(2_654_435_761) >> 7;
            self.step(mixed);
        }
        panic!("no Done after 20,000 events: {:?}", self.fetcher);
    }
}

fn sizes() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let deltas =
        (1u64..3_000_000, prop::collection::vec(prop_oneof![1 => Just(0), 9 => 1u64..3_000_000], 0..4));
    let chunk = deltas.prop_map(|(base, more)| std::iter::once(base).chain(more).collect());
    prop::collection::vec(chunk, 0..7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_chunk_is_resolved_exactly_once_whatever_happens(
        sizes in sizes(), which in 0usize..4, seed: u64, slo in 0u64..2000, prior in prop::option::of(1.0f64..10_000.0),
        per_token in 1e-6f64..1e-2, first_byte in prop::option::of(0u64..90_000), deferred: bool, decodes_on_gpu: bool,
        choices in prop::collection::vec(any::<u32>(), 1..200),
    ) {
        let policy = if which == 3 { Box::new(RandomPolicy(seed)) } else { policy(which) };
        let plan = FetchPlan { first_byte: first_byte.map(ms), ..plan(&sizes, ms(slo), prior) };
        let text_mode = if deferred { TextMode::Deferred } else { TextMode::Overlapped };
        let config = FetcherConfig { text_mode, decodes_on_gpu, ..config(per_token) };
        let load = SimulatedLoad::new(plan, policy, config).run(&choices);
        let mut text_tokens = 0;
        for (i, line) in load.fetcher.chunks().iter().enumerate() {
            prop_assert!(line.resolved.is_some());
            let texts = load.texts[i] - load.withdrawn[i];
            prop_assert!(load.decodes[i] <= 1 && texts <= 1 && load.withdrawn[i] <= load.decodes[i]);
            // Both only when decoding failed; text has no level, everything else has the decoded one.
            prop_assert!(load.decodes[i] + texts >= 1);
            prop_assert_eq!(line.level().is_none(), texts == 1);
            text_tokens += if line.level().is_none() { 1536 } else { 0 };
        }
        let ranges = load.fetcher.text_ranges();
        prop_assert_eq!(ranges.iter().map(|r| r.len()).sum::<u64>(), text_tokens);
        prop_assert!(ranges.windows(2).all(|w| w[0].end < w[1].start), "neighbours are joined");
    }

    #[test]
    fn the_same_events_give_the_same_actions(
        sizes in sizes(), which in 0usize..3, choices in prop::collection::vec(any::<u32>(), 1..50),
    ) {
        let run = || SimulatedLoad::new(plan(&sizes, ms(500), None), policy(which), config(1e-4)).run(&choices).trace;
        prop_assert_eq!(run(), run());
    }

    /// Algorithm 1 restated over plain numbers, against the first actions the core takes.
    #[test]
    fn cachegen_decides_as_algorithm_1(
        sizes in prop::collection::vec(prop::collection::vec(1u64..3_000_000, 3..=3), 1..6),
        slo in 1u64..3000, prior in 1.0f64..10_000.0, per_token in 1e-6f64..1e-2,
    ) {
        let plan = plan(&sizes, ms(slo), Some(prior));
        let time_recompute = sizes.len() as f64 * 1536.0 * per_token;
        let size = |level: usize| plan.chunks.iter().map(|c| c.level_bytes[level]).sum::<u64>() as f64;
        let throughput = prior * 1e6 / 8.0;
        let remaining = slo as f64 / 1e3;
        // Away from ties, where rounding to nanoseconds decides.
        prop_assume!((time_recompute - remaining).abs() > 1e-6);
        prop_assume!((0..3).all(|l| (size(l) / throughput - remaining).abs() > 1e-6));
        let expected = if time_recompute <= remaining {
            None
        } else {
            Some((0..3).rev().find(|&l| size(l) / throughput <= remaining).unwrap_or(0))
        };
        #[derive(Debug)]
        struct NeverGivesUp;
        impl Policy for NeverGivesUp {
            fn name(&self) -> &'static str { "cachegen" }
            fn next(&mut self, view: &PolicyView<'_>) -> PolicyStep { CacheGen::default().next(view) }
            fn may_give_up(&self, _: TextMode) -> bool { false }
        }
        let mut fetcher = Fetcher::new(plan.clone(), Box::new(NeverGivesUp), config(per_token)).unwrap();
        match (fetcher.on(FetcherEvent::Start, Duration::ZERO)[0], expected) {
            (FetcherAction::Recompute { chunk: 0 }, None) => {}
            (FetcherAction::Fetch { chunk: 0, start: 0, end, .. }, Some(level)) => {
                prop_assert_eq!(end, plan.chunks[0].level_bytes[level]);
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}

#[test]
fn without_a_measurement_cachegen_starts_at_the_medium_level() {
    let plan = plan(&[vec![10, 10, 10, 10], vec![10, 10]], ms(100), None);
    let mut fetcher = Fetcher::new(plan, policy(1), config(1.0)).unwrap();
    let actions = fetcher.on(FetcherEvent::Start, Duration::ZERO);
    assert_eq!(actions[0], FetcherAction::Fetch { request: RequestId(0), chunk: 0, start: 0, end: 20 });
}

#[test]
fn a_dead_link_is_given_up_after_the_time_that_computing_takes() {
    let modes = || [0, 1, 2].into_iter().flat_map(|w| [(w, TextMode::Overlapped), (w, TextMode::Deferred)]);
    for ((which, text_mode), first_byte) in modes().flat_map(|mode| [(mode, None), (mode, Some(ms(150)))]) {
        let sizes = [vec![1 << 20, 1 << 20], vec![1 << 20, 1 << 20]];
        // 2 x 1536 tokens at 0.1 ms = 307 ms of prefill; the SLO is below that, so text does not simply win.
        let plan = FetchPlan { first_byte, ..plan(&sizes, ms(200), Some(1000.0)) };
        let mut load = SimulatedLoad::new(plan, policy(which), FetcherConfig { text_mode, ..config(1e-4) });
        load.send(FetcherEvent::Start);
        while !load.finished {
            assert!(load.now < ms(5000), "policy {which} never gives up");
            if let Some(done) = load.work.pop() {
                load.now += ms(154);
                load.send(done);
            } else {
                load.now = load.wake.take().expect("a wake-up is set");
                load.send(FetcherEvent::Tick);
            }
        }
        // A known time to first byte is waited for twice.
        let latest = ms(1500) + 2 * first_byte.unwrap_or_default();
        assert!(load.now < latest, "policy {which}, {text_mode:?} gave up only at {:?}", load.now);
        assert!(load.texts.iter().all(|&t| t == 1));
    }
}

#[test]
fn a_failed_read_keeps_the_level_that_arrived() {
    let mut fetcher = Fetcher::new(plan(&[vec![100, 100]], ms(1000), None), policy(0), config(1.0)).unwrap();
    fetcher.on(FetcherEvent::Start, Duration::ZERO);
    fetcher.on(FetcherEvent::Bytes { request: RequestId(0), bytes: 150 }, ms(1));
    let actions = fetcher.on(FetcherEvent::Failed { request: RequestId(0), permanent: true }, ms(2));
    assert_eq!(actions, [FetcherAction::Decode { chunk: 0, level: Level(0) }]);
}

#[test]
fn a_transient_failure_resumes_where_the_bytes_ended() {
    let mut fetcher = Fetcher::new(plan(&[vec![100, 100]], ms(1000), None), policy(0), config(1.0)).unwrap();
    fetcher.on(FetcherEvent::Start, Duration::ZERO);
    fetcher.on(FetcherEvent::Bytes { request: RequestId(0), bytes: 150 }, ms(1));
    let actions = fetcher.on(FetcherEvent::Failed { request: RequestId(0), permanent: false }, ms(2));
    assert_eq!(actions[0], FetcherAction::Fetch { request: RequestId(1), chunk: 0, start: 150, end: 200 });
}

/// Two chunks of 150 ms on the GPU each, 200 ms in all; the link brings nothing, then all of it.
#[test]
fn what_would_be_computed_late_goes_on_being_read() {
    let sizes = [vec![1_000_000], vec![1_000_000]];
    let config = config(150e-3 / 1536.0);
    let mut fetcher = Fetcher::new(plan(&sizes, ms(200), None), policy(2), config).unwrap();
    let mut open = BTreeMap::new();
    let (mut computing, mut withdrawn, mut decoded) = (Vec::new(), Vec::new(), Vec::new());
    let mut take = |actions: Vec<FetcherAction>, open: &mut BTreeMap<usize, (RequestId, u64)>| {
        for action in actions {
            match action {
                FetcherAction::Fetch { request, chunk, start, end } => {
                    open.insert(chunk, (request, end - start));
                }
                FetcherAction::Cancel { request } => open.retain(|_, (r, _)| *r != request),
                FetcherAction::Recompute { chunk } => computing.push(chunk),
                FetcherAction::Withdraw { chunk } => withdrawn.push(chunk),
                FetcherAction::Decode { chunk, .. } => decoded.push(chunk),
                FetcherAction::WakeAt(_) | FetcherAction::Done => {}
            }
        }
    };
    take(fetcher.on(FetcherEvent::Start, ms(0)), &mut open);
    for t in (2..150).step_by(2) {
        let request = open.values().next().map(|&(request, _)| request).expect("the link is never left idle");
        take(fetcher.on(FetcherEvent::Bytes { request, bytes: 100 }, ms(t)), &mut open);
    }
    take(fetcher.on(FetcherEvent::Recomputed { chunk: 0, took: Some(ms(150)) }, ms(150)), &mut open);
    let &(request, _) = open.get(&1).expect("the second chunk is read while it is computed");
    take(fetcher.on(FetcherEvent::Bytes { request, bytes: 1_000_000 }, ms(180)), &mut open);
    take(fetcher.on(FetcherEvent::Decoded { chunk: 1, took: ms(1) }, ms(181)), &mut open);
    assert!(fetcher.is_done());
    assert_eq!((computing, withdrawn, decoded), (vec![0, 1], vec![1], vec![1]));
    assert_eq!(fetcher.text_ranges(), [TokenRange { start: 0, end: 1536 }]);
}

/// One chunk of 60 ms on the GPU, 200 ms in all. The GPU stalls; what the link brought meanwhile is decoded at the last moment.
#[test]
fn what_the_gpu_is_late_with_is_read_and_decoded_in_time() {
    let config = config(60e-3 / 1536.0);
    let mut fetcher = Fetcher::new(plan(&[vec![1_000_000]], ms(200), None), policy(2), config).unwrap();
    let (mut now, mut read, mut ended) = (0, None, None);
    let mut actions = fetcher.on(FetcherEvent::Start, ms(0));
    assert!(actions.contains(&FetcherAction::Recompute { chunk: 0 }), "text loses nothing, and fits");
    while !fetcher.is_done() {
        let mut wake = None;
        for action in std::mem::take(&mut actions) {
            match action {
                FetcherAction::Fetch { request, .. } => read = Some((now, request)),
                FetcherAction::Withdraw { .. } => ended = Some(now),
                FetcherAction::Decode { .. } => {
                    actions.extend(fetcher.on(FetcherEvent::Decoded { chunk: 0, took: ms(1) }, ms(now + 1)));
                }
                FetcherAction::WakeAt(at) => wake = Some(at.as_millis() as u64),
                _ => {}
            }
        }
        if fetcher.is_done() {
            break;
        }
        if let Some((_, request)) = read.filter(|_| ended.is_none() && now < 100) {
            now = 100;
            actions.extend(fetcher.on(FetcherEvent::Bytes { request, bytes: 1_000_000 }, ms(now)));
            actions.extend(fetcher.on(FetcherEvent::Completed { request }, ms(now)));
            continue;
        }
        now = wake.expect("it looks again").max(now + 1);
        assert!(now < 250, "it waits for the GPU");
        actions.extend(fetcher.on(FetcherEvent::Tick, ms(now)));
    }
    let (read, ended) = (read.expect("it is read").0, ended.expect("the GPU is not waited for"));
    assert!((63..100).contains(&read), "once it is overdue: {read}");
    assert!((150..200).contains(&ended), "as late as the deadline allows: {ended}");
}

/// One chunk whose decode should take 50 ms, 1 s in all; the link dies under the refinement. Two percent are kept free.
#[test]
fn a_decode_of_uncertain_length_begins_sooner() {
    let begun = |decode: DecodeModel| {
        let config = FetcherConfig { decode, ..config(1.0) };
        let plan = plan(&[vec![100_000, 100_000]], ms(1000), Some(40.0));
        let mut fetcher = Fetcher::new(plan, policy(2), config).unwrap();
        let request = RequestId(0);
        let mut actions = fetcher.on(FetcherEvent::Start, ms(0));
        for (event, at) in [
            (FetcherEvent::Bytes { request, bytes: 50_000 }, 10),
            (FetcherEvent::Bytes { request, bytes: 50_000 }, 20),
            (FetcherEvent::Completed { request }, 20),
        ] {
            actions.extend(fetcher.on(event, ms(at)));
        }
        let refines = |action: &FetcherAction| matches!(action, FetcherAction::Fetch { start: 100_000, .. });
        assert!(actions.iter().any(refines), "{actions:?}");
        let (mut now, mut wake) = (ms(20), None);
        loop {
            for action in &actions {
                match action {
                    FetcherAction::Decode { .. } => return now.as_millis(),
                    FetcherAction::WakeAt(at) => wake = Some(*at),
                    _ => {}
                }
            }
            now = wake.take().expect("it looks again");
            actions = fetcher.on(FetcherEvent::Tick, now);
        }
    };
    let unknown = DecodeModel::from_seconds(50e-3 / 1536.0, 0.0);
    let mut steady = unknown.clone();
    (0..20).for_each(|_| steady.observe(1536, 0, ms(50)));
    assert!((875..885).contains(&begun(unknown)), "twice the time");
    assert!((925..930).contains(&begun(steady)), "hardly more than the time");
}

#[test]
fn impossible_plans_are_refused() {
    for bad in [vec![], vec![0], vec![5, 4]] {
        let mut bad_plan = plan(&[vec![1; bad.len()]], ms(1), None);
        bad_plan.chunks[0].level_bytes = bad;
        assert!(Fetcher::new(bad_plan, policy(0), config(1.0)).is_err());
    }
    let mut gap = plan(&[vec![1], vec![1]], ms(1), None);
    gap.chunks[1].tokens.start += 1;
    assert!(Fetcher::new(gap, policy(0), config(1.0)).is_err());
}

#[test]
fn an_empty_load_is_done_at_once() {
    let mut fetcher = Fetcher::new(plan(&[], ms(1), None), policy(2), config(1.0)).unwrap();
    assert_eq!(fetcher.on(FetcherEvent::Start, Duration::ZERO), [FetcherAction::Done]);
}
