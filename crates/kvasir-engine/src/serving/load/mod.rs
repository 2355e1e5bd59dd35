//! Bringing a prompt's KV from Kvasir before it is prefilled.
//!
//! ```text
//! held in memory? ── no ──► lookup ──► pages ──► load ─┬─ layers 0..k of everything in place: the suffix starts on them
//!                                                      └─ done: what is missing is a list of holes for the scheduler
//! ```

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kvasir_client::{
    KvClient, LayerReady, Load, LoadEvent, LoadOptions, LoadPlan, LoadReport,
    fetcher::{CacheGen, Fixed},
};
use kvasir_types::{Level, TokenRange};
use tokio::task::JoinHandle;

use super::{
    LoadedPrefix,
    layerwise::{GateOwner, LayerGate},
};
use crate::{
    error::EngineError,
    model::{Model, Observer},
    paged::PagedKv,
};

/// Which bytes are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadPolicy {
    /// The base of everything first, then by quality gained per byte until the SLO.
    #[default]
    Progressive,
    /// CacheGen's Algorithm 1.
    CacheGen,
    /// Always this level, however long it takes.
    Level(Level),
}

/// How an engine uses Kvasir.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RemoteUse {
    /// Time to first token that loads aim at.
    pub slo: Duration,
    /// Which bytes they load.
    pub policy: LoadPolicy,
    /// Whether what was computed is stored.
    pub store: bool,
    /// Loaded tokens whose predicted KL is above this many nats a token are not shared with other requests in memory.
    pub kl_shared_max: f64,
}

impl Default for RemoteUse {
    /// 1 s, adaptive, storing, sharing up to 0.01 nats a token.
    fn default() -> Self {
        Self { slo: Duration::from_secs(1), policy: LoadPolicy::default(), store: true, kl_shared_max: 0.01 }
    }
}

impl RemoteUse {
    fn options(&self, client: &KvClient, suffix: TokenRange) -> LoadOptions {
        let mut options = client.options(self.slo);
        options.suffix_time = options.recompute.predict(suffix);
        options.kl_bound = Some(self.kl_shared_max);
        match self.policy {
            LoadPolicy::Progressive => {}
            LoadPolicy::CacheGen => options.policy = Box::new(CacheGen::default()),
            LoadPolicy::Level(level) => options.policy = Box::new(Fixed::new(level).without_giving_up()),
        }
        options
    }
}

/// The outcome of a load for a request.
#[derive(Debug, Default)]
pub(super) struct LoadOutcome {
    /// The cache, if anything came.
    pub(super) prefix: Option<LoadedPrefix>,
    /// Tokens that came, and their bytes.
    pub(super) loaded_tokens: usize,
    pub(super) bytes: u64,
    /// Level of every chunk; none for those that are to be computed.
    pub(super) levels: Vec<Option<u8>>,
    pub(super) kl_beneath: f64,
    /// Whether the suffix was computed while the prefix was still being decoded.
    pub(super) layer_wise: bool,
    pub(super) gave_up: bool,
    /// Until the last byte, from the end of the lookup.
    pub(super) fetch: Duration,
    /// From the last byte until everything is in its pages.
    pub(super) decode: Duration,
    /// From then until the suffix that was begun meanwhile is computed.
    pub(super) recompute: Duration,
}

/// Loads a plan into `kv`, whose pages are reserved for the whole prompt. A load that fails delivers nothing.
pub(super) async fn load(
    (model, client): (&Arc<Model>, &KvClient),
    plan: LoadPlan,
    kv: PagedKv,
    prompt: &Arc<[u32]>,
    how: &RemoteUse,
) -> LoadOutcome {
    let computed = prompt.len() - 1;
    let matched = (plan.matched_tokens() as usize).min(computed);
    let suffix = TokenRange { start: matched as u64, end: computed as u64 };
    let Ok(table) = kv.load_table() else { return LoadOutcome::default() };
    let begun = match client.load(plan, [table], how.options(client, suffix)) {
        Ok(load) => load,
        Err(error) => {
            tracing::warn!(%error, "the load could not begin");
            return LoadOutcome::default();
        }
    };
    let mut start = LayerWiseStart::new(model, kv, Arc::clone(prompt), matched);
    let Some(report) = start.follow(begun).await else {
        tracing::warn!("a load lost its pages: the prompt is computed");
        return LoadOutcome::default();
    };
    let done = Instant::now();
    let holes: Vec<_> = report
        .recompute
        .iter()
        .map(|range| range.start as usize..(range.end as usize).min(matched))
        .filter(|hole| !hole.is_empty())
        .collect();
    let shareable = report.flagged.first().map_or(usize::MAX, |first| first.start as usize);
    let layer_wise = start.is_under_way() && holes.is_empty();
    let Some(kv) = start.finish(holes.is_empty()).await else {
        tracing::warn!("the suffix could not be computed ahead of its prefix: the prompt is computed");
        return LoadOutcome::default();
    };
    let matched = if layer_wise { kv.len() } else { matched };
    let loaded = LoadedPrefix { kv, matched, holes, shareable };
    let fetch = report.chunks.iter().filter_map(|chunk| chunk.fetched).max().unwrap_or(report.elapsed);
    LoadOutcome {
        loaded_tokens: report.loaded_tokens() as usize,
        prefix: Some(loaded),
        bytes: report.bytes,
        levels: report.chunks.iter().map(|chunk| chunk.level.map(|level| level.0)).collect(),
        kl_beneath: report.kl_beneath,
        layer_wise,
        gave_up: report.gave_up,
        fetch,
        decode: report.elapsed.saturating_sub(fetch),
        recompute: if layer_wise { done.elapsed() } else { Duration::ZERO },
    }
}

