//! Two passes over a trace: one to know it, one to replay it through every policy at every capacity.

use std::path::PathBuf;

use kvasir_eviction::{ClassId, ClassTable, RequestClass, TurnBucket};

use super::{
    ComparedPolicy, RecomputeModel, Tally,
    belady::NextUses,
    lane::{Lane, block_costs},
    profile::TraceProfile,
};
use kvasir_replay::trace::{Request, TraceError, TraceFormat, TraceReader};

/// Options of a replay.
#[derive(Debug, Clone)]
pub struct ReplayOptions {
    /// The trace.
    pub trace: TraceSource,
    /// Online policies to replay.
    pub policies: Vec<ComparedPolicy>,
    /// Whether to also replay Belady's MIN (4 bytes of memory per block access).
    pub belady: bool,
    /// Capacities as shares of the unique blocks.
    pub capacities: Vec<f64>,
    /// Share of the requests that only warm the caches; the rest is counted.
    pub warm_share: f64,
    /// Prefill time of the engine.
    pub recompute: RecomputeModel,
    /// Threads to replay with.
    pub threads: usize,
}

/// One policy at one capacity.
#[derive(Debug, Clone)]
pub struct ReplayRow {
    /// The policy; `None` is Belady's MIN.
    pub policy: Option<ComparedPolicy>,
    /// Capacity as a share of the unique blocks.
    pub capacity: f64,
    /// Capacity in blocks.
    pub capacity_blocks: u64,
    /// The result.
    pub total: Tally,
    /// The same by request class, as named in [`Replay::classes`].
    pub by_class: Vec<Tally>,
    /// Evictions.
    pub evictions: u64,
    /// Mean time of an eviction, if one was timed.
    pub nanos_per_eviction: Option<f64>,
}

/// The outcome of a replay.
#[derive(Debug)]
pub struct Replay {
    /// Statistics of the trace.
    pub profile: TraceProfile,
    /// Names of the classes by index.
    pub classes: Vec<String>,
    /// Rows in the order of policies (Belady last), then capacities.
    pub rows: Vec<ReplayRow>,
}

/// Source of a trace. The replay reads it twice.
#[derive(Debug, Clone)]
pub enum TraceSource {
    /// A file, of which one line at a time is in memory.
    File {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: TraceFormat,
    },
    /// Requests in the order of time.
    Requests(Vec<Request>),
}

impl TraceSource {
    pub(super) fn for_each(&self, mut visit: impl FnMut(&Request)) -> Result<(), TraceError> {
        match self {
            Self::Requests(requests) => requests.iter().for_each(visit),
            Self::File { path, format } => {
                let mut reader = TraceReader::open(path, *format)?;
                let mut request = Request::default();
                while reader.read(&mut request)? {
                    visit(&request);
                }
            }
        }
        Ok(())
    }

    /// Visits the requests again, as many as `profile` counted.
    ///
    /// # Errors
    /// [`TraceError::Changed`] when there are more or fewer.
    pub(super) fn for_each_again(
        &self,
        profile: &TraceProfile,
        mut visit: impl FnMut(&Request),
    ) -> Result<(), TraceError> {
        let mut requests = 0;
        self.for_each(|request| {
            requests += 1;
            if requests <= profile.requests {
                visit(request);
            }
        })?;
        if requests == profile.requests { Ok(()) } else { Err(TraceError::Changed) }
    }
}

/// The trace's tenant: none of the formats names one.
const TENANT: &str = "trace";

pub(super) fn class_of(request: &Request, classes: &mut ClassTable) -> ClassId {
    classes.intern(&RequestClass {
        tenant: TENANT.to_owned(),
        kind: request.kind.clone(),
        turn: TurnBucket::of(request.turn),
    })
}

