//! Starts loads: `load` and `get_kv`.

use std::{ops::Range, sync::Arc, time::Duration};

use kvasir_codec::{ChunkDecoder, KvBuffer, KvSink};
use kvasir_types::{Plane, TokenRange};
use tokio::{sync::mpsc, time::Instant};

use super::{
    Load, LoadEvent, LoadOptions, LoadReport,
    assembly::ExpectedTokens,
    decode::{DecodeContext, Destination},
    decode_queue::DecodeQueue,
    driver::LoadDriver,
    network::Network,
    progress::LoadProgress,
    stream::LoadOutput,
};
use crate::{
    ClientError,
    fetcher::{FetchPlan, Fetcher, FetcherConfig, PlannedChunk},
    kv::{KvClient, LoadPlan},
    limits::ARRIVALS_QUEUE,
    pages::{BlockTable, Shard, check_dtype},
    transport::Routes,
};

impl KvClient {
    /// Options for a load within `slo` of time to first token, from now on, with what this client has learned so far
    /// of the engine's prefill, of decoding, and of the network.
    pub fn options(&self, slo: Duration) -> LoadOptions {
        let models = self.learned.models();
        LoadOptions {
            decode: models.decode,
            prior_rate: models.rate,
            ..LoadOptions::new(slo, models.recompute)
        }
    }

    /// Streams the plan's KV into an engine's pages within the SLO, and says what is ready as it becomes so.
    ///
    /// `into` is one table, or one for each rank of this node: the bytes are fetched once, and each rank's layers and
    /// heads are decoded from them. Page `i` of a table holds tokens `i × page_tokens ..` of the context. Everything
    /// that is not loaded is given back as [`LoadEvent::Recompute`]; the last token of the plan always is. A failing
    /// network or service therefore is no error, only more to compute, and a load that cannot beat computing is given
    /// up in time.
    ///
    /// # Errors
    /// [`ClientError::Config`] when the model's cache is of 8-bit integers, a table is too short for the plan, or the
    /// options' losses are not one a level.
    pub fn load(
        &self,
        plan: LoadPlan,
        into: impl IntoIterator<Item = BlockTable>,
        options: LoadOptions,
    ) -> Result<Load, ClientError> {
        check_dtype(&self.spec)?;
        let tables: Arc<[BlockTable]> = into.into_iter().collect();
        let tokens = plan.tokens().len() as u64;
        let plan = plan.truncated(tokens.saturating_sub(1));
        let matched = plan.matched_tokens();
        if let Some(table) = tables.iter().find(|table| table.tokens() < matched) {
            let what = format!(
                "a block table has room for {} tokens, the load brings {matched}: reserve pages for all of them",
                table.tokens()
            );
            return Err(ClientError::Config { what });
        }
        self.begin(&plan, Destination::Tables(tables), options, TokenRange { start: matched, end: tokens })
    }

    /// Streams the plan's chunks within the SLO and writes their KV to `sink`, token positions counted from the
    /// context's start: [`load`](Self::load) for those who want all of it at once, in rows, the last token included.
    ///
    /// What the sink does not get is in the report's `recompute` ranges. Dropping the future stops the load; the sink
    /// is only ever written from within it.
    ///
    /// # Errors
    /// [`ClientError::Config`] when the options' level losses do not fit the objects.
    pub async fn get_kv(
        &self,
        plan: &LoadPlan,
        options: LoadOptions,
        sink: &mut (dyn KvSink + Send),
    ) -> Result<LoadReport, ClientError> {
        let nothing = TokenRange { start: 0, end: 0 };
        let mut load = self.begin(plan, Destination::Rows, options, nothing)?;
        while let Some(output) = load.next_output().await {
            match output {
                LoadOutput::Rows { first_token, rows } => {
                    copy_to_sink(&rows, self.spec.layers.len(), first_token, sink).await;
                }
                LoadOutput::Event(LoadEvent::Done { report }) => return Ok(*report),
                LoadOutput::Event(_) => {}
            }
        }
        Err(ClientError::protocol("the runtime ended before the load did"))
    }

