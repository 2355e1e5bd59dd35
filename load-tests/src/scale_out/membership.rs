//! A rolling restart of all replicas under load, one that leaves for good, and one that joins.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Result, anyhow};
use kvasir_tests::faulty::Dice;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    Part, SEED, ScaleArguments, clients::Spreading, group::ReplicaGroup, network::BridgedNetwork,
    prompts::Prompt,
};
use crate::traffic::{
    arrivals::Arrivals,
    open_loop::{self, RequestFn},
    record::{Completion, Failure, Recorder, Summary},
};

/// Prompts of one chunk each, by popularity: the share of the nth is as 1/n.
const PROMPTS: u64 = 4_000;
const CHUNK_BYTES: usize = 16 << 10;
/// Memory of all replicas together, as a multiple of the bytes of all chunks, and as much disk: by routes, all of them are hot.
const MEMORY: f64 = 1.5;
/// Seconds of load before the first restart, after the last one, and between two.
const BEFORE_S: f64 = 20.0;
const AFTER_S: f64 = 60.0;
const BETWEEN_S: f64 = 3.0;
/// Seconds of which hit ratios are averaged.
const WINDOW: usize = 5;
/// The hit ratio has recovered at this share of what it was before.
const RECOVERED: f64 = 0.9;

/// What happens to the replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    /// All restart, one after the other.
    #[default]
    RollingRestart,
    /// The last one stops, and does not come back.
    OneLeaves,
    /// The last one begins to run, with nothing in memory or on disk. It was listed before.
    OneJoins,
}

/// What requests met.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ReplicasChanged {
    #[serde(default)]
    pub(super) change: Change,
    pub(super) replicas: usize,
    pub(super) spreading: Spreading,
    pub(super) rate: f64,
    /// When the first was asked to stop, or the one that joins was started.
    pub(super) first_stopped_at_s: f64,
    pub(super) last_ready_at_s: f64,
    /// Share of the loads that were served from the memory or the disk of the replica that was asked: before, and the lowest of five seconds from the first restart on.
    #[serde(deserialize_with = "crate::report::finite_or_nan")]
    pub(super) hot_before: f64,
    pub(super) hot_lowest: f64,
    /// From the moment that the last replica was ready, or had left, until the hit ratio was back at 90 % of what it was before, averaged
    /// over the five seconds from then; none if that did not happen within a minute.
    pub(super) recovered_after_s: Option<f64>,
    /// Hit ratio of every second.
    pub(super) hot_share: Vec<f64>,
    pub(super) summary: Summary,
}

impl ReplicasChanged {
    /// The part of the measurement that it is.
    pub(super) fn part(&self) -> Part {
        match self.change {
            Change::RollingRestart => Part::Restart,
            Change::OneLeaves => Part::Leave,
            Change::OneJoins => Part::Join,
        }
    }
}

/// Mean of the hit ratios from a second on.
fn window(hot: &[f64], from: usize) -> Option<f64> {
    Some(hot.get(from..from + WINDOW)?.iter().sum::<f64>() / WINDOW as f64)
}

pub(super) async fn measure(
    arguments: &ScaleArguments,
    replicas: usize,
    spreading: Spreading,
    change: Change,
) -> Result<ReplicasChanged> {
    let network = BridgedNetwork::new(replicas, arguments.link_mbps)?;
    let memory = (PROMPTS as usize * CHUNK_BYTES) as f64 * MEMORY / replicas as f64;
    let mut group = ReplicaGroup::start(arguments, network, spreading, memory as u64, memory as u64).await?;
    let clients = Arc::clone(&group.clients);
    // Not the first: the clients were given its address.
    let last = replicas - 1;
    if change == Change::OneJoins {
        group.stop(last).await?;
    }
    let prompts: Arc<[Prompt]> = (0..PROMPTS).map(|part| clients.prompt(&[part])).collect();
    for prompt in &*prompts {
        clients.store(prompt, 0, CHUNK_BYTES).await.map_err(|failure| anyhow!(failure.cause))?;
    }
    let begun = Instant::now();
    // Hot and all reads of each second, by when they ended.
    let seconds: Arc<Mutex<Vec<(u32, u32)>>> = Arc::default();
    let request: RequestFn = {
        let (prompts, seconds) = (Arc::clone(&prompts), Arc::clone(&seconds));
        Arc::new(move |number| {
            let (clients, prompts, seconds) =
                (Arc::clone(&clients), Arc::clone(&prompts), Arc::clone(&seconds));
            Box::pin(async move {
                let share = Dice::new(SEED ^ number << 8).below(1 << 30) as f64 / f64::from(1 << 30);
                let nth = (prompts.len() as f64).powf(share) as usize - 1;
                let found = clients.load(&prompts[nth]).await?;
                if found.stored == 0 {
                    return Err(Failure::new("not found"));
                }
                let at = begun.elapsed().as_secs() as usize;
                let mut seconds = seconds.lock().unwrap_or_else(PoisonError::into_inner);
                if seconds.len() <= at {
                    seconds.resize(at + 1, (0, 0));
                }
                seconds[at].0 += u32::from(found.hot > 0);
                seconds[at].1 += 1;
                Ok(Completion { bytes: found.bytes, again: found.again as u32, ..Completion::default() })
            })
        })
    };
    // As long as restarts may take; what is left of it is not waited for.
    let most = BEFORE_S + AFTER_S + replicas as f64 * (BETWEEN_S + 10.0);
    let recorder = Arc::new(Recorder::default());
    let load = open_loop::Callers {
        request,
        due: Arrivals::Poisson(arguments.rate).moments(most, SEED, 0.0),
        at_once: 64,
        patience: Duration::from_secs(30),
        recorder: Arc::clone(&recorder),
    };
    let running = tokio::spawn(load.run(begun));
    tokio::time::sleep(Duration::from_secs_f64(BEFORE_S)).await;
    let first_stopped_at_s = begun.elapsed().as_secs_f64();
    let mut last_ready_at_s = first_stopped_at_s;
    let changed = match change {
        Change::RollingRestart => 0..replicas,
        Change::OneLeaves | Change::OneJoins => last..replicas,
    };
    for nth in changed {
        if change != Change::OneJoins {
            group.stop(nth).await?;
        }
        if change != Change::OneLeaves {
            group.start_again(nth).await;
        }
        last_ready_at_s = begun.elapsed().as_secs_f64();
        tokio::time::sleep(Duration::from_secs_f64(BETWEEN_S)).await;
    }
    tokio::time::sleep(Duration::from_secs_f64(AFTER_S - BETWEEN_S)).await;
    running.abort();
    let seconds = std::mem::take(&mut *seconds.lock().unwrap_or_else(PoisonError::into_inner));
    let hot: Vec<f64> = seconds.iter().map(|(hot, all)| f64::from(*hot) / f64::from((*all).max(1))).collect();
    let first = first_stopped_at_s as usize;
    let hot_before = window(&hot, first - WINDOW).unwrap_or(f64::NAN);
    let after = last_ready_at_s.ceil() as usize;
    let recovered =
        (after..hot.len()).find(|at| window(&hot, *at).is_some_and(|share| share >= RECOVERED * hot_before));
    Ok(ReplicasChanged {
        change,
        replicas,
        spreading,
        rate: arguments.rate,
        first_stopped_at_s,
        last_ready_at_s,
        hot_before,
        hot_lowest: (first..hot.len()).filter_map(|at| window(&hot, at)).fold(1.0, f64::min),
        recovered_after_s: recovered.map(|at| at as f64 - last_ready_at_s.min(at as f64)),
        hot_share: hot,
        summary: recorder.summary(),
    })
}
