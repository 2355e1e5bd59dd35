//! Splits and forecasts of one moment.

use std::time::Duration;

use kvasir_types::{Level, TokenRange};

use super::{
    forecast::Forecast,
    split::{Caution, Split},
};
use crate::fetcher::{
    ByteRate, ChunkFetchState, ChunkStatus, DecodeModel, FetchPlan, Neighbours, PlannedChunk, PolicyView,
    RecomputeModel, TextMode,
};

const MS: Duration = Duration::from_millis(1);

/// A load of chunks of 1 MB on a link of 100 MB/s, 10 ms each; a decode takes nothing.
pub(super) struct Load {
    plan: FetchPlan,
    pub(super) chunks: Vec<ChunkFetchState>,
    pub(super) own_rates: Vec<Option<ByteRate>>,
    recompute: RecomputeModel,
    decode: DecodeModel,
}

impl Load {
    pub(super) fn new(chunks: usize, compute: Duration) -> Self {
        let chunk = |i: u64| {
            let tokens = TokenRange { start: i * 1536, end: (i + 1) * 1536 };
            PlannedChunk::with_default_loss(tokens, vec![1_000_000])
        };
        Self {
            plan: FetchPlan {
                chunks: (0..chunks as u64).map(chunk).collect(),
                slo: 500 * MS,
                suffix_time: Duration::ZERO,
                prior_rate: None,
                first_byte: None,
            },
            chunks: vec![ChunkFetchState::default(); chunks],
            own_rates: vec![None; chunks],
            recompute: RecomputeModel::from_seconds(0.0, compute.as_secs_f64() / 1536.0, 0.0),
            decode: DecodeModel::from_seconds(0.0, 0.0),
        }
    }

    pub(super) fn view(&self, now: Duration) -> PolicyView<'_> {
        let fetching = |c: &&ChunkFetchState| matches!(c.status, ChunkStatus::Fetching { .. });
        PolicyView {
            now,
            plan: &self.plan,
            chunks: &self.chunks,
            rate: ByteRate::new(1e8),
            chunk_rate: ByteRate::new(1e8),
            caution: 1.0,
            own_rates: &self.own_rates,
            first_byte: 150 * MS,
            first_due: Duration::ZERO,
            in_flight: self.chunks.iter().filter(fetching).count(),
            in_flight_bytes: 0,
            text_backlog: Duration::ZERO,
            overdue: 1.0,
            jitter: Duration::ZERO,
            text_mode: TextMode::Overlapped,
            decodes_on_gpu: false,
            neighbours: Neighbours::default(),
            recompute: &self.recompute,
            decode: &self.decode,
        }
    }
}

/// Both bases flow, 10 ms each, 50 ms before the deadline. No further request is needed, so a round trip of 150 ms is no
/// reason to leave any to the GPU.
#[test]
fn what_is_requested_waits_for_no_further_round_trip() {
    let mut load = Load::new(2, 40 * MS);
    for chunk in &mut load.chunks {
        chunk.status = ChunkStatus::Fetching { level: Level::BASE };
    }
    let view = load.view(450 * MS);
    let plan = Forecast::of(&view, Duration::ZERO);
    let split = Split::best(&plan, 0.05);
    assert_eq!((split.texts.as_slice(), split.link), ([].as_slice(), 20 * MS));
    // The second one would have to be requested.
    load.chunks[1].status = ChunkStatus::Idle;
    let view = load.view(450 * MS);
    let plan = Forecast::of(&view, Duration::ZERO);
    assert_eq!(plan.wait_for([1].into_iter()), 140 * MS);
    assert_eq!(plan.wait_for([0].into_iter()), Duration::ZERO);
}

/// Nothing is requested yet. The GPU begins with the first chunk at once, whatever the round trip.
#[test]
fn the_gpu_waits_for_no_round_trip_before_the_first_chunk() {
    let load = Load::new(2, 200 * MS);
    let view = load.view(Duration::ZERO);
    let plan = Forecast::of(&view, Duration::ZERO);
    let caution = Caution { link: 1.0, gpu: vec![1.0; 2] };
    let of = |texts: &[usize]| Split::of(&plan, &[0, 1], texts, &caution, 0.05);
    assert_eq!((of(&[0]).gpu, of(&[0]).link), (200 * MS, 160 * MS));
    assert_eq!(of(&[1]).gpu, (150 + 10 + 200) * MS, "it waits for the base before it");
    assert_eq!(of(&[]).link, (150 + 20) * MS);
}

/// The engine computes after the load: 10 ms a chunk, twice that in one of a hundred cases. The link may need three times
/// as long. What is left to the engine keeps the deadline then, too, where any number does.
#[test]
fn what_is_left_to_the_engine_follows_the_cautious_forecast() {
    let load = Load::new(4, 10 * MS);
    let texts = |left: u32, caution: f64| {
        let view = PolicyView { first_byte: 5 * MS, caution, ..load.view(500 * MS - left * MS) };
        Forecast::of(&view, Duration::ZERO).deferred_texts()
    };
    assert_eq!(texts(100, 3.0), 3, "30 ms on the link and 60 on the GPU, not 120 on the link");
    assert_eq!(texts(100, 1.0), 0);
    assert_eq!(texts(48, 3.0), 0, "no number is in time but by the mean");
}

/// The GPU takes 95 of the last 100 ms for one chunk. Decoding the other one takes none of its time, unless it decodes.
#[test]
fn the_gpu_may_compute_until_the_deadline_unless_it_decodes() {
    let mut load = Load::new(2, 95 * MS);
    load.decode = DecodeModel::from_seconds(10e-3 / 1536.0, 0.0);
    for _ in 0..20 {
        let tokens = load.plan.chunks[0].tokens;
        load.recompute.observe(tokens, load.recompute.predict(tokens));
    }
    let in_time = |decodes_on_gpu| {
        let view = PolicyView { first_byte: 5 * MS, decodes_on_gpu, ..load.view(400 * MS) };
        let plan = Forecast::of(&view, 10 * MS);
        Split::of(&plan, &[0, 1], &[0], &Caution::of(&plan, &[0, 1]), 0.05).is_in_time(&plan)
    };
    assert!(in_time(false) && !in_time(true));
}
