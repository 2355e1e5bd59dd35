//! Cost models over the loads of a client.

use std::collections::VecDeque;

use kvasir_types::{KvDtype, KvLayout, LayerKv, ModelSpec, Reuse};

use super::{
    super::{progress::LoadProgress, recorder::LoadRecorder},
    *,
};
use crate::{
    Error,
    fetcher::{
        CacheGen, EstimatorKind, FetcherAction, FetcherEvent, Policy, PolicyStep, PolicyView, Progressive,
    },
    pages::{HostPages, Shard},
    rest::ReadReport,
};

const MS: Duration = Duration::from_millis(1);
const CHUNKS: u64 = 4;
const CHUNK_TOKENS: u64 = 1536;
/// What a link brings at a time.
const PIECE_BYTES: u64 = 20_000;
/// The time between two pieces.
const FAST: Option<Duration> = Some(MS);
const CRAWLING: Option<Duration> = Some(Duration::from_millis(200));
/// Reads fail.
const GONE: Option<Duration> = None;
/// When texts are computed, and the deadline: less than computing four chunks takes, or more.
const HURRIED: (TextMode, Duration) = (TextMode::Deferred, Duration::from_millis(500));
const LEISURELY: (TextMode, Duration) = (TextMode::Overlapped, Duration::from_secs(10));

fn progressive() -> Box<dyn Policy> {
    Box::new(Progressive::new())
}

fn cachegen() -> Box<dyn Policy> {
    Box::new(CacheGen::default())
}

/// Computes everything.
#[derive(Debug)]
struct Texts;

impl Policy for Texts {
    fn name(&self) -> &'static str {
        "texts"
    }

    fn next(&mut self, view: &PolicyView<'_>) -> PolicyStep {
        let first = view.open().next().map(|(chunk, ..)| PolicyStep::Text { chunk });
        first.unwrap_or(PolicyStep::Wait { until: None })
    }
}

/// A client whose engine computes a chunk in 154 ms, which assumes a time of a chunk's decode.
struct Machine {
    learned: LearnedCosts,
    assumed: DecodeModel,
}

impl Machine {
    fn new(assumed: Duration) -> Self {
        Self {
            learned: LearnedCosts::new(RecomputeModel::from_seconds(0.0, 1e-4, 0.0)),
            assumed: DecodeModel::from_seconds(assumed.as_secs_f64() / CHUNK_TOKENS as f64, 0.0),
        }
    }

    fn load(&self, policy: Box<dyn Policy>, link: Option<Duration>, decode: Duration) -> usize {
        self.load_in(HURRIED, policy, link, decode)
    }

    /// A load of four chunks, and whether it tries what seems slow.
    fn begin(
        &self,
        (text_mode, slo): (TextMode, Duration),
        policy: Box<dyn Policy>,
    ) -> (Fetcher, Option<Trial>) {
        let models = self.learned.models();
        let chunk = |index: u64| {
            let tokens = TokenRange { start: index * CHUNK_TOKENS, end: (index + 1) * CHUNK_TOKENS };
            PlannedChunk::with_default_loss(tokens, vec![5 * PIECE_BYTES])
        };
        let mut plan = FetchPlan {
            chunks: (0..CHUNKS).map(chunk).collect(),
            slo,
            suffix_time: Duration::ZERO,
            prior_rate: models.rate,
            first_byte: None,
        };
        let mut config = FetcherConfig {
            estimator: EstimatorKind::Harmonic,
            recompute: models.recompute,
            decode: models.decode.unwrap_or_else(|| self.assumed.clone()),
            text_mode,
            decodes_on_gpu: false,
        };
        let trial = self.learned.put_to_the_test(&mut plan, &mut config, false);
        (Fetcher::new(plan, policy, config).unwrap(), trial)
    }

    /// A whole load; a decode takes `decode`. Returns the number of chunks that were decoded.
    fn load_in(
        &self,
        mode: (TextMode, Duration),
        policy: Box<dyn Policy>,
        link: Option<Duration>,
        decode: Duration,
    ) -> usize {
        let (mut fetcher, trial) = self.begin(mode, policy);
        let mut recorder = LoadRecorder::new(CHUNKS as usize);
        let (mut now, mut events) = (Duration::ZERO, VecDeque::from([FetcherEvent::Start]));
        while !fetcher.is_done() {
            assert!(now < Duration::from_secs(60), "it ends: {fetcher:?}");
            let event = events.pop_front().unwrap_or(FetcherEvent::Tick);
            for action in fetcher.on(event, now) {
                match action {
                    FetcherAction::Fetch { request, start, end, .. } if link.is_some() => {
                        let pieces = (start..end).step_by(PIECE_BYTES as usize);
                        let bytes = |at: u64| PIECE_BYTES.min(end - at);
                        events.extend(pieces.map(|at| FetcherEvent::Bytes { request, bytes: bytes(at) }));
                        events.push_back(FetcherEvent::Completed { request });
                    }
                    FetcherAction::Fetch { request, chunk, .. } => {
                        recorder.record_failure(chunk, now, Error::protocol("gone").into());
                        events.push_back(FetcherEvent::Failed { request, permanent: true });
                    }
                    FetcherAction::Decode { chunk, .. } => {
                        events.push_back(FetcherEvent::Decoded { chunk, took: decode });
                    }
                    FetcherAction::Recompute { chunk } => {
                        events.push_back(FetcherEvent::Recomputed { chunk, took: None });
                    }
                    _ => {}
                }
            }
            now += link.unwrap_or(MS);
        }
        let progress = LoadProgress::new(Vec::new(), 1, TokenRange { start: 0, end: CHUNKS * CHUNK_TOKENS });
        let report = recorder.report(&fetcher, progress, ReadReport::default(), now);
        self.learned.learn(&fetcher, &report, false, trial.is_some());
        fetcher.chunks().iter().filter(|chunk| chunk.level().is_some()).count()
    }

