//! `store_kv`, `lookup`, `get_kv`: CacheGen's interfaces over the service.

mod learned_costs;
mod load;
mod lookup;
mod ranges;
mod store;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use kvasir_codec::{ChunkDecoder, ChunkEncoder, CpuDecoder, CpuEncoder, Profile, ProfileError};
use kvasir_types::{
    CHUNK_TOKENS_DEFAULT, CHUNK_TOKENS_MAX, CHUNK_TOKENS_STEP, ModelId, ModelSpec, Name, ProfileHash,
    RootHash, TokenChain, TokenRange,
};

pub use load::{
    ChunkReport, LayerReady, Load, LoadError, LoadEvent, LoadFailure, LoadOptions, LoadReport, ReadReport,
    RecomputeCause,
};
pub use lookup::LoadPlan;
pub use store::{
    AdmissionPolicy, ChunkOutcome, ChunkStoreReport, DropPolicy, QueueConfig, QueueStats, StoreOptions,
    StoreOutcome, StoreProgress, StoreQueue, StoreRefusal, StoreReport, StoreTicket, Urgency,
};

use crate::{Client, ClientError, RequestClass, fetcher::RecomputeModel, limits::PROFILES_MAX};

/// One model's KV caches in one namespace: what an engine holds. Cheap to clone, `Send + Sync`.
#[derive(Clone)]
pub struct KvClient {
    client: Client,
    spec: Arc<ModelSpec>,
    model_id: ModelId,
    namespace: Name,
    root: RootHash,
    encoder: Arc<dyn ChunkEncoder>,
    /// By profile; the encoder's own is always there.
    decoders: Arc<BTreeMap<ProfileHash, Arc<dyn ChunkDecoder>>>,
    chunk_tokens: usize,
    direct: bool,
    kl_beneath_max: f32,
    learned: Arc<learned_costs::LearnedCosts>,
    runtime: tokio::runtime::Handle,
}

impl fmt::Debug for KvClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvClient")
            .field("model_id", &self.model_id)
            .field("namespace", &self.namespace)
            .field("chunk_tokens", &self.chunk_tokens)
            .finish_non_exhaustive()
    }
}

impl KvClient {
    /// Registers the model and asks for the namespace's root; from then on chains are hashed here. Encoder and
    /// decoder must be of the same profile, which the service must have
    /// ([`Client::put_profile`]) before chunks are stored.
    ///
    /// # Errors
    /// Those of [`Client::register_model`] and [`Client::namespace_root`].
    pub async fn new(
        client: Client,
        spec: Arc<ModelSpec>,
        namespace: Name,
        encoder: Arc<dyn ChunkEncoder>,
        decoder: Arc<dyn ChunkDecoder>,
    ) -> Result<Self, ClientError> {
        let model_id = client.register_model(&spec).await?.model_id;
        let root = client.namespace_root(model_id, &namespace).await?;
        // Until a prefill was seen: a 7 B model at 60 TFLOPS.
        let recompute = RecomputeModel::from_flops(7.2e9, spec.layers.len(), 4096, 6e13);
        Ok(Self {
            decoders: Arc::new(BTreeMap::from([(encoder.profile_hash(), decoder)])),
            client,
            spec,
            model_id,
            namespace,
            root,
            encoder,
            chunk_tokens: CHUNK_TOKENS_DEFAULT,
            direct: false,
            kl_beneath_max: f32::INFINITY,
            learned: Arc::new(learned_costs::LearnedCosts::new(recompute)),
            runtime: tokio::runtime::Handle::current(),
        })
    }

