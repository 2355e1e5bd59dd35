//! A simulation: one link, one GPU, one decoder, any number of loads.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    time::Duration,
};

use kvasir_client::limits::NEIGHBOUR_STEP_BYTES;
use kvasir_client::tuning::{
    ChunkFetchState, Fetcher, FetcherAction, FetcherEvent, InvalidPlan, Neighbours, RequestId, TextMode,
};
use kvasir_types::Level;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::spec::{LoadSpec, Outcome, Sharing, SimulationConfig, quality};

/// Most simulated events of one run; a run that needs more does not end.
const EVENTS_MAX: usize = 5_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SimEvent {
    Arrival {
        load: usize,
    },
    Available {
        load: usize,
        request: RequestId,
    },
    PieceDone {
        load: usize,
        request: RequestId,
        bytes: u64,
    },
    Decoded {
        load: usize,
        chunk: usize,
        took: Duration,
    },
    Computed {
        load: usize,
        chunk: usize,
        took: Duration,
    },
    /// An engine that computes after the load has taken a chunk over.
    TakenOver {
        load: usize,
        chunk: usize,
    },
    Wake {
        load: usize,
    },
}

#[derive(Debug)]
struct Flow {
    load: usize,
    request: RequestId,
    chunk: usize,
    left: u64,
}

#[derive(Debug)]
struct ActiveLoad {
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

/// The decisions of a run's cores: time, load, and action.
pub type Trace = Vec<(Duration, usize, FetcherAction)>;

/// Runs loads to their end. Deterministic: the same arguments give the same results and the same trace.
#[derive(Debug)]
pub struct Simulation {
    config: SimulationConfig,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64, SimEvent)>>,
    sequence: u64,
    loads: Vec<ActiveLoad>,
    flows: VecDeque<Flow>,
    link_busy: bool,
    decoder_free: Duration,
    /// Whose chunk the GPU computes, and until when.
    gpu: Option<(usize, usize, Duration)>,
    trace: Trace,
    dice: ChaCha8Rng,
}