    /// Whether one of the next loads decodes, which are as many as the first patience.
    fn decodes_again(&self, policy: fn() -> Box<dyn Policy>) -> bool {
        (0..PATIENCE.0).any(|_| self.load(policy(), FAST, 15 * MS) > 0)
    }
}

/// The machine was suspended while it decoded: 15 ms took 15 s.
#[test]
fn a_load_that_decoded_extremely_slowly_is_forgotten() {
    let machine = Machine::new(15 * MS);
    // As soon the second time: in between, decoding was fast.
    for _ in 0..2 {
        assert_eq!(machine.load(progressive(), FAST, 15_000 * MS), 4);
        let slow = machine.learned.models().decode;
        assert_eq!(machine.load(progressive(), FAST, 15 * MS), 0, "computing seems faster by far");
        assert_eq!(machine.learned.models().decode, slow, "nothing was measured");
        assert!(machine.decodes_again(progressive));
        for _ in 0..PATIENCE.0 {
            assert_eq!(machine.load(progressive(), FAST, 15 * MS), 4);
        }
        let decode = machine.learned.models().decode.unwrap().predict(CHUNK_TOKENS, 0);
        assert!((10 * MS..20 * MS).contains(&decode), "{decode:?}");
    }
}

#[test]
fn an_assumption_by_which_nothing_would_be_decoded_is_put_to_the_test() {
    let machine = Machine::new(7_500 * MS);
    assert_eq!(machine.load(progressive(), FAST, 15 * MS), 0);
    assert_eq!(machine.learned.models().decode, None, "nothing was measured");
    assert!(machine.decodes_again(progressive));
}

#[test]
fn decoding_that_is_slow_is_tried_ever_more_rarely() {
    let tries = |machine: &Machine, decode: Duration| {
        (0..1_000).filter(|_| machine.load(progressive(), FAST, decode) > 0).count()
    };
    let machine = Machine::new(15 * MS);
    // The first load, and one after 8 others, 16, 32, 64, 128 and 256; then two after 512.
    assert_eq!([(); 2].map(|()| tries(&machine, 3_600 * MS)), [7, 2]);
    // Hardly slower than computing all: after a quarter was assumed, several loads decode until that is known again.
    let few = tries(&Machine::new(15 * MS), 700 * MS);
    assert!((7..40).contains(&few), "{few}");
}

/// Such texts are computed however fast decoding is: they are not counted, and do not waste the load that tries it.
#[test]
fn texts_that_fit_the_deadline_tell_nothing() {
    let machine = Machine::new(7_500 * MS);
    for _ in 0..2 * PATIENCE.0 {
        assert_eq!(machine.load_in(LEISURELY, Box::new(Texts), FAST, 15 * MS), 0);
    }
    for _ in 0..PATIENCE.0 {
        assert_eq!(machine.load(progressive(), FAST, 15 * MS), 0);
    }
    assert_eq!(machine.load_in(LEISURELY, Box::new(Texts), FAST, 15 * MS), 0);
    let tight = (TextMode::Overlapped, Duration::from_secs(1));
    assert!(machine.begin(tight, Box::new(Texts)).1.is_some(), "they fit by the mean, and not with caution");
    assert!(machine.load(progressive(), FAST, 15 * MS) > 0);
}

#[test]
fn a_link_that_was_dead_is_tried_again() {
    for policy in [progressive as fn() -> Box<dyn Policy>, cachegen] {
        let machine = Machine::new(15 * MS);
        let rate = || machine.learned.models().rate.unwrap().bytes_per_second();
        assert_eq!(machine.load(policy(), CRAWLING, 15 * MS), 0);
        assert!(rate() < 2e5, "{}", rate());
        assert_eq!(machine.load(policy(), FAST, 15 * MS), 0, "given up at once");
        assert!(machine.decodes_again(policy));
        assert!(rate() > 5e6, "{}", rate());
    }
}

