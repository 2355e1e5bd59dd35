//! Starts loads.

use std::{sync::Arc, time::Duration};

use kvasir_api::ChunkMatch;
use kvasir_codec::ChunkDecoder;
use kvasir_types::{Level, Loss, Quality, TokenRange};
use tokio::{runtime::Handle, sync::mpsc, time::Instant};

use super::{
    Beneath, LearnedCosts, LoadOptions, Running,
    assembly::ExpectedTokens,
    decode::DecodeContext,
    decode_queue::DecodeQueue,
    device_promise::DevicePromise,
    driver::LoadDriver,
    learned_costs::{cpu_pace, unmeasured_decode},
    network::Network,
    progress::LoadProgress,
};
use crate::{
    Error, QualityFloor,
    fetcher::{FetchPlan, Fetcher, FetcherConfig, PlannedChunk, TextMode},
    limits::ARRIVALS_QUEUE,
    lookup::Matched,
    model::Binding,
    pages::{BlockTable, WriteGate, check_dtype},
    rest::{BlockLookup, Client, Routes},
};

/// The levels of a stored chunk that are good enough, and the loss of each.
#[derive(Debug)]
pub(crate) struct PlannedLevels {
    /// Predicted KL of each level, in nats per token, coarsest first; `None` if unknown.
    kl: Option<Vec<f64>>,
    /// The coarsest level that may be used.
    pub(super) floor: Level,
}

impl PlannedLevels {
    /// All levels of a chunk of unknown KL.
    #[cfg(test)]
    pub(super) const fn all() -> Self {
        Self { kl: None, floor: Level(0) }
    }

    /// Loss of the chunk's KV when decoded at a level.
    pub(super) fn loss_of(&self, chunk: &ChunkMatch, level: Level) -> Loss {
        let kl = self.kl.as_ref().and_then(|kl| kl.get(level.index()));
        // An unknown KL adds nothing here; the error and the hops still record the loss.
        chunk.loss_at(level, kl.copied().unwrap_or(0.0))
    }

    /// The levels of a chunk at `floor` or better, including the loss beneath it; `None` if no level is good
    /// enough.
    pub(crate) fn new(chunk: &ChunkMatch, decoder: &dyn ChunkDecoder, floor: QualityFloor) -> Option<Self> {
        let count = chunk.level_bytes.len();
        let kl = decoder.level_kl().filter(|kl| kl.len() == count);
        let is_good_enough = |level: &Level| match floor {
            QualityFloor::Adaptive => true,
            QualityFloor::KlAtMost(max) => {
                kl.as_ref().is_some_and(|kl| chunk.loss_at(*level, kl[level.index()]).is_within_kl(max))
            }
            QualityFloor::Named(quality) => chunk.loss_at(*level, 0.0).error <= quality.error_max(),
        };
        let floor = (0..count as u8).map(Level).find(is_good_enough)?;
        Some(Self { kl, floor })
    }

    /// Also allows the coarser levels of at least `soft` quality.
    fn lowered_to(mut self, soft: Quality, chunk: &ChunkMatch) -> Self {
        let is_good_enough = |level: &Level| chunk.loss_at(*level, 0.0).error <= soft.error_max();
        self.floor = (0..self.floor.0).map(Level).find(is_good_enough).unwrap_or(self.floor);
        self
    }

    /// The chunk for the fetcher. Levels below the floor have the size of the floor.
    fn plan(&self, chunk: &ChunkMatch) -> PlannedChunk {
        let floor = self.floor.index();
        let mut level_bytes = chunk.level_bytes.clone();
        let mut loss = self.kl.clone().unwrap_or_else(|| PlannedChunk::default_loss(level_bytes.len()));
        for level in 0..floor {
            level_bytes[level] = level_bytes[floor];
            loss[level] = loss[floor];
        }
        let tokens =
            TokenRange { start: chunk.first_token, end: chunk.first_token + u64::from(chunk.matched_tokens) };
        PlannedChunk { tokens, level_bytes, loss }
    }
}

/// The parameters of a session's load.
pub(crate) struct LoadTask<'a> {
    pub(crate) client: &'a Client,
    pub(crate) binding: &'a Binding,
    pub(crate) runtime: &'a Handle,
    pub(crate) learned: &'a Arc<LearnedCosts>,
    /// Lowest quality to load.
    pub(crate) floor: QualityFloor,
    pub(crate) tokens: &'a Arc<Vec<u32>>,
    /// The lookup; repeating it renews presigned URLs.
    pub(crate) lookup: BlockLookup,
    pub(crate) matched: Matched,
    pub(crate) beneath: &'a Arc<Beneath>,
}