/// A load whose suffix may be begun before it is done.
struct LayerWiseStart {
    model: Arc<Model>,
    prompt: Arc<[u32]>,
    matched: usize,
    layers: usize,
    gate: GateOwner,
    state: SuffixState,
}

/// Whether the suffix is begun.
enum SuffixState {
    /// The suffix is not begun.
    Waiting(PagedKv),
    /// The suffix is computed behind the gate.
    UnderWay(JoinHandle<(PagedKv, Result<(), EngineError>)>),
    Over,
}

impl LayerWiseStart {
    fn new(model: &Arc<Model>, kv: PagedKv, prompt: Arc<[u32]>, matched: usize) -> Self {
        let (layers, gate) = (model.config().layers, GateOwner(LayerGate::default()));
        Self { model: Arc::clone(model), prompt, matched, layers, gate, state: SuffixState::Waiting(kv) }
    }

    const fn is_under_way(&self) -> bool {
        matches!(self.state, SuffixState::UnderWay(_))
    }

    /// Waits for the load; its pages are good only if there is a report without stale rows.
    async fn follow(&mut self, mut load: Load) -> Option<LoadReport> {
        let mut whole = true;
        loop {
            match load.next().await? {
                LoadEvent::LayerReady(ready) => self.ready(&ready, whole),
                LoadEvent::Recompute { range, .. } if range.start < self.matched as u64 => {
                    whole = false;
                    self.gate.0.abort();
                }
                // Nothing is computed while the load goes on, so nothing is withdrawn.
                LoadEvent::Recompute { .. } | LoadEvent::Withdrawn { .. } => {}
                LoadEvent::Done { report } if report.stale_rows == 0 => return Some(*report),
                LoadEvent::Done { .. } => return None,
            }
        }
    }

    fn ready(&mut self, ready: &LayerReady, whole: bool) {
        self.gate.0.open(ready.layers_complete);
        let some = (1..self.layers).contains(&ready.layers_complete);
        if whole
            && some
            && matches!(self.state, SuffixState::Waiting(_))
            && self.matched + 1 < self.prompt.len()
        {
            self.begin();
        }
    }

    fn begin(&mut self) {
        let SuffixState::Waiting(mut kv) = std::mem::replace(&mut self.state, SuffixState::Over) else {
            return;
        };
        let (model, prompt, matched) = (Arc::clone(&self.model), Arc::clone(&self.prompt), self.matched);
        let mut gate = self.gate.0.clone();
        self.state = SuffixState::UnderWay(tokio::task::spawn_blocking(move || {
            let result = ahead(&model, &mut kv, &prompt[matched..prompt.len() - 1], matched, &mut gate);
            (kv, result)
        }));
    }

    /// The cache: with the suffix, if it was begun and the prefix is `whole`; as the load left it otherwise.
    async fn finish(mut self, whole: bool) -> Option<PagedKv> {
        let task = match std::mem::replace(&mut self.state, SuffixState::Over) {
            SuffixState::Waiting(kv) => return Some(kv),
            SuffixState::UnderWay(task) => task,
            SuffixState::Over => return None,
        };
        if whole {
            self.gate.0.open(self.layers);
        } else {
            self.gate.0.abort();
        }
        let (mut kv, result) = task.await.ok()?;
        match (whole, result) {
            (true, Ok(())) => Some(kv),
            (true, Err(_)) => None,
            (false, _) => {
                kv.rewind(0);
                Some(kv)
            }
        }
    }
}

/// Computes `suffix` behind `matched` tokens that are still on their way; `gate` holds every layer up until it is there.
fn ahead(
    model: &Model,
    kv: &mut PagedKv,
    suffix: &[u32],
    matched: usize,
    gate: &mut dyn Observer,
) -> Result<(), EngineError> {
    kv.commit(matched)?;
    model.extend_observed(kv, suffix, gate)
}

#[cfg(test)]
mod tests;
