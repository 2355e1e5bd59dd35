//! The simulated world: one link, one GPU, one decoder, any number of loads.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    time::Duration,
};

use kvasir_client::fetcher::{
    Action, DecodeModel, Event, FetchPlan, Fetcher, FetcherConfig, InvalidPlan, Neighbours, Policy,
    RecomputeModel, RequestId,
};
use kvasir_client::limits::NEIGHBOUR_STEP_BYTES;
use kvasir_types::Level;

use crate::link::BandwidthSeries;

/// Bytes are delivered in pieces of about this long on the wire.
const PIECE: Duration = Duration::from_millis(2);
/// Smallest and largest piece.
const PIECE_BYTES: (u64, u64) = (4 << 10, 8 << 20);
/// Most simulated events of one run; a run that needs more does not end.
const EVENTS_MAX: usize = 5_000_000;

/// How fast the link is.
#[derive(Debug, Clone, PartialEq)]
pub enum LinkRate {
    /// A bandwidth over time.
    Series(BandwidthSeries),
    /// One rate per chunk index, in megabits per second, whichever request carries its bytes: the paper's
    /// setting, where the bandwidth of every chunk's transfer is drawn anew. Repeats past its end.
    PerChunk(Vec<f64>),
}

impl LinkRate {
    /// When `bytes` of `chunk` that start at `now` have arrived.
    pub fn time_after(&self, now: Duration, chunk: usize, bytes: u64) -> Duration {
        match self {
            Self::Series(series) => series.time_after(now, bytes),
            Self::PerChunk(rates) => {
                let mbps = rates.get(chunk % rates.len().max(1)).copied().unwrap_or(1.0).max(1e-3);
                now + Duration::from_secs_f64(bytes as f64 * 8.0 / (mbps * 1e6))
            }
        }
    }

    /// The same link with every rate times `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        match self {
            Self::Series(series) => Self::Series(series.scaled(factor)),
            Self::PerChunk(rates) => Self::PerChunk(rates.into_iter().map(|rate| rate * factor).collect()),
        }
    }

    fn piece_bytes(&self, now: Duration, chunk: usize) -> u64 {
        let probe = 1 << 20;
        let took = self.time_after(now, chunk, probe).saturating_sub(now).as_secs_f64().max(1e-9);
        let bytes = probe as f64 * PIECE.as_secs_f64() / took;
        (bytes as u64).clamp(PIECE_BYTES.0, PIECE_BYTES.1)
    }
}

/// What is the same for every load.
#[derive(Debug, Clone)]
pub struct WorldConfig {
    /// The link.
    pub link: LinkRate,
    /// From sending a request to its first byte, when the link is free.
    pub first_byte: Duration,
    /// True prefill times (the loads' models are only predictions).
    pub recompute: RecomputeModel,
    /// True decode times.
    pub decode: DecodeModel,
    /// How loads share the link.
    pub sharing: Sharing,
}

/// How the bytes of several loads take turns on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// Piece by piece in turn, as TCP flows of equal round trip do.
    #[default]
    RoundRobin,
    /// The load with the least time to its deadline first among those that can still make it.
    LeastSlack,
}

/// One load of a run.
#[derive(Debug)]
pub struct LoadSpec {
    /// When it begins.
    pub arrival: Duration,
    /// What it loads.
    pub plan: FetchPlan,
    /// By which policy.
    pub policy: Box<dyn Policy>,
    /// With which models.
    pub config: FetcherConfig,
}

/// What became of a load.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Time to first token.
    pub ttft: Duration,
    /// Whether that is within the SLO.
    pub met: bool,
    /// Mean over tokens of 1 − loss; text loses nothing.
    pub quality: f64,
    /// Bytes on the wire.
    pub bytes: u64,
    /// Level per chunk; `None` for text.
    pub levels: Vec<Option<Level>>,
    /// Whether the load was given up.
    pub gave_up: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Arrival { load: usize },
    Available { load: usize, request: RequestId },
    PieceDone { load: usize, request: RequestId, bytes: u64 },
    Decoded { load: usize, chunk: usize, took: Duration },
    Computed { load: usize, chunk: usize, took: Duration },
    Wake { load: usize },
}

#[derive(Debug)]
struct Flow {
    load: usize,
    request: RequestId,
    chunk: usize,
    left: u64,
}

#[derive(Debug)]
struct Running {
    fetcher: Fetcher,
    arrival: Duration,
    requests: BTreeMap<RequestId, (usize, u64)>,
    wake: Option<Duration>,
    texts: VecDeque<usize>,
    resolved: Vec<bool>,
    finished: Option<Duration>,
    wire_bytes: u64,
    started: bool,
    neighbours: Neighbours,
}

