//! Statistics of a trace: ideal hits, reuse times with their exponential fits, skew, lifespans.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use kvasir_eviction::{ClassId, Moment};

use kvasir_replay::trace::{Request, TraceError};

/// Bins of a [`TimeHistogram`]: two an octave from 1/16 s; the last takes everything above 18 hours.
pub(super) const HISTOGRAM_BINS: usize = 42;
const FIRST_EDGE_SECONDS: f64 = 1.0 / 16.0;

/// Times in bins of half an octave.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeHistogram {
    counts: Vec<u64>,
    sum_seconds: f64,
}

impl Default for TimeHistogram {
    fn default() -> Self {
        Self { counts: vec![0; HISTOGRAM_BINS], sum_seconds: 0.0 }
    }
}

impl TimeHistogram {
    /// Upper edge of a bin in seconds.
    pub fn edge_seconds(bin: usize) -> f64 {
        FIRST_EDGE_SECONDS * (bin as f64 / 2.0).exp2()
    }

    fn note(&mut self, seconds: f64) {
        let position = (seconds / FIRST_EDGE_SECONDS).log2() * 2.0;
        let bin = if position > 0.0 { (position.ceil() as usize).min(HISTOGRAM_BINS - 1) } else { 0 };
        self.counts[bin] += 1;
        self.sum_seconds += seconds;
    }

    /// Observations.
    pub fn samples(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Mean time; `None` without observations.
    pub fn mean_seconds(&self) -> Option<f64> {
        let samples = self.samples();
        (samples > 0).then(|| self.sum_seconds / samples as f64)
    }

    /// Share of the observations at or below each bin's upper edge.
    pub fn cumulative(&self) -> Vec<f64> {
        let total = self.samples().max(1) as f64;
        let mut below = 0;
        let add = |count: &u64| {
            below += count;
            below as f64 / total
        };
        self.counts.iter().map(add).collect()
    }

    /// Largest distance between the distribution and the exponential of the same mean (Kolmogorov–Smirnov on
    /// the bins' edges): how well the paper's model fits.
    pub fn exponential_distance(&self) -> Option<f64> {
        let mean = self.mean_seconds().filter(|mean| *mean > 0.0)?;
        let model = |bin| -(-Self::edge_seconds(bin) / mean).exp_m1();
        let distances = self.cumulative().into_iter().enumerate().take(HISTOGRAM_BINS - 1);
        Some(distances.map(|(bin, share)| (share - model(bin)).abs()).fold(0.0, f64::max))
    }

    /// The smallest bin edge that a share of the observations does not exceed.
    pub fn quantile_seconds(&self, share: f64) -> Option<f64> {
        let at = self.cumulative().into_iter().position(|below| below >= share);
        at.filter(|_| self.samples() > 0).map(Self::edge_seconds)
    }
}

/// One request class of a trace.
#[derive(Debug, Clone, Default)]
pub struct ClassProfile {
    /// Requests.
    pub requests: u64,
    /// Requested blocks.
    pub blocks: u64,
    /// Blocks that an unbounded cache would have.
    pub ideal_hits: u64,
    /// Waits for the reuse of blocks that this class used last.
    pub reuse: TimeHistogram,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    first: Moment,
    last: Moment,
    class: ClassId,
    uses: u32,
}

/// A trace as a whole. Memory grows with its unique blocks only.
#[derive(Debug, Default)]
pub struct TraceProfile {
    /// Requests.
    pub requests: u64,
    /// Requested blocks, including repetitions.
    pub block_accesses: u64,
    /// Different blocks.
    pub unique_blocks: u64,
    /// Tokens of a block, inferred from the first request: the power of two nearest to its tokens per block.
    pub block_tokens: u64,
    /// Blocks that an unbounded cache would have, prefix by prefix.
    pub ideal_hits: u64,
    /// By [`ClassId::index`].
    pub classes: Vec<ClassProfile>,
    /// Times from first to last use of the blocks that were used more than once.
    pub lifespans: TimeHistogram,
    /// Share of the blocks that were used more than once.
    pub reused_share: f64,
    /// Share of all blocks that takes 90 % of the reuses, most reused first.
    pub blocks_with_90_percent_of_reuses: f64,
    /// Shares of all blocks, most reused first, and the share of the reuses that they take.
    pub skew: Vec<(f64, f64)>,
    seen: HashMap<u64, Seen, RandomState>,
}

impl TraceProfile {
    /// Share of the block accesses that an unbounded cache would serve.
    pub fn ideal_hit_ratio(&self) -> f64 {
        self.ideal_hits as f64 / self.block_accesses.max(1) as f64
    }

