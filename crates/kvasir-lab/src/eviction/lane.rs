//! One cache under one policy at one capacity, fed with a trace.

use std::time::{Duration, Instant};

use kvasir_eviction::{Access, ClassId, EvictionPolicy};

use kvasir_replay::trace::Request;

use super::{
    ComparedPolicy, RecomputeModel,
    belady::Belady,
    policies::{Ttl, limits::TTL_SECONDS_DEFAULT},
};

/// One in this many evictions is timed: reading the clock costs as much as an eviction.
const TIMED_EVICTIONS: u64 = 16;
/// Timings kept per lane.
const TIMINGS_KEPT: usize = 4096;

/// Counts of one class or of a whole lane.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    /// Requested blocks.
    pub blocks: u64,
    /// Blocks found, all blocks before them in their request found as well.
    pub hits: u64,
    /// Seconds of prefill that the hits saved.
    pub seconds_saved: f64,
    /// Seconds of prefill that the requests would take without a cache.
    pub seconds: f64,
}

impl Tally {
    /// Share of blocks found, 0 without any.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.blocks.max(1) as f64
    }

    fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.hits += other.hits;
        self.seconds_saved += other.seconds_saved;
        self.seconds += other.seconds;
    }
}

#[derive(Debug)]
enum Cache {
    Online(Box<dyn EvictionPolicy<u64>>),
    /// The one online policy that expires entries.
    Ttl(Ttl<u64>),
    Belady(Belady),
}

impl Cache {
    /// A cache of `capacity_blocks` under `policy`, or under Belady's MIN for `None`.
    fn new(policy: Option<ComparedPolicy>, capacity_blocks: u64) -> Self {
        match policy {
            Some(ComparedPolicy::Ttl) => Self::Ttl(Ttl::new(TTL_SECONDS_DEFAULT)),
            Some(policy) => Self::Online(policy.build(capacity_blocks)),
            None => Self::Belady(Belady::default()),
        }
    }

    /// The online policy, or Belady's MIN.
    fn online(&mut self) -> Result<&mut dyn EvictionPolicy<u64>, &mut Belady> {
        match self {
            Self::Online(policy) => Ok(&mut **policy),
            Self::Ttl(policy) => Ok(policy),
            Self::Belady(belady) => Err(belady),
        }
    }
}

/// A simulated cache of `capacity_blocks` and its results.
#[derive(Debug)]
pub(super) struct Lane {
    cache: Cache,
    capacity_blocks: u64,
    leaf_first: bool,
    weighs_cost: bool,
    pub(super) total: Tally,
    /// Tallies by [`ClassId::index`].
    pub(super) by_class: Vec<Tally>,
    evictions: u64,
    timings: Timings,
}

/// Times of the latest timed evictions. The slowest hundredth is left out of the mean: on a busy machine it is the
/// scheduler's, not the policy's.
#[derive(Debug, Default)]
struct Timings {
    nanos: Vec<u32>,
    next: usize,
}

impl Timings {
    fn note(&mut self, elapsed: Duration) {
        let nanos = u32::try_from(elapsed.as_nanos()).unwrap_or(u32::MAX);
        if self.nanos.len() < TIMINGS_KEPT {
            self.nanos.push(nanos);
        } else {
            self.nanos[self.next] = nanos;
            self.next = (self.next + 1) % TIMINGS_KEPT;
        }
    }

    fn mean(&self) -> Option<f64> {
        let mut sorted = self.nanos.clone();
        sorted.sort_unstable();
        sorted.truncate(sorted.len() - sorted.len() / 100);
        let sum: f64 = sorted.iter().copied().map(f64::from).sum();
        (!sorted.is_empty()).then(|| sum / sorted.len() as f64)
    }
}

impl Lane {
    /// A lane under `policy`, or under Belady's MIN for `None`.
    pub(super) fn new(policy: Option<ComparedPolicy>, capacity_blocks: u64) -> Self {
        Self {
            cache: Cache::new(policy, capacity_blocks),
            capacity_blocks,
            leaf_first: policy.is_some_and(ComparedPolicy::is_leaf_first),
            weighs_cost: policy.is_some_and(ComparedPolicy::weighs_cost),
            total: Tally::default(),
            by_class: Vec::new(),
            evictions: 0,
            timings: Timings::default(),
        }
    }