/// What the cores of a run decided: when, for which load, and what.
pub type Trace = Vec<(Duration, usize, Action)>;

/// Runs loads to their end. Deterministic: the same arguments give the same outcomes and the same trace.
#[derive(Debug)]
pub struct World {
    config: WorldConfig,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64, Happening)>>,
    sequence: u64,
    loads: Vec<Running>,
    flows: VecDeque<Flow>,
    link_busy: bool,
    decoder_free: Duration,
    gpu_busy: bool,
    trace: Trace,
}

impl World {
    /// Simulates `loads` until each is done.
    ///
    /// # Errors
    /// [`InvalidPlan`] for a plan that the core refuses.
    pub fn run(config: WorldConfig, loads: Vec<LoadSpec>) -> Result<(Vec<Outcome>, Trace), InvalidPlan> {
        let mut world = Self {
            config,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            sequence: 0,
            loads: Vec::new(),
            flows: VecDeque::new(),
            link_busy: false,
            decoder_free: Duration::ZERO,
            gpu_busy: false,
            trace: Vec::new(),
        };
        for (load, spec) in loads.into_iter().enumerate() {
            let resolved = vec![false; spec.plan.chunks.len()];
            let fetcher = Fetcher::new(spec.plan, spec.policy, spec.config)?;
            world.loads.push(Running {
                fetcher,
                arrival: spec.arrival,
                requests: BTreeMap::new(),
                wake: None,
                texts: VecDeque::new(),
                resolved,
                finished: None,
                wire_bytes: 0,
                started: false,
                neighbours: Neighbours::default(),
            });
            world.at(spec.arrival, Happening::Arrival { load });
        }
        for _ in 0..EVENTS_MAX {
            let Some(Reverse((at, _, happening))) = world.queue.pop() else { break };
            world.now = at;
            world.happen(happening);
            world.tell_neighbours();
            world.send_piece();
        }
        let outcomes = world.loads.iter().map(Running::outcome).collect();
        Ok((outcomes, world.trace))
    }

