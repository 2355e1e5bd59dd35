//! Replicas that share a trace: each request goes to one of them, whose hot tier holds a part of what all hold together.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use kvasir_eviction::{ClassId, ClassTable, EvictionIndex, Moment, PolicyKind, RouteSplits};
use kvasir_replay::trace::{Request, TraceError};
use kvasir_types::{BLOCK_TOKENS, ObjectDigest, RouteKey, SeqHash};

use super::{TraceSource, lane::access_to, profile::TraceProfile, replay::class_of};

/// How requests are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spreading {
    /// By their routes, as clients of the service do.
    Routes,
    /// As a load balancer that knows nothing of prompts.
    Random,
}

/// What became of a trace at some replicas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutesRow {
    /// Memory of all replicas together, as a share of the trace's unique blocks.
    pub capacity: f64,
    /// How many replicas.
    pub replicas: usize,
    /// How requests were spread.
    pub spreading: Spreading,
    /// Share of the blocks that were found, with all blocks before them in their request.
    pub hit_ratio: f64,
    /// Blocks asked of the busiest replica, over the mean.
    pub busiest_over_mean: f64,
    /// Different blocks among those that all replicas hold at the end, over these.
    pub unique: f64,
    /// Routes that were split.
    pub splits: u64,
}

/// A system prompt that a share of the conversations begins with.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SharedTemplate {
    /// Share of the conversations, 0 to 1.
    pub share: f64,
    /// Its blocks.
    pub blocks: u64,
}

impl SharedTemplate {
    /// The request as it is where its conversation begins with the template: its own blocks are others then.
    fn before<'a>(&self, request: &'a Request) -> Cow<'a, Request> {
        // What all requests of a trace begin with says nothing of the conversation.
        let Some(conversation) = request.blocks.get(1).filter(|_| self.share > 0.0) else {
            return Cow::Borrowed(request);
        };
        if uniform(&[*conversation]) >= self.share {
            return Cow::Borrowed(request);
        }
        let block_tokens = request.input_tokens / request.blocks.len() as u64;
        let template = (0..self.blocks).map(|block| u64::MAX - block);
        let own = request.blocks.iter().map(|block| !block & (u64::MAX >> 1));
        Cow::Owned(Request {
            blocks: template.chain(own).collect(),
            input_tokens: request.input_tokens + self.blocks * block_tokens,
            ..request.clone()
        })
    }
}

fn hash(numbers: &[u64]) -> [u8; 32] {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    *ObjectDigest::of(&bytes).as_bytes()
}

/// A number in 0..1 that the numbers decide.
fn uniform(numbers: &[u64]) -> f64 {
    let hash = hash(numbers);
    let [bits, ..] = hash.as_chunks().0 else { unreachable!("a hash has 32 bytes") };
    u64::from_le_bytes(*bits) as f64 / u64::MAX as f64
}

/// How long clients take a route for split after an answer that says so, in seconds: as the client crate does.
const SPLIT_KNOWN_SECONDS: f64 = kvasir_client::limits::SPLIT_KNOWN_FOR.as_secs() as f64;

/// The replicas.
struct Cluster {
    names: Vec<String>,
    replicas: Vec<Replica>,
    /// What a client knows of splits, and since when: here all are one.
    known: HashMap<RouteKey, Moment>,
    requests: u64,
}

struct Replica {
    tier: EvictionIndex<u64>,
    held: HashSet<u64>,
    splits: RouteSplits<RouteKey, SeqHash, RouteKey>,
    asked: u64,
    found: u64,
}

impl Cluster {
    fn new(kind: PolicyKind, count: usize, capacity: u64) -> Self {
        let replica = |_| Replica {
            tier: EvictionIndex::new(kind, capacity, 1.0),
            held: HashSet::new(),
            splits: RouteSplits::default(),
            asked: 0,
            found: 0,
        };
        let names = (0..count).map(|nth| format!("http://kvasir-{nth}:7480")).collect();
        Self { names, replicas: (0..count).map(replica).collect(), known: HashMap::new(), requests: 0 }
    }

    /// The replica of a request; the first of its route, which may split the route.
    fn choose(&mut self, request: &Request, block_tokens: u64, spreading: Spreading) -> usize {
        self.requests += 1;
        if spreading == Spreading::Random {
            return (uniform(&[self.requests]) * self.replicas.len() as f64) as usize % self.replicas.len();
        }
        let blocks = blocks_of(request, block_tokens);
        let is_split = |key: &RouteKey| {
            let since = self.known.get(key);
            since.is_some_and(|since| request.at.seconds_since(*since) < SPLIT_KNOWN_SECONDS)
        };
        let route = RouteKey::of(&blocks, is_split);
        let Some(route) = route else { return 0 };
        let ranked = route.rank(self.names.iter().map(|name| (name.as_str(), 1.0)));
        let first = ranked.first().copied().unwrap_or(0);
        let longer: Vec<RouteKey> = route.longer(&blocks).collect();
        let splits = &mut self.replicas[first].splits;
        if self.names.len() > 1
            && let Some(shared) = splits.note(&route, &blocks, &longer, request.at)
        {
            self.known.insert(route, request.at);
            self.known.extend(shared.iter().map(|longer| (*longer, request.at)));
        }
        first
    }