    /// Reads objects straight from the store where the service can presign URLs; through the service otherwise, and
    /// where a direct read fails.
    #[must_use]
    pub const fn with_direct_reads(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// The same caches on behalf of one request of an engine: its lookups, loads and stores say so to the service, which
    /// keeps ready what such requests use again.
    #[must_use]
    pub fn for_request(&self, class: RequestClass) -> Self {
        Self { client: self.client.for_request(class), ..self.clone() }
    }

    /// Accepts only chunks that were computed over prefixes whose predicted KL is at most this many nats a token.
    #[must_use]
    pub const fn with_kl_beneath_max(mut self, nats: f32) -> Self {
        self.kl_beneath_max = nats;
        self
    }

    /// Starts from another model of the engine's prefill times than the default (a 7 B model at 60 TFLOPS); loads and
    /// [`observe_prefill`](Self::observe_prefill) fit it further.
    #[must_use]
    pub fn with_recompute_model(self, recompute: RecomputeModel) -> Self {
        self.learned.set_recompute(recompute);
        self
    }

    /// Tells what a prefill of `range`, behind everything before it, took: what a load is weighed against.
    pub fn observe_prefill(&self, range: TokenRange, took: Duration) {
        self.learned.observe_prefill(range, took);
    }

    /// Decodes chunks of one more profile.
    #[must_use]
    pub fn with_decoder(mut self, profile: ProfileHash, decoder: Arc<dyn ChunkDecoder>) -> Self {
        Arc::make_mut(&mut self.decoders).insert(profile, decoder);
        self
    }

    /// Fetches the model's profiles that the service has and this client has not, at most 16, and makes decoders of
    /// them: so that no load waits for one, or misses what was stored with it.
    ///
    /// # Errors
    /// Those of [`Client::list_profiles`] and [`Client::get_profile`]; [`ClientError::Profile`] for a profile that is
    /// not of this model.
    pub async fn preload_profiles(
        mut self,
        decoder: impl Fn(Arc<Profile>) -> Result<Arc<dyn ChunkDecoder>, ProfileError>,
    ) -> Result<Self, ClientError> {
        let listed = self.client.list_profiles(&self.model_id).await?.profiles;
        for info in listed.into_iter().take(PROFILES_MAX) {
            if !self.decoders.contains_key(&info.profile_hash) {
                let bytes = self.client.get_profile(&self.model_id, &info.profile_hash).await?;
                let profile = Arc::new(Profile::from_bytes(&bytes)?);
                self = self.with_decoder(info.profile_hash, decoder(profile)?);
            }
        }
        Ok(self)
    }

    /// As [`new`](Self::new) with encoder and decoder on the CPU, and publishes the profile: all that an engine without
    /// a GPU decoder needs.
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`Client::put_profile`]; [`ClientError::Profile`] for another model's profile.
    pub async fn connect(
        client: Client,
        spec: Arc<ModelSpec>,
        namespace: Name,
        profile: Arc<Profile>,
    ) -> Result<Self, ClientError> {
        let encoder = Arc::new(CpuEncoder::new(Arc::clone(&spec), Arc::clone(&profile))?);
        let decoder = Arc::new(CpuDecoder::new(Arc::clone(&spec), Arc::clone(&profile))?);
        let kv = Self::new(client, spec, namespace, encoder, decoder).await?;
        kv.client.put_profile(&kv.model_id, profile.to_bytes()).await?;
        Ok(kv)
    }

    /// Stores chunks of another length.
    ///
    /// # Errors
    /// [`ClientError::Config`] unless it is a multiple of 256 up to 16,384.
    pub fn with_chunk_tokens(mut self, chunk_tokens: usize) -> Result<Self, ClientError> {
        if chunk_tokens == 0
            || chunk_tokens > CHUNK_TOKENS_MAX
            || !chunk_tokens.is_multiple_of(CHUNK_TOKENS_STEP)
        {
            let what = format!(
                "chunks of {chunk_tokens} tokens are not possible: use a multiple of {CHUNK_TOKENS_STEP} up to {CHUNK_TOKENS_MAX}"
            );
            return Err(ClientError::Config { what });
        }
        self.chunk_tokens = chunk_tokens;
        Ok(self)
    }

    /// The REST client beneath.
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Layout of the model's KV.
    pub const fn spec(&self) -> &Arc<ModelSpec> {
        &self.spec
    }

    /// The model.
    pub const fn model_id(&self) -> ModelId {
        self.model_id
    }

    /// The block hashes of `tokens` in this namespace.
    pub fn chain(&self, tokens: &[u32]) -> TokenChain {
        TokenChain::new(self.root, tokens)
    }
}
