//! `store_kv`, `lookup`, `get_kv`: CacheGen's interfaces over the service.

mod load;
mod lookup;
mod reads;
mod report;
mod store;

use std::{fmt, sync::Arc};

use kvasir_codec::{ChunkDecoder, ChunkEncoder};
use kvasir_types::{
    CHUNK_TOKENS_DEFAULT, CHUNK_TOKENS_MAX, CHUNK_TOKENS_STEP, ModelId, ModelSpec, Name, RootHash, TokenChain,
};

pub use load::LoadOptions;
pub use lookup::LoadPlan;
pub use report::{ChunkReport, LoadError, LoadFailure, LoadReport};
pub use store::{ChunkOutcome, StoreProgress, StoreReport, StoredPart};

use crate::{Client, ClientError};

/// One model's KV caches in one namespace: what an engine holds. Cheap to clone, `Send + Sync`.
#[derive(Clone)]
pub struct KvClient {
    client: Client,
    spec: Arc<ModelSpec>,
    model_id: ModelId,
    namespace: Name,
    root: RootHash,
    encoder: Arc<dyn ChunkEncoder>,
    decoder: Arc<dyn ChunkDecoder>,
    chunk_tokens: usize,
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
        let chunk_tokens = CHUNK_TOKENS_DEFAULT;
        Ok(Self { client, spec, model_id, namespace, root, encoder, decoder, chunk_tokens })
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

    /// The model.
    pub const fn model_id(&self) -> ModelId {
        self.model_id
    }

    /// The block hashes of `tokens` in this namespace.
    pub fn chain(&self, tokens: &[u32]) -> TokenChain {
        TokenChain::new(self.root, tokens)
    }
}