    pub(super) fn note(&mut self, request: &Request, class: ClassId) {
        if self.block_tokens == 0 && !request.blocks.is_empty() {
            let tokens = request.input_tokens.max(1) as f64 / request.blocks.len() as f64;
            self.block_tokens = tokens.max(1.0).log2().round().exp2() as u64;
        }
        let hits = request.blocks.iter().take_while(|block| self.seen.contains_key(block)).count() as u64;
        let blocks = request.blocks.len() as u64;
        self.requests += 1;
        self.block_accesses += blocks;
        self.ideal_hits += hits;
        if self.classes.len() <= class.index() {
            self.classes.resize_with(class.index() + 1, ClassProfile::default);
        }
        let of_class = &mut self.classes[class.index()];
        of_class.requests += 1;
        of_class.blocks += blocks;
        of_class.ideal_hits += hits;
        for block in &request.blocks {
            let new = Seen { first: request.at, last: request.at, class, uses: 0 };
            let seen = self.seen.entry(*block).or_insert(new);
            if seen.uses > 0 {
                let wait = request.at.seconds_since(seen.last);
                self.classes[seen.class.index()].reuse.note(wait);
            }
            *seen = Seen { last: request.at, class, uses: seen.uses.saturating_add(1), ..*seen };
        }
    }

    /// With the statistics that need the whole trace.
    ///
    /// # Errors
    /// [`TraceError::Empty`] for a trace without blocks.
    pub(super) fn finished(mut self) -> Result<Self, TraceError> {
        if self.block_accesses == 0 {
            return Err(TraceError::Empty);
        }
        let seen = std::mem::take(&mut self.seen);
        self.unique_blocks = seen.len() as u64;
        let mut reuses: Vec<u32> = Vec::with_capacity(seen.len());
        for block in seen.values().filter(|block| block.uses > 1) {
            self.lifespans.note(block.last.seconds_since(block.first));
            reuses.push(block.uses - 1);
        }
        self.reused_share = reuses.len() as f64 / seen.len().max(1) as f64;
        reuses.sort_unstable_by(|a, b| b.cmp(a));
        self.skew = skew(&reuses, seen.len());
        let target = reuses.iter().map(|n| f64::from(*n)).sum::<f64>() * 0.9;
        let mut covered = 0.0;
        let enough = reuses.iter().take_while(|n| {
            let short = covered < target;
            covered += f64::from(**n);
            short
        });
        self.blocks_with_90_percent_of_reuses = enough.count() as f64 / seen.len().max(1) as f64;
        Ok(self)
    }
}

/// Shares of the blocks at which the skew is reported.
const SKEW_SHARES: [f64; 12] = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0];

/// How the reuses, given per block and falling, spread over all `blocks`.
fn skew(reuses: &[u32], blocks: usize) -> Vec<(f64, f64)> {
    let total: f64 = reuses.iter().copied().map(f64::from).sum();
    let mut taken = reuses.iter().copied().map(f64::from);
    let (mut count, mut covered) = (0usize, 0.0);
    let point = |share: f64| {
        let upto = (share * blocks as f64).round() as usize;
        covered += taken.by_ref().take(upto.saturating_sub(count)).sum::<f64>();
        count = count.max(upto);
        (share, covered / total.max(1.0))
    };
    SKEW_SHARES.into_iter().map(point).collect()
}
