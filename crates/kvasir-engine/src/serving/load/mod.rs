//! Bringing a prompt's KV from Kvasir before it is prefilled.
//!
//! ```text
//! held in memory? ── no ──► session ──► pages ──► load ─┬─ layers 0..k of everything in place: the suffix starts on them
//!                                                      └─ done: what is missing is a list of holes for the scheduler
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use kvasir_client::{
    Deadline, LayerReady, Load, Loaded, Session,
    tuning::{CacheGen, Fixed, LoadOptions},
};
use kvasir_types::{Level, Loss};
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
    /// Whether to store the computed KV.
    pub store: bool,
    /// Loaded tokens whose predicted KL is above this many nats per token are not shared with other requests
    /// in memory.
    pub kl_shared_max: f64,
}

impl Default for RemoteUse {
    /// 1 s, adaptive, with storing, sharing up to 0.01 nats per token.
    fn default() -> Self {
        Self { slo: Duration::from_secs(1), policy: LoadPolicy::default(), store: true, kl_shared_max: 0.01 }
    }
}

impl RemoteUse {
    /// `after`: time from the end of the load to the first token.
    fn options(&self, after: Duration) -> LoadOptions {
        let mut options = LoadOptions::from(Deadline::within(self.slo));
        options.suffix_time = Some(after);
        match self.policy {
            LoadPolicy::Progressive => {}
            LoadPolicy::CacheGen => options.policy = Box::new(CacheGen::default()),
            LoadPolicy::Level(level) => options.policy = Box::new(Fixed::new(level).without_giving_up()),
        }
        options
    }
}

/// How long requests wait for the scheduler after their loads, in microseconds: a mean that follows the last ones.
#[derive(Debug, Default)]
pub(super) struct QueueTime(AtomicU64);

impl QueueTime {
    pub(super) fn observe(&self, waited: Duration) {
        let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        // Of requests that start at the same moment, one may not count.
        let mean = self.0.load(Ordering::Relaxed);
        self.0.store(mean - mean / 4 + waited / 4, Ordering::Relaxed);
    }

    pub(super) fn expected(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// The result of a request's load.
#[derive(Debug, Default)]
pub(super) struct LoadOutcome {
    /// The cache, if anything was delivered.
    pub(super) prefix: Option<LoadedPrefix>,
    /// Delivered tokens, and their bytes.
    pub(super) loaded_tokens: usize,
    pub(super) bytes: u64,
    /// Level of every chunk; `None` for chunks to be computed.
    pub(super) levels: Vec<Option<u8>>,
    /// Largest predicted KL of the delivered KV, in nats per token.
    pub(super) kl: f64,
    /// Whether the suffix was computed while the prefix was still being decoded.
    pub(super) layer_wise: bool,
    pub(super) gave_up: bool,
    /// Until the last byte, from the end of the lookup.
    pub(super) fetch: Duration,
    /// From the last byte until everything is in its pages.
    pub(super) decode: Duration,
    /// From then until the suffix, whose computation started during the load, is complete.
    pub(super) recompute: Duration,
}

/// Loads what a session matches into `kv`, whose pages are reserved for the whole prompt, for a first token that comes
/// `after` the load. A failed load delivers nothing.
pub(super) async fn load(
    (model, session): (&Arc<Model>, &Session),
    kv: PagedKv,
    prompt: &Arc<[u32]>,
    (how, after): (&RemoteUse, Duration),
) -> LoadOutcome {
    let matched = (session.matched_tokens() as usize).min(prompt.len() - 1);
    let Ok(table) = kv.load_table() else { return LoadOutcome::default() };
    let begun = match session.load([table], how.options(after)) {
        Ok(load) => load,
        Err(error) => {
            tracing::warn!(%error, "the load could not begin");
            return LoadOutcome::default();
        }
    };
    let mut start = LayerWiseStart::new(model, kv, Arc::clone(prompt), matched);
    let loaded = start.follow(begun).await;
    let done = Instant::now();
    let Some(report) = loaded.report().filter(|_| loaded.loaded_tokens() > 0) else {
        return LoadOutcome::default();
    };
    let holes: Vec<_> = loaded
        .missing()
        .iter()
        .map(|range| range.start as usize..(range.end as usize).min(matched))
        .filter(|hole| !hole.is_empty())
        .collect();
    let layer_wise = start.is_under_way() && holes.is_empty();
    let Some(mut kv) = start.finish(holes.is_empty()).await else {
        tracing::warn!("the suffix could not be computed ahead of its prefix: the prompt is computed");
        return LoadOutcome::default();
    };
    // Tokens above the bound are not kept in memory, so nothing else is computed over them.
    let loss = loaded.loss();
    kv.set_loss(Loss { kl: loss.kl.min(how.kl_shared_max), ..loss });
    let matched = if layer_wise { kv.len() } else { matched };
    let shareable = loaded.tokens_within(how.kl_shared_max) as usize;
    let prefix = LoadedPrefix { kv, matched, holes, shareable };
    let fetch = report.chunks.iter().filter_map(|chunk| chunk.fetched).max().unwrap_or(report.elapsed);
    LoadOutcome {
        loaded_tokens: loaded.loaded_tokens() as usize,
        prefix: Some(prefix),
        bytes: report.bytes,
        levels: report.chunks.iter().map(|chunk| chunk.level.map(|level| level.0)).collect(),
        kl: loss.kl,
        layer_wise,
        gave_up: report.gave_up,
        fetch,
        decode: report.elapsed.saturating_sub(fetch),
        recompute: if layer_wise { done.elapsed() } else { Duration::ZERO },
    }
}

/// A load whose suffix may be started before the load is complete.
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
    /// The suffix is being computed behind the gate.
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

    /// Waits for the load, and begins the suffix on the first layers.
    async fn follow(&mut self, mut load: Load) -> Loaded {
        while let Some(ready) = load.next_layers().await {
            self.ready(&ready);
        }
        load.finish().await
    }

    fn ready(&mut self, ready: &LayerReady) {
        self.gate.0.open(ready.layers_complete);
        let some = (1..self.layers).contains(&ready.layers_complete);
        if some && matches!(self.state, SuffixState::Waiting(_)) && self.matched + 1 < self.prompt.len() {
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

/// Computes `suffix` behind `matched` tokens that are still loading; `gate` blocks each layer until its KV is
/// present.
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
