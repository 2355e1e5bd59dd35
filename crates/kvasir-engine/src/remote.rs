//! How an engine embeds Kvasir: load before prefill, compute what did not come, store after.
//!
//! ```text
//! prompt ─ lookup ─► plan ─ load ─► BlockTable ─► pages        what the load left out (failed, or cheaper to
//!                                                   │          compute) comes back as ranges: `complete_kv`
//!                                                   ▼          prefills exactly those, in place
//!                                              generate_with_kv ─► answer, and `store` in the background
//! ```
//! The recompute contract: a load never fails a request. Whatever Kvasir, the network or the store did, the
//! report says which tokens are in place and which are not, and the worst case is an ordinary prefill.

use std::{sync::Arc, time::Instant};

use kvasir_client::{
    ClientError, KvClient, LoadOptions, LoadReport, StoreOptions, StoreProgress, StoreReport,
    fetcher::RecomputeModel,
};
use kvasir_codec::{CpuDecoder, CpuEncoder, Profile};
use kvasir_types::{Name, TokenRange};

use crate::{error::EngineError, model::Model, paged::PagedKv};

/// What went wrong between the engine and the service. A failed *load* is none: its tokens are computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The service or the way to it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The profile is not of this model.
    #[error(transparent)]
    Profile(#[from] kvasir_codec::ProfileError),
}

/// Fits a model of the engine's prefill times from two short prefills of `tokens` (a few hundred).
///
/// # Errors
/// As [`Model::calculate_kv`].
pub fn calibrate(model: &Model, tokens: &[u32]) -> Result<RecomputeModel, EngineError> {
    let c = model.config();
    let mut recompute = RecomputeModel::from_flops(c.parameters() as f64, c.layers, c.hidden, 2e10);
    for share in [4, 1] {
        let part = &tokens[..tokens.len() / share];
        let started = Instant::now();
        model.calculate_kv(part)?;
        recompute.observe(TokenRange { start: 0, end: part.len() as u64 }, started.elapsed());
    }
    Ok(recompute)
}

/// A loaded and completed prefix.
#[derive(Debug)]
pub struct Loaded {
    /// The cache: every token of the prompt but the last is in place.
    pub kv: PagedKv,
    /// Tokens that came from Kvasir.
    pub loaded_tokens: u64,
    /// Predicted KL of the loaded prefix, nats a token: hand it to the [`store`](RemoteKv::store) of what is computed
    /// over it.
    pub kl_beneath: f64,
    /// What the load did; none on a miss.
    pub report: Option<LoadReport>,
}

/// An engine's connection to Kvasir for one model, profile and namespace.
#[derive(Debug, Clone)]
pub struct RemoteKv {
    model: Arc<Model>,
    client: KvClient,
}

impl RemoteKv {
    /// Registers the model, publishes the profile and binds both to a namespace.
    ///
    /// # Errors
    /// [`RemoteError::Profile`] for another model's profile, [`RemoteError::Client`] when the service refuses
    /// or cannot be reached.
    pub async fn connect(
        model: Arc<Model>,
        client: kvasir_client::Client,
        namespace: Name,
        profile: Arc<Profile>,
    ) -> Result<Self, RemoteError> {
        let encoder = CpuEncoder::new(Arc::clone(model.spec()), Arc::clone(&profile))?;
        let decoder = CpuDecoder::new(Arc::clone(model.spec()), Arc::clone(&profile))?;
        let spec = Arc::clone(model.spec());
        let kv = KvClient::new(client, spec, namespace, Arc::new(encoder), Arc::new(decoder)).await?;
        kv.client().put_profile(&kv.model_id(), profile.to_bytes()).await?;
        Ok(Self { model, client: kv })
    }

    /// Stores chunks of another length; the default is 1,536 tokens.
    ///
    /// # Errors
    /// As [`KvClient::with_chunk_tokens`].
    pub fn with_chunk_tokens(mut self, tokens: usize) -> Result<Self, RemoteError> {
        self.client = self.client.with_chunk_tokens(tokens)?;
        Ok(self)
    }

    /// Starts from a model of this engine's own prefill times, as [`calibrate`] measures it: it decides which loads are
    /// not worth their time.
    #[must_use]
    pub fn with_recompute_model(mut self, recompute: RecomputeModel) -> Self {
        self.client = self.client.with_recompute_model(recompute);
        self
    }

    /// The client beneath.
    pub const fn client(&self) -> &KvClient {
        &self.client
    }

    /// Brings the KV of `prompt` into `kv` (empty, from the engine's own pool), all but the last token: by
    /// loading where Kvasir has it in time, by computing the rest.
    ///
    /// # Errors
    /// [`RemoteError::Engine`] when the engine cannot hold the prompt. Lookups that fail are misses.
    pub async fn load(
        &self,
        mut kv: PagedKv,
        prompt: &[u32],
        options: LoadOptions,
    ) -> Result<Loaded, RemoteError> {
        // The last token's logits are needed, and no cache holds them: it is always computed.
        let wanted = &prompt[..prompt.len().saturating_sub(1)];
        kv.reserve(prompt.len()).map_err(EngineError::from)?;
        let plan = self.client.lookup(prompt).await.ok().filter(|plan| plan.matched_tokens() > 0);
        let Some(plan) = plan else {
            self.compute(&mut kv, wanted, &[], 0)?;
            return Ok(Loaded { kv, loaded_tokens: 0, kl_beneath: 0.0, report: None });
        };
        // Generations in the table keep a load that is cancelled out of pages that are another's by then.
        let table = kv.load_table().map_err(EngineError::from)?;
        let matched = plan.matched_tokens().min(wanted.len() as u64);
        let report = self.client.load(plan, [table], options)?.report().await;
        match report {
            Some(report) if report.stale_rows == 0 => {
                self.compute(&mut kv, wanted, &report.recompute, matched)?;
                let (loaded_tokens, kl_beneath) = (report.loaded_tokens(), report.kl_beneath);
                Ok(Loaded { kv, loaded_tokens, kl_beneath, report: Some(report) })
            }
            // The pages were taken away while the load ran, or the runtime ended: nothing of it may be used.
            report => {
                self.compute(&mut kv, wanted, &[], 0)?;
                Ok(Loaded { kv, loaded_tokens: 0, kl_beneath: 0.0, report })
            }
        }
    }

    fn compute(
        &self,
        kv: &mut PagedKv,
        tokens: &[u32],
        holes: &[TokenRange],
        matched: u64,
    ) -> Result<(), EngineError> {
        self.model.complete_kv(kv, tokens, matched as usize, holes)
    }

    /// Stores the KV of `tokens`; chunks that are there already are not sent again. `kl_beneath` is that of the load
    /// it was computed over ([`Loaded::kl_beneath`]), 0 when nothing was loaded: chunks over too lossy a prefix are not
    /// stored.
    ///
    /// # Errors
    /// As [`KvClient::store_kv`].
    pub async fn store(
        &self,
        tokens: &[u32],
        kv: &PagedKv,
        kl_beneath: f64,
        progress: impl FnMut(StoreProgress) + Send,
    ) -> Result<StoreReport, RemoteError> {
        let options = StoreOptions { kl_beneath, ..StoreOptions::default() };
        Ok(self.client.store_kv_with(tokens, kv, &options, progress).await?)
    }
}