    /// Mean time of an eviction; `None` when there was none.
    pub(super) fn nanos_per_eviction(&self) -> Option<f64> {
        self.timings.mean()
    }

    /// Evictions so far.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Resets the counters: everything before only warmed the cache.
    pub(super) fn forget_tallies(&mut self) {
        self.total = Tally::default();
        self.by_class.clear();
    }

    /// Serves one request: looks up its prefix, then admits the computed blocks.
    ///
    /// `next_uses` has one entry per block for Belady and is not read otherwise.
    pub(super) fn serve(&mut self, request: &Request, class: ClassId, costs: &[f32], next_uses: &[u32]) {
        let hits = self.lookup(request);
        let mut tally = Tally { blocks: request.blocks.len() as u64, hits: hits as u64, ..Tally::default() };
        tally.seconds_saved = costs[..hits].iter().copied().map(f64::from).sum();
        tally.seconds = costs.iter().copied().map(f64::from).sum();
        self.total.add(&tally);
        if self.by_class.len() <= class.index() {
            self.by_class.resize(class.index() + 1, Tally::default());
        }
        self.by_class[class.index()].add(&tally);
        self.store(request, class, costs, next_uses);
    }

    fn lookup(&mut self, request: &Request) -> usize {
        if let Cache::Ttl(policy) = &mut self.cache {
            while policy.expire(request.at).is_some() {
                self.evictions += 1;
            }
        }
        match self.cache.online() {
            Ok(policy) => request.blocks.iter().take_while(|block| policy.contains(block)).count(),
            Err(belady) => request.blocks.iter().take_while(|block| belady.contains(**block)).count(),
        }
    }

    fn store(&mut self, request: &Request, class: ClassId, costs: &[f32], next_uses: &[u32]) {
        let mean = costs.iter().sum::<f32>() / costs.len() as f32;
        let worth = if self.weighs_cost { mean } else { 0.0 };
        let count = request.blocks.len();
        for step in 0..count {
            let index = if self.leaf_first { count - 1 - step } else { step };
            let block = request.blocks[index];
            let access = access_to(request, class, index).worth(worth);
            match self.cache.online() {
                Ok(policy) => {
                    if !policy.touch(&block, &access) {
                        policy.insert(block, &access);
                    }
                }
                Err(belady) => belady.put(block, next_uses[index], access.offset),
            }
            if !self.leaf_first {
                self.shrink(request);
            }
        }
        self.shrink(request);
    }

    fn shrink(&mut self, request: &Request) {
        match self.cache.online() {
            Ok(policy) => {
                while policy.bytes() > self.capacity_blocks {
                    self.evictions += 1;
                    if self.evictions.is_multiple_of(TIMED_EVICTIONS) {
                        let start = Instant::now();
                        let victim = policy.evict(request.at);
                        self.timings.note(start.elapsed());
                        debug_assert!(victim.is_some());
                    } else if policy.evict(request.at).is_none() {
                        break;
                    }
                }
            }
            Err(belady) => {
                while belady.len() as u64 > self.capacity_blocks && belady.evict().is_some() {
                    self.evictions += 1;
                }
            }
        }
    }
}

/// An access to block `index` of a request.
pub(super) fn access_to(request: &Request, class: ClassId, index: usize) -> Access<u64> {
    let parent = index.checked_sub(1).map(|before| request.blocks[before]);
    Access::new(request.at, class)
        .paced(request.pace_seconds)
        .at(u32::try_from(index).unwrap_or(u32::MAX), parent)
}

/// Writes the seconds to recompute each block of a request into `costs`.
pub(super) fn block_costs(
    request: &Request,
    block_tokens: u64,
    model: &RecomputeModel,
    costs: &mut Vec<f32>,
) {
    costs.clear();
    let blocks = request.blocks.len() as u64;
    for index in 0..blocks {
        let start = index * block_tokens;
        let full = start + block_tokens;
        let end = if index + 1 == blocks { full.min(request.input_tokens.max(start)) } else { full };
        costs.push(model.seconds(start, end) as f32);
    }
}