    fn at(&mut self, time: Duration, happening: Happening) {
        self.sequence += 1;
        self.queue.push(Reverse((time.max(self.now), self.sequence, happening)));
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrival { load } => {
                self.loads[load].started = true;
                self.feed(load, Event::Start);
            }
            Happening::Available { load, request } => {
                if let Some(&(chunk, left)) = self.loads[load].requests.get(&request) {
                    self.flows.push_back(Flow { load, request, chunk, left });
                }
            }
            Happening::PieceDone { load, request, bytes } => self.piece_done(load, request, bytes),
            Happening::Decoded { load, chunk, took } => {
                self.loads[load].resolved[chunk] = true;
                self.feed(load, Event::Decoded { chunk, took });
                self.start_gpu();
            }
            Happening::Computed { load, chunk, took } => {
                self.gpu_busy = false;
                self.loads[load].resolved[chunk] = true;
                self.feed(load, Event::Recomputed { chunk, took: Some(took) });
                self.start_gpu();
            }
            Happening::Wake { load } => {
                if self.loads[load].wake.is_some_and(|at| at <= self.now)
                    && self.loads[load].finished.is_none()
                {
                    self.loads[load].wake = None;
                    self.feed(load, Event::Tick);
                }
            }
        }
    }

    /// Tells each running load who else is there, when that changed.
    fn tell_neighbours(&mut self) {
        let running: Vec<usize> = (0..self.loads.len()).filter(|&i| self.loads[i].is_running()).collect();
        let missing: u64 = running.iter().map(|&i| self.loads[i].fetcher.missing_bytes()).sum();
        for &i in &running {
            let neighbours = Neighbours {
                loads: running.len() as u32 - 1,
                missing_bytes: missing - self.loads[i].fetcher.missing_bytes(),
            };
            // In steps, as in the shell: a load need not hear of every byte of the others.
            let coarse = |n: Neighbours| (n.loads, n.missing_bytes.div_ceil(NEIGHBOUR_STEP_BYTES));
            if coarse(neighbours) != coarse(self.loads[i].neighbours) {
                self.loads[i].neighbours = neighbours;
                self.feed(i, Event::Neighbours(neighbours));
            }
        }
    }

    fn piece_done(&mut self, load: usize, request: RequestId, bytes: u64) {
        self.link_busy = false;
        self.loads[load].wire_bytes += bytes;
        let Some((chunk, left)) = self.loads[load].requests.get_mut(&request) else { return };
        *left -= bytes;
        let (chunk, left) = (*chunk, *left);
        if left > 0 {
            self.flows.push_back(Flow { load, request, chunk, left });
        }
        self.feed(load, Event::Bytes { request, bytes });
        if left == 0 && self.loads[load].requests.remove(&request).is_some() {
            self.feed(load, Event::Completed { request });
        }
    }

    fn feed(&mut self, load: usize, event: Event) {
        let since = self.now.saturating_sub(self.loads[load].arrival);
        for action in self.loads[load].fetcher.on(event, since) {
            self.trace.push((self.now, load, action));
            match action {
                Action::Fetch { request, chunk, start, end } => {
                    self.loads[load].requests.insert(request, (chunk, end - start));
                    self.at(self.now + self.config.first_byte, Happening::Available { load, request });
                }
                Action::Cancel { request } => {
                    self.loads[load].requests.remove(&request);
                    self.flows.retain(|flow| flow.load != load || flow.request != request);
                }
                Action::Decode { chunk, level } => self.decode(load, chunk, level),
                Action::Recompute { chunk } => {
                    self.loads[load].texts.push_back(chunk);
                    self.start_gpu();
                }
                Action::WakeAt(at) => {
                    let at = self.loads[load].arrival + at;
                    self.loads[load].wake = Some(at);
                    self.at(at, Happening::Wake { load });
                }
                Action::Done => self.loads[load].finished = Some(since),
            }
        }
    }

    fn decode(&mut self, load: usize, chunk: usize, level: Level) {
        let plan = &self.loads[load].fetcher.plan().chunks[chunk];
        let took = self.config.decode.predict(plan.tokens.len(), plan.bytes_at(level));
        self.decoder_free = self.decoder_free.max(self.now) + took;
        self.at(self.decoder_free, Happening::Decoded { load, chunk, took });
    }

    /// Starts the first text chunk whose whole prefix is there.
    fn start_gpu(&mut self) {
        if self.gpu_busy {
            return;
        }
        // The least slack first: those whose deadline has passed come after those that can still meet it.
        let mut order: Vec<usize> = (0..self.loads.len()).collect();
        order.sort_by_key(|&i| (self.slack_key(i), i));
        for load in order {
            let running = &mut self.loads[load];
            let Some(&chunk) = running.texts.iter().min() else { continue };
            if running.resolved.iter().take(chunk).all(|&done| done) {
                running.texts.retain(|&c| c != chunk);
                let took = self.config.recompute.predict(running.fetcher.plan().chunks[chunk].tokens);
                self.gpu_busy = true;
                return self.at(self.now + took, Happening::Computed { load, chunk, took });
            }
        }
    }

    /// Whether a load's deadline has passed, and how far it is.
    fn slack_key(&self, load: usize) -> (bool, Duration) {
        let running = &self.loads[load];
        let deadline = running.arrival + running.fetcher.plan().deadline();
        (deadline < self.now, deadline.abs_diff(self.now))
    }

    fn send_piece(&mut self) {
        if self.link_busy {
            return;
        }
        let next = match self.config.sharing {
            Sharing::RoundRobin => 0,
            Sharing::LeastSlack => {
                (0..self.flows.len()).min_by_key(|&i| (self.slack_key(self.flows[i].load), i)).unwrap_or(0)
            }
        };
        let Some(flow) = self.flows.remove(next) else { return };
        let bytes = flow.left.min(self.config.link.piece_bytes(self.now, flow.chunk));
        let arrives = self.config.link.time_after(self.now, flow.chunk, bytes);
        self.link_busy = true;
        self.at(arrives, Happening::PieceDone { load: flow.load, request: flow.request, bytes });
    }
}

impl Running {
    fn is_running(&self) -> bool {
        self.started && self.finished.is_none()
    }

    fn outcome(&self) -> Outcome {
        let plan = self.fetcher.plan();
        let ttft = self.finished.unwrap_or(Duration::MAX).saturating_add(plan.suffix_time);
        let levels: Vec<_> = self.fetcher.timeline().iter().map(|line| line.level).collect();
        Outcome {
            ttft,
            met: ttft <= plan.slo,
            quality: quality(plan, &levels),
            bytes: self.wire_bytes,
            levels,
            gave_up: self.fetcher.gave_up(),
        }
    }
}

/// Mean over tokens of 1 − loss.
pub(super) fn quality(plan: &FetchPlan, levels: &[Option<Level>]) -> f64 {
    let tokens: u64 = plan.chunks.iter().map(|c| c.tokens.len()).sum();
    let lost: f64 = plan
        .chunks
        .iter()
        .zip(levels)
        .map(|(chunk, level)| level.map_or(0.0, |l| chunk.loss_at(l)) * chunk.tokens.len() as f64)
        .sum();
    1.0 - lost / (tokens.max(1) as f64)
}