/// They do not tell whether they would have decoded: here they would have, although it takes two thirds of computing.
#[test]
fn loads_that_fail_change_nothing() {
    let machine = Machine::new(100 * MS);
    assert_eq!(machine.load(progressive(), FAST, 100 * MS), 4);
    let state = || {
        let Learned { models, patience, .. } = machine.learned.with(|learned| learned.clone());
        (models.decode, models.rate, patience.map(|p| (p.untried, p.decoded, p.max)))
    };
    let before = state();
    for _ in 0..2 * PATIENCE.0 {
        assert_eq!(machine.load(progressive(), GONE, 100 * MS), 0);
    }
    assert_eq!(state(), before);
}

/// One that tries what seems slow, too: the next one tries it.
#[test]
fn a_try_that_fails_or_is_dropped_is_repeated() {
    let machine = Machine::new(7_500 * MS);
    let is_trial = || machine.begin(HURRIED, progressive()).1.is_some();
    for _ in 0..PATIENCE.0 {
        assert!(!is_trial());
        assert_eq!(machine.load(progressive(), FAST, 15 * MS), 0);
    }
    let patience = || machine.learned.with(|learned| learned.patience[0].max);
    assert_eq!(machine.load(progressive(), GONE, 15 * MS), 0);
    assert!(is_trial(), "the last one failed");
    let running = machine.begin(HURRIED, progressive());
    assert!(running.1.is_some(), "the last one was dropped");
    assert!(!is_trial(), "one at a time");
    drop(running);
    assert_eq!(patience(), PATIENCE.0);
    assert!(machine.load(progressive(), FAST, 15 * MS) > 0);
    assert_eq!(patience(), 2 * PATIENCE.0);
}

/// A token of 64 layers of 8 heads × 128, by a direct profile and by one with a basis.
#[test]
fn what_is_assumed_is_what_was_measured() {
    let ms = |rank: f64, cores: usize| (thread_seconds(131_072, rank, cores) * 1e5).round() / 100.0;
    assert_eq!([ms(0.0, 2), ms(673.0, 2)], [0.17, 2.34]);
    // Two threads share one core, or have six each.
    assert_eq!([ms(0.0, 1), ms(673.0, 12)], [0.34, 0.39]);
}

#[test]
fn a_load_decodes_on_a_core_for_each_span_of_two_chunks() {
    assert_eq!(decoding_cores(2, 1_536), 2, "all that there are");
    assert_eq!(decoding_cores(64, 1_536), 12, "two chunks of six spans");
    assert_eq!(decoding_cores(64, 300), 4);
}

/// Three layers of 32 elements a token, of which the tables hold these parts.
fn context(shards: &[Shard]) -> DecodeContext {
    let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 8 }, rope: None };
    let spec = ModelSpec {
        weights: "toy".into(),
        revision: "1".into(),
        adapter: None,
        kv_dtype: KvDtype::F16,
        ropes: Vec::new(),
        layers: vec![layer; 3],
        thinning: None,
        reuse: Reuse::Prefix,
    };
    let pages = HostPages::new(&spec, 16, 16).unwrap();
    let tables = shards.iter().map(|shard| pages.table().with_shard(shard.clone())).collect();
    DecodeContext::new(Arc::new(spec), tables, Arc::default())
}

/// What was measured may be of a profile that decodes much faster.
#[test]
fn the_cpu_is_as_slow_as_it_was_or_is_assumed_to_be() {
    let (held, tokens) = (context(&[Shard::ALL]), TokenRange { start: 0, end: 1 << 20 });
    let chunks = [PlannedChunk::with_default_loss(tokens, vec![1_000, 2_000])];
    let pace = |seconds: Option<f64>| {
        let measured = seconds.map(|seconds| DecodeModel::from_seconds(seconds, 0.0));
        cpu_pace(measured.as_ref(), &held, &[], &chunks)
    };
    let assumed = pace(None);
    assert!(assumed > 0.0 && pace(Some(assumed * 96.0 / 2.0)) == assumed, "{assumed}");
    assert!((pace(Some(assumed * 96.0 * 2.0)) / assumed - 2.0).abs() < 1e-3);
}

#[test]
fn a_rank_decodes_its_own_part() {
    let seconds =
        |shards: &[Shard]| unmeasured_decode(&context(shards), &[], &[]).predict(1 << 30, 0).as_secs_f64();
    let (whole, ranks) = (seconds(&[Shard::ALL]), [0, 1].map(|rank| Shard::tensor_parallel(rank, 2, 2)));
    assert!((seconds(&ranks) / whole - 1.0).abs() < 1e-6);
    assert!((seconds(&ranks[..1]) / whole - 0.5).abs() < 1e-6);
    assert!(seconds(&[]) > 0.0);
}