impl Simulation {
    /// Simulates `loads` until each is done.
    ///
    /// # Errors
    /// [`InvalidPlan`] for a plan that the core refuses.
    pub fn run(config: SimulationConfig, loads: Vec<LoadSpec>) -> Result<(Vec<Outcome>, Trace), InvalidPlan> {
        let dice = ChaCha8Rng::seed_from_u64(config.noise.seed);
        let mut simulation = Self {
            config,
            dice,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            sequence: 0,
            loads: Vec::new(),
            flows: VecDeque::new(),
            link_busy: false,
            decoder_free: Duration::ZERO,
            gpu: None,
            trace: Vec::new(),
        };
        for (load, spec) in loads.into_iter().enumerate() {
            let resolved = vec![false; spec.plan.chunks.len()];
            let fetcher = Fetcher::new(spec.plan, spec.policy, spec.config)?;
            simulation.loads.push(ActiveLoad {
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
            simulation.at(spec.arrival, SimEvent::Arrival { load });
        }
        for _ in 0..EVENTS_MAX {
            let Some(Reverse((at, _, event))) = simulation.queue.pop() else { break };
            simulation.now = at;
            simulation.handle(event);
            simulation.tell_neighbours();
            simulation.send_piece();
        }
        let outcomes = simulation.loads.iter().map(ActiveLoad::outcome).collect();
        Ok((outcomes, simulation.trace))
    }

    fn at(&mut self, time: Duration, event: SimEvent) {
        self.sequence += 1;
        self.queue.push(Reverse((time.max(self.now), self.sequence, event)));
    }

    /// How late something is that a busy machine does.
    fn lateness(&mut self) -> Duration {
        self.config.noise.late.mul_f64(self.dice.random_range(0.0..1.0))
    }

    fn handle(&mut self, event: SimEvent) {
        match event {
            SimEvent::Arrival { load } => {
                self.loads[load].started = true;
                self.feed(load, FetcherEvent::Start);
            }
            SimEvent::Available { load, request } => {
                if let Some(&(chunk, left)) = self.loads[load].requests.get(&request) {
                    self.flows.push_back(Flow { load, request, chunk, left });
                }
            }
            SimEvent::PieceDone { load, request, bytes } => self.piece_done(load, request, bytes),
            SimEvent::Decoded { load, chunk, took } => {
                self.loads[load].resolved[chunk] = true;
                self.feed(load, FetcherEvent::Decoded { chunk, took });
                self.start_gpu();
            }
            SimEvent::Computed { load, chunk, took } => {
                // Else it was withdrawn.
                if self.gpu == Some((load, chunk, self.now)) {
                    self.gpu = None;
                    self.loads[load].resolved[chunk] = true;
                    self.feed(load, FetcherEvent::Recomputed { chunk, took: Some(took) });
                    self.end_if_computed(load);
                    self.start_gpu();
                }
            }
            SimEvent::TakenOver { load, chunk } => {
                self.feed(load, FetcherEvent::Recomputed { chunk, took: None });
            }
            SimEvent::Wake { load } => {
                if self.loads[load].wake.is_some_and(|at| at <= self.now)
                    && self.loads[load].finished.is_none()
                {
                    self.loads[load].wake = None;
                    self.feed(load, FetcherEvent::Tick);
                }
            }
        }
    }

    /// Tells each running load which other loads run, when that changed.
    fn tell_neighbours(&mut self) {
        let running: Vec<usize> = (0..self.loads.len()).filter(|&i| self.loads[i].is_running()).collect();
        let missing: u64 = running.iter().map(|&i| self.loads[i].fetcher.missing_bytes()).sum();
        for &i in &running {
            let key = |load: usize| (self.loads[load].deadline(), load);
            let urgent = running.iter().filter(|&&other| key(other) < key(i));
            let neighbours = Neighbours {
                urgent_bytes: urgent.map(|&other| self.loads[other].fetcher.missing_bytes()).sum(),
                loads: running.len() as u32 - 1,
                missing_bytes: missing - self.loads[i].fetcher.missing_bytes(),
            };
            // In steps, as in the shell: a load need not hear of every byte of the others.
            let step = |bytes: u64| bytes.div_ceil(NEIGHBOUR_STEP_BYTES);
            let coarse = |n: Neighbours| (n.loads, step(n.missing_bytes), step(n.urgent_bytes));
            if coarse(neighbours) != coarse(self.loads[i].neighbours) {
                self.loads[i].neighbours = neighbours;
                self.feed(i, FetcherEvent::Neighbours(neighbours));
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
        self.feed(load, FetcherEvent::Bytes { request, bytes });
        if left == 0 && self.loads[load].requests.remove(&request).is_some() {
            self.feed(load, FetcherEvent::Completed { request });
        }
    }

    fn feed(&mut self, load: usize, event: FetcherEvent) {
        let since = self.now.saturating_sub(self.loads[load].arrival);
        for action in self.loads[load].fetcher.on(event, since) {
            self.trace.push((self.now, load, action));
            match action {
                FetcherAction::Fetch { request, chunk, start, end } => {
                    self.loads[load].requests.insert(request, (chunk, end - start));
                    self.at(self.now + self.config.first_byte, SimEvent::Available { load, request });
                }
                FetcherAction::Cancel { request } => {
                    self.loads[load].requests.remove(&request);
                    self.flows.retain(|flow| flow.load != load || flow.request != request);
                }
                FetcherAction::Decode { chunk, level } => self.decode(load, chunk, level),
                FetcherAction::Recompute { chunk } => {
                    self.loads[load].texts.push_back(chunk);
                    match self.config.text_mode {
                        TextMode::Overlapped => self.start_gpu(),
                        TextMode::Deferred => self.at(self.now, SimEvent::TakenOver { load, chunk }),
                    }
                }
                FetcherAction::Withdraw { chunk } => {
                    self.loads[load].texts.retain(|&c| c != chunk);
                    self.gpu = self.gpu.filter(|&(l, c, _)| (l, c) != (load, chunk));
                    self.start_gpu();
                }
                FetcherAction::WakeAt(at) => {
                    let at = self.loads[load].arrival + at + self.lateness();
                    self.loads[load].wake = Some(at);
                    self.at(at, SimEvent::Wake { load });
                }
                FetcherAction::Done => {
                    self.end_if_computed(load);
                    self.start_gpu();
                }
            }
        }
    }

    /// A load ends with its last chunk; what its engine computes afterwards is part of it.
    fn end_if_computed(&mut self, load: usize) {
        let running = &mut self.loads[load];
        if running.fetcher.is_done() && running.texts.is_empty() && running.finished.is_none() {
            running.finished = Some(self.now.saturating_sub(running.arrival));
        }
    }

    fn decode(&mut self, load: usize, chunk: usize, level: Level) {
        let plan = &self.loads[load].fetcher.plan().chunks[chunk];
        let mean = self.config.decode.predict(plan.tokens.len(), plan.bytes_at(level));
        let took = self.config.noise.draw(mean, &mut self.dice);
        self.decoder_free = self.decoder_free.max(self.now) + took;
        let told = self.decoder_free + self.lateness();
        self.at(told, SimEvent::Decoded { load, chunk, took });
    }

    /// Starts the first text chunk whose whole prefix is present.
    fn start_gpu(&mut self) {
        if self.gpu.is_some() {
            return;
        }
        // The least slack first; loads whose deadline has passed come after those that can still meet it.
        let mut order: Vec<usize> = (0..self.loads.len()).collect();
        order.sort_by_key(|&i| (self.slack_key(i), i));
        for load in order {
            let running = &mut self.loads[load];
            if self.config.text_mode == TextMode::Deferred && !running.fetcher.is_done() {
                continue;
            }
            let Some(&chunk) = running.texts.iter().min() else { continue };
            if running.resolved.iter().take(chunk).all(|&done| done) {
                running.texts.retain(|&c| c != chunk);
                let mean = self.config.recompute.predict(running.fetcher.plan().chunks[chunk].tokens);
                let took = self.config.noise.draw(mean, &mut self.dice);
                self.gpu = Some((load, chunk, self.now + took));
                return self.at(self.now + took, SimEvent::Computed { load, chunk, took });
            }
        }
    }

    /// Whether a load's deadline has passed, and the distance to it.
    fn slack_key(&self, load: usize) -> (bool, Duration) {
        let deadline = self.loads[load].deadline();
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
        self.at(arrives, SimEvent::PieceDone { load: flow.load, request: flow.request, bytes });
    }
}

impl ActiveLoad {
    fn deadline(&self) -> Duration {
        self.arrival + self.fetcher.plan().deadline()
    }

    fn is_running(&self) -> bool {
        self.started && !self.fetcher.is_done()
    }

    fn outcome(&self) -> Outcome {
        let plan = self.fetcher.plan();
        let ttft = self.finished.unwrap_or(Duration::MAX).saturating_add(plan.suffix_time);
        let levels: Vec<_> = self.fetcher.chunks().iter().map(ChunkFetchState::level).collect();
        let quality = quality(plan, &levels);
        Outcome { ttft, met: ttft <= plan.slo, quality, bytes: self.wire_bytes, levels }
    }
}