    fn begin(
        &self,
        plan: &LoadPlan,
        destination: Destination,
        options: LoadOptions,
        tail: TokenRange,
    ) -> Result<Load, ClientError> {
        let decoders: Vec<Arc<dyn ChunkDecoder>> =
            plan.chunks.iter().filter_map(|chunk| self.decoders.get(&chunk.profile_hash).cloned()).collect();
        if decoders.len() != plan.chunks.len() {
            return Err(ClientError::Config {
                what: "the plan has chunks of a profile that is not loaded".into(),
            });
        }
        let layers = self.spec.layers.len();
        let held: Vec<Range<usize>> = match &destination {
            Destination::Tables(tables) => tables.iter().map(|t| t.shard().layers.clone()).collect(),
            Destination::Rows => vec![Shard::ALL.layers],
        };
        let config = FetcherConfig {
            estimator: options.estimator,
            recompute: options.recompute.clone(),
            decode: options.decode.clone(),
            text_mode: options.text,
        };
        let fetch_plan = fetch_plan(plan, &decoders, &options);
        let started = Instant::now();
        let fetcher = Fetcher::new(fetch_plan, options.policy, config).map_err(|_| ClientError::Config {
            what: "the level losses must be as many as the objects' levels, and not increase".into(),
        })?;
        let vias: Vec<_> = plan.chunks.iter().map(|c| (c.object_digest, c.via.clone())).collect();
        let gate = Arc::default();
        let (sender, arrivals) = mpsc::channel(ARRIVALS_QUEUE);
        let (outputs, receiver) = mpsc::unbounded_channel();
        let network = Network::new(
            Routes::new(self.client.clone(), plan.request.clone(), &vias, plan.looked_up),
            self.model_id,
            ExpectedTokens { tokens: Arc::clone(&plan.tokens), chain: Arc::clone(&plan.chain) },
            plan.chunks.iter().cloned(),
            sender.clone(),
        );
        let context = DecodeContext { spec: Arc::clone(&self.spec), destination, gate: Arc::clone(&gate) };
        let decodes = DecodeQueue::new(context, decoders);
        let kl_bound = options.kl_bound.unwrap_or(f64::INFINITY);
        let progress = LoadProgress::new(held, layers, plan.matched_tokens(), kl_bound);
        let learned = Arc::clone(&self.learned);
        let driver = LoadDriver::new(started, fetcher, network, decodes, progress, outputs, learned);
        let task = self.runtime.spawn(driver.run(arrivals, tail));
        Ok(Load { outputs: receiver, commands: sender, task, gate })
    }
}

fn fetch_plan(plan: &LoadPlan, decoders: &[Arc<dyn ChunkDecoder>], options: &LoadOptions) -> FetchPlan {
    let chunk = |(c, decoder): (&kvasir_api::ChunkMatch, &Arc<dyn ChunkDecoder>)| {
        let tokens = TokenRange { start: c.first_token, end: c.first_token + u64::from(c.matched_tokens) };
        let mut chunk = PlannedChunk::with_default_loss(tokens, c.level_bytes.clone());
        let known = options
            .level_loss
            .clone()
            .or_else(|| decoder.level_kl().filter(|kl| kl.len() == c.level_bytes.len()));
        if let Some(loss) = known {
            chunk.loss = loss;
        }
        chunk
    };
    FetchPlan {
        chunks: plan.chunks.iter().zip(decoders).map(chunk).collect(),
        slo: options.slo,
        suffix_time: options.suffix_time,
        prior_rate: options.prior_rate,
    }
}

/// Copies decoded rows to the engine's sink, letting other tasks run between layers.
async fn copy_to_sink(rows: &KvBuffer, layers: usize, first_token: u64, sink: &mut (dyn KvSink + Send)) {
    for layer in 0..layers {
        for plane in Plane::ALL {
            for head in 0..rows.heads(layer, plane) {
                sink.write(layer, plane, head, first_token as usize, rows.rows(layer, plane, head));
            }
        }
        tokio::task::yield_now().await;
    }
}