    fn serve(&mut self, request: &Request, class: ClassId, block_tokens: u64, spreading: Spreading) {
        let chosen = self.choose(request, block_tokens, spreading);
        let replica = &mut self.replicas[chosen];
        replica.asked += request.blocks.len() as u64;
        replica.found +=
            request.blocks.iter().take_while(|block| replica.tier.contains(block)).count() as u64;
        for (index, block) in request.blocks.iter().enumerate() {
            let access = access_to(request, class, index);
            if replica.tier.contains(block) {
                replica.tier.touch(block, &access);
                continue;
            }
            replica.held.insert(*block);
            for victim in replica.tier.insert(0, *block, &access) {
                replica.held.remove(&victim);
            }
        }
    }

    fn row(&self, capacity: f64, spreading: Spreading) -> RoutesRow {
        let (asked, found) = self.replicas.iter().fold((0, 0), |(a, f), of| (a + of.asked, f + of.found));
        let busiest = self.replicas.iter().map(|replica| replica.asked).max().unwrap_or(0);
        let held: usize = self.replicas.iter().map(|replica| replica.held.len()).sum();
        let different: HashSet<u64> =
            self.replicas.iter().flat_map(|replica| &replica.held).copied().collect();
        RoutesRow {
            capacity,
            replicas: self.replicas.len(),
            spreading,
            hit_ratio: found as f64 / asked.max(1) as f64,
            busiest_over_mean: busiest as f64 * self.replicas.len() as f64 / asked.max(1) as f64,
            unique: different.len() as f64 / held.max(1) as f64,
            splits: self.replicas.iter().map(|replica| replica.splits.made()).sum(),
        }
    }
}

/// Stands for the hashes of the request's blocks of 16 tokens: numbers, each another one in another context.
fn blocks_of(request: &Request, block_tokens: u64) -> Vec<SeqHash> {
    let within = block_tokens / BLOCK_TOKENS as u64;
    let name = |number: u64| {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_be_bytes());
        SeqHash::from(hash)
    };
    let of_block = |block: &u64| {
        let first = block.wrapping_mul(within);
        (0..within).map(move |number| name(first.wrapping_add(number)))
    };
    let tokens = usize::try_from(request.input_tokens).unwrap_or(usize::MAX);
    request.blocks.iter().flat_map(of_block).take(tokens / BLOCK_TOKENS).collect()
}

/// Replays a trace on each number of replicas, whose memory together is each of `capacities`.
///
/// # Errors
/// As [`replay`](super::replay()).
pub fn spread(
    trace: &TraceSource,
    kind: PolicyKind,
    capacities: &[f64],
    replicas: &[usize],
    template: SharedTemplate,
) -> Result<Vec<RoutesRow>, TraceError> {
    let (mut profile, mut classes) = (TraceProfile::default(), ClassTable::default());
    trace.for_each(|request| {
        let request = template.before(request);
        profile.note(&request, class_of(&request, &mut classes));
    })?;
    let profile = profile.finished()?;
    let mut rows = Vec::new();
    for capacity in capacities {
        let blocks = profile.unique_blocks as f64 * capacity;
        for &count in replicas {
            for spreading in [Spreading::Routes, Spreading::Random] {
                if count == 1 && spreading == Spreading::Random {
                    continue;
                }
                let mut cluster = Cluster::new(kind, count, (blocks / count as f64).round() as u64);
                let mut classes = ClassTable::default();
                trace.for_each_again(&profile, |request| {
                    let request = template.before(request);
                    cluster.serve(
                        &request,
                        class_of(&request, &mut classes),
                        profile.block_tokens,
                        spreading,
                    );
                })?;
                rows.push(cluster.row(*capacity, spreading));
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::{super::conversations, *};

    #[test]
    fn a_template_before_most_conversations_crowds_no_replica() {
        // Longer than a split lasts, so that it is made anew.
        let trace = TraceSource::Requests(conversations(1, 3_900));
        let template = SharedTemplate { share: 0.6, blocks: 8 };
        let rows = spread(&trace, PolicyKind::Lru, &[0.1], &[8], template).expect("it is in memory");
        let [routes, chance] = rows[..] else { panic!("{rows:?}") };
        assert_eq!((routes.spreading, chance.spreading), (Spreading::Routes, Spreading::Random));
        assert!(routes.busiest_over_mean <= 1.3 && routes.splits > 0, "{routes:?}");
        assert!(routes.hit_ratio > chance.hit_ratio && routes.unique > 0.85, "{routes:?}, {chance:?}");
    }
}
