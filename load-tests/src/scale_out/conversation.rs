//! The hit ratio of recorded conversations, by how they are spread over replicas.

use std::{
    collections::{BTreeMap, HashSet},
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Result, anyhow};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::{Deserialize, Serialize};

use super::{
    Part, SEED, ScaleArguments,
    clients::Spreading,
    group::ReplicaGroup,
    network::BridgedNetwork,
    prompts::{CHUNK_TOKENS, Prompt},
};
use crate::replay::trace::{self, TraceSpec};

/// Payload of a chunk, in bytes: enough that the hot tier's own cost per frame does not matter.
const CHUNK_BYTES: usize = 16 << 10;
/// Memory of all replicas together, as a share of the bytes of all different chunks.
const MEMORY_SHARE: f64 = 0.1;
/// Chunks of the system prompt that the shared conversations begin with: 4,096 tokens.
const TEMPLATE_CHUNKS: u64 = 8;
/// Prompts in progress. Those of one conversation are minutes apart.
const AT_ONCE: usize = 8;
/// Prompts whose chunks are looked for in all hot tiers at the end.
const SAMPLED: usize = 200;

/// A trace's prompts on some replicas.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Conversations {
    pub(super) trace: String,
    pub(super) replicas: usize,
    pub(super) spreading: Spreading,
    /// Share of the conversations that begin with the same 4,096 tokens.
    pub(super) template_share: f64,
    pub(super) prompts: usize,
    pub(super) chunks: u64,
    /// Those of them that were not stored yet.
    #[serde(default)]
    pub(super) chunks_stored: u64,
    /// Requests of all replicas to the store, by their kind.
    #[serde(default)]
    pub(super) store_requests: BTreeMap<String, f64>,
    pub(super) memory_bytes_of_each: u64,
    /// Chunks that were in the memory of the replica that was asked, of all.
    #[serde(deserialize_with = "crate::report::finite_or_nan")]
    pub(super) hot_share: f64,
    /// Requests of the busiest replica per mean.
    #[serde(deserialize_with = "crate::report::finite_or_nan")]
    pub(super) busiest_over_mean: f64,
    /// Different chunks per chunk in all hot tiers, of a sample of the prompts.
    #[serde(deserialize_with = "crate::report::finite_or_nan")]
    pub(super) unique: f64,
}

impl Conversations {
    /// The part of the measurement that they belong to.
    pub(super) fn part(&self) -> Part {
        if self.template_share > 0.0 { Part::Template } else { Part::Conversation }
    }
}

/// Parts of the prompts, and where they are from.
fn parts(arguments: &ScaleArguments, template_share: f64) -> Result<(String, Vec<Vec<u64>>)> {
    let file = arguments.common.traces.iter().find(|(name, _)| name == "conversation").map(|(_, file)| file);
    let spec = TraceSpec {
        format: "mooncake".into(),
        block_tokens: CHUNK_TOKENS,
        from_seconds: 0.0,
        tokens_max: 0,
        layers: 0,
    };
    let (mut prompts, facts) = trace::prompts(&spec, file, 3_600.0, 1.0, SEED)?;
    prompts.truncate(arguments.prompts);
    let template = (0..TEMPLATE_CHUNKS).map(|nth| u64::MAX - nth);
    let whole = prompts.into_iter().map(|prompt| {
        let own = &prompt.blocks[..prompt.tokens / CHUNK_TOKENS];
        // All turns of a conversation begin alike, but what all prompts of a trace begin with says nothing of a conversation. A
        // multiplication by a large odd number spreads the draws evenly.
        let draw = own.get(1).map_or(u64::MAX, |second| second.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
        let shared = (draw as f64) < template_share * (1_u64 << 32) as f64;
        // A conversation's own chunks are others where they follow the template: the chain sees to that.
        template.clone().filter(|_| shared).chain(own.iter().copied()).collect::<Vec<_>>()
    });
    Ok((facts.source, whole.filter(|parts| !parts.is_empty()).collect()))
}

pub(super) async fn measure(
    arguments: &ScaleArguments,
    replicas: usize,
    spreading: Spreading,
    template_share: f64,
) -> Result<Conversations> {
    let (trace, parts) = parts(arguments, template_share)?;
    let prefixes = parts.iter().flat_map(|parts| (1..=parts.len()).map(|end| &parts[..end]));
    let distinct = prefixes.collect::<HashSet<_>>().len();
    let memory = (distinct * CHUNK_BYTES) as f64 * MEMORY_SHARE / replicas as f64;
    let network = BridgedNetwork::new(replicas, arguments.link_mbps)?;
    let group = ReplicaGroup::start(arguments, network, spreading, memory as u64, 0).await?;
    let clients = &*group.clients;
    let (chunks, chunks_stored, hot) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let served = async || group.metric("kvasir_http_requests_total", &["/v1/"]).await;
    stream::iter(&parts)
        .map(Ok::<_, anyhow::Error>)
        .try_for_each_concurrent(AT_ONCE, async |parts| {
            let prompt = clients.prompt(parts);
            let found = clients.load(&prompt).await.map_err(|failure| anyhow!(failure.cause))?;
            chunks.fetch_add(found.chunks as u64, Ordering::Relaxed);
            chunks_stored.fetch_add((found.chunks - found.stored) as u64, Ordering::Relaxed);
            hot.fetch_add(found.in_memory as u64, Ordering::Relaxed);
            let stored = clients.store(&prompt, found.stored, CHUNK_BYTES).await;
            stored.map_err(|failure| anyhow!(failure.cause))
        })
        .await?;
    let (served, store_requests) = (served().await, group.store_requests().await);
    let (mut all, mut different) = (0, HashSet::new());
    let step = parts.len().div_ceil(SAMPLED).max(1);
    let sample: Vec<Prompt> = parts.iter().step_by(step).map(|parts| clients.prompt(parts)).collect();
    for nth in 0..replicas {
        let mut here = HashSet::new();
        for prompt in &sample {
            here.extend(clients.hot_at(nth, prompt).await.map_err(|failure| anyhow!(failure.cause))?);
        }
        all += here.len();
        different.extend(here);
    }
    let (chunks, hot) = (chunks.into_inner(), hot.into_inner());
    let mean = served.iter().sum::<f64>() / replicas as f64;
    Ok(Conversations {
        trace,
        replicas,
        spreading,
        template_share,
        prompts: parts.len(),
        chunks,
        chunks_stored: chunks_stored.into_inner(),
        store_requests,
        memory_bytes_of_each: memory as u64,
        hot_share: hot as f64 / chunks as f64,
        busiest_over_mean: served.into_iter().fold(0.0, f64::max) / mean,
        unique: different.len() as f64 / all as f64,
    })
}