/// Replays a trace.
///
/// # Errors
/// [`TraceError`] when the file cannot be read, has no blocks, or has a malformed line.
pub fn replay(options: &ReplayOptions) -> Result<Replay, TraceError> {
    let (profile, next_uses, classes) = scan(options)?;
    let mut lanes: Vec<(Option<ComparedPolicy>, f64, Lane)> = Vec::new();
    let belady = options.belady.then_some(None);
    for policy in options.policies.iter().copied().map(Some).chain(belady) {
        for &capacity in &options.capacities {
            let blocks = (profile.unique_blocks as f64 * capacity).round() as u64;
            lanes.push((policy, capacity, Lane::new(policy, blocks)));
        }
    }
    let threads = options.threads.clamp(1, lanes.len().max(1));
    let mut shares: Vec<Vec<&mut Lane>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, (_, _, lane)) in lanes.iter_mut().enumerate() {
        shares[index % threads].push(lane);
    }
    let outcomes: Vec<Result<(), TraceError>> = std::thread::scope(|scope| {
        let workers: Vec<_> = shares
            .into_iter()
            .map(|mut share| {
                let (profile, next_uses) = (&profile, next_uses.as_slice());
                scope.spawn(move || run_lanes(options, profile, next_uses, &mut share))
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("lanes do not panic")).collect()
    });
    outcomes.into_iter().collect::<Result<(), _>>()?;
    let rows = lanes
        .into_iter()
        .map(|(policy, capacity, lane)| ReplayRow {
            policy,
            capacity,
            capacity_blocks: (profile.unique_blocks as f64 * capacity).round() as u64,
            evictions: lane.evictions(),
            nanos_per_eviction: lane.nanos_per_eviction(),
            total: lane.total,
            by_class: lane.by_class,
        })
        .collect();
    Ok(Replay { profile, classes, rows })
}

type Scan = (TraceProfile, Vec<u32>, Vec<String>);

fn scan(options: &ReplayOptions) -> Result<Scan, TraceError> {
    let mut classes = ClassTable::default();
    let mut next_uses = NextUses::default();
    let mut profile = TraceProfile::default();
    let mut number = 0;
    options.trace.for_each(|request| {
        let class = class_of(request, &mut classes);
        profile.note(request, class);
        if options.belady {
            request.blocks.iter().for_each(|block| next_uses.note(*block, number));
        }
        number += 1;
    })?;
    let profile = profile.finished()?;
    let names = (0..classes.len()).map(|index| class_name(&classes, index)).collect();
    Ok((profile, next_uses.finish(), names))
}

fn class_name(classes: &ClassTable, index: usize) -> String {
    match classes.classes().nth(index).flatten() {
        None => "other".to_owned(),
        Some(class) if class.kind.is_empty() => format!("turn {}", class.turn.label()),
        Some(class) => format!("{} turn {}", class.kind, class.turn.label()),
    }
}

fn run_lanes(
    options: &ReplayOptions,
    profile: &TraceProfile,
    next_uses: &[u32],
    lanes: &mut [&mut Lane],
) -> Result<(), TraceError> {
    let mut classes = ClassTable::default();
    let mut costs = Vec::new();
    let warm_requests = (profile.requests as f64 * options.warm_share) as u64;
    let (mut number, mut access) = (0u64, 0usize);
    options.trace.for_each_again(profile, |request| {
        let class = class_of(request, &mut classes);
        block_costs(request, profile.block_tokens, &options.recompute, &mut costs);
        let end = access + request.blocks.len();
        let next = next_uses.get(access..end).unwrap_or_default();
        access = end;
        if access as u64 > profile.block_accesses {
            return;
        }
        number += 1;
        for lane in lanes.iter_mut() {
            lane.serve(request, class, &costs, next);
            if number <= warm_requests {
                lane.forget_tallies();
            }
        }
    })?;
    if access as u64 == profile.block_accesses { Ok(()) } else { Err(TraceError::Changed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_that_differs_the_second_time_is_refused() {
        let options = |requests: &[&[u64]]| {
            let request = |blocks: &&[u64]| Request {
                input_tokens: 512 * blocks.len() as u64,
                blocks: blocks.to_vec(),
                ..Request::default()
            };
            ReplayOptions {
                trace: TraceSource::Requests(requests.iter().map(request).collect()),
                policies: Vec::new(),
                belady: true,
                capacities: Vec::new(),
                warm_share: 0.0,
                recompute: RecomputeModel::default(),
                threads: 1,
            }
        };
        let (profile, next_uses, ..) = scan(&options(&[&[0], &[0, 1]])).unwrap();
        let again = |requests: &[&[u64]]| {
            run_lanes(&options(requests), &profile, &next_uses, &mut [&mut Lane::new(None, 2)])
        };
        assert!(again(&[&[0], &[0, 1]]).is_ok());
        let others: [&[&[u64]]; 5] =
            [&[], &[&[0]], &[&[0], &[0]], &[&[0], &[0, 1, 2]], &[&[0], &[0, 1], &[0]]];
        for requests in others {
            assert!(matches!(again(requests), Err(TraceError::Changed)), "{requests:?}");
        }
    }
}