impl LoadTask<'_> {
    /// Starts the load.
    ///
    /// # Errors
    /// [`Error::Config`] if a table is too short, or the model's caches cannot be written into pages.
    pub(crate) fn begin(
        mut self,
        tables: Vec<BlockTable>,
        options: LoadOptions,
        text_mode: TextMode,
    ) -> Result<Running, Error> {
        let codec = &self.binding.codec;
        check_dtype(&codec.spec)?;
        let count = self.tokens.len() as u64;
        if !options.last_token {
            self.matched.truncate(count.saturating_sub(1));
        }
        let mut chunks = Vec::with_capacity(self.matched.chunks.len());
        for chunk in &self.matched.chunks {
            let decoder = codec.decoder(&chunk.profile_hash);
            let levels = decoder.as_ref().and_then(|d| PlannedLevels::new(chunk, &**d, self.floor));
            // The lookup ended before chunks that cannot be decoded or are too coarse.
            let (Some(decoder), Some(levels)) = (decoder, levels) else { break };
            let levels = match options.soft_floor {
                Some(soft) => levels.lowered_to(soft, chunk),
                None => levels,
            };
            chunks.push((decoder, levels));
        }
        self.matched.chunks.truncate(chunks.len());
        let found = self.matched.tokens();
        if let Some(table) = tables.iter().find(|table| table.tokens() < found) {
            let what = format!(
                "a block table has room for {} tokens, but the load has {found}: reserve pages for all of them",
                table.tokens()
            );
            return Err(Error::Config { what });
        }
        let is_present =
            |chunk: &ChunkMatch| chunk.first_token + u64::from(chunk.matched_tokens) <= options.present;
        let present = self.matched.chunks.partition_point(is_present);
        self.matched.chunks.drain(..present);
        chunks.drain(..present);
        if chunks.is_empty() {
            return Ok(Running::miss(options.present, count, self.beneath));
        }
        self.spawn(tables, options, text_mode, chunks)
    }

    fn spawn(
        self,
        tables: Vec<BlockTable>,
        options: LoadOptions,
        text_mode: TextMode,
        levels: Vec<(Arc<dyn ChunkDecoder>, PlannedLevels)>,
    ) -> Result<Running, Error> {
        let (codec, tail) =
            (&self.binding.codec, TokenRange { start: self.matched.tokens(), end: self.tokens.len() as u64 });
        let learned = self.learned.models();
        let recompute = options.recompute.unwrap_or(learned.recompute);
        let suffix_time = options.suffix_time.unwrap_or_else(|| match tail.end.saturating_sub(1) {
            end if end > tail.start => recompute.predict(TokenRange { start: tail.start, end }),
            _ => Duration::ZERO,
        });
        let objects = self.matched.chunks;
        let first = objects.first().map_or(tail.start, |chunk| chunk.first_token);
        let vias: Vec<_> = objects.iter().map(|chunk| (chunk.object_digest, chunk.via.clone())).collect();
        let (decoders, levels): (Vec<_>, Vec<_>) = levels.into_iter().unzip();
        let mut plan = FetchPlan {
            chunks: levels.iter().zip(&objects).map(|(levels, chunk)| levels.plan(chunk)).collect(),
            slo: options.deadline.left(),
            suffix_time,
            prior_rate: options.rate.or(learned.rate),
            first_byte: self.client.expected_first_byte(),
        };
        let gate = Arc::<WriteGate>::default();
        let mut context = DecodeContext::new(Arc::clone(&codec.spec), tables, Arc::clone(&gate));
        let (started, on_device) = (Instant::now(), context.is_on_device());
        context.promise = self.learned.device_pace().filter(|_| on_device).map(|device| DevicePromise {
            device,
            cpu: cpu_pace(learned.decode.as_ref(), &context, &decoders, &plan.chunks),
            due: started + plan.deadline(),
        });
        // What the caller gives stays as it is.
        let is_given = options.decode.is_some() || options.rate.is_some();
        let decode = options.decode.or(if on_device { learned.device_decode } else { learned.decode });
        let mut config = FetcherConfig {
            estimator: options.estimator,
            recompute,
            decode: decode.unwrap_or_else(|| unmeasured_decode(&context, &decoders, &plan.chunks)),
            text_mode,
            decodes_on_gpu: on_device,
        };
        let trial =
            if is_given { None } else { self.learned.put_to_the_test(&mut plan, &mut config, on_device) };
        let (sender, arrivals) = mpsc::channel(ARRIVALS_QUEUE);
        let (events, received) = mpsc::unbounded_channel();
        let (chain, direct) = (Arc::clone(self.lookup.chain()), self.lookup.is_direct());
        let lookup = direct.then_some(self.lookup);
        let network = Network::new(
            Routes::new(self.client.clone(), options.deadline, lookup, &vias, self.matched.looked_up),
            codec.model_id,
            ExpectedTokens { tokens: Arc::clone(self.tokens), chain },
            objects.into_iter().zip(levels),
            sender.clone(),
        );
        let held = context.tables.iter().map(|table| table.shard().layers.clone()).collect();
        let progress =
            LoadProgress::new(held, codec.spec.layers.len(), TokenRange { start: first, end: tail.start });
        let decodes = DecodeQueue::new(context, decoders);
        let fetcher = Fetcher::new(plan, options.policy, config).map_err(|error| {
            Error::protocol(format!("the lookup's chunks do not form a valid plan: {error}"))
        })?;
        let driver = LoadDriver::new(
            started,
            fetcher,
            network,
            decodes,
            progress,
            events,
            (Arc::clone(self.learned), trial),
        );
        let task = self.runtime.spawn(driver.run(arrivals, tail));
        let running = Running::miss(options.present, tail.end, self.beneath);
        Ok(running.with((received, sender), task, gate, tail.start))
    }
}
