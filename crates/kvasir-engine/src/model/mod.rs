//! A Llama-family decoder in f32 arithmetic, KV in pages of the model's own KV type.
//!
//! Attention always reads keys and values *as they are cached* (rounded to the KV type), for the tokens of the
//! same step too. So a cache that came back bit for bit gives the logits that the original gave, and how a
//! prompt is cut into prefill steps changes only the order of f32 additions.

mod config;
mod forward;
mod generate;
mod matrix;
mod observe;
mod rotary;
mod sample;
mod weights;

use std::{path::Path, sync::Arc};

use kvasir_types::{ModelSpec, TokenRange};

pub use config::LlamaConfig;
pub use forward::StepItem;
pub(crate) use generate::Sampler;
pub use generate::Sampling;
pub use observe::{Observer, Unobserved};

use crate::{
    error::EngineError,
    limits::{PAGE_TOKENS_DEFAULT, PREFILL_TOKENS_DEFAULT},
    logits::Logits,
    paged::{PagePool, PagedKv},
    tokenizer::Tokenizer,
};

const TINY_CONFIG: &[u8] = include_bytes!("../../assets/kvasir-tiny/config.json");
const TINY_WEIGHTS: &[u8] = include_bytes!("../../assets/kvasir-tiny/model.safetensors");
const TINY_TOKENIZER: &[u8] = include_bytes!("../../assets/kvasir-tiny/tokenizer.json");

/// The profile that ships with [`Model::kvasir_tiny`], as bytes for `Profile::from_bytes`.
/// `assets/kvasir-tiny/README.md` describes how it was trained and what its levels cost.
pub const TINY_PROFILE: &[u8] = include_bytes!("../../assets/kvasir-tiny/default.kvp");

/// A loaded model. Share it cheaply behind an `Arc`; every call takes the cache it works on.
#[derive(Debug)]
pub struct Model {
    config: LlamaConfig,
    spec: Arc<ModelSpec>,
    weights: weights::Weights,
    rotary: rotary::RotaryTable,
    tokenizer: Tokenizer,
    prefill_tokens: usize,
}

impl Model {
    /// The model that ships inside the program: `assets/kvasir-tiny`.
    ///
    /// # Errors
    /// None for an unmodified build; the assets pass the same checks as any model.
    pub fn kvasir_tiny() -> Result<Self, EngineError> {
        Self::from_parts("kvasir-tiny", TINY_CONFIG, TINY_WEIGHTS, TINY_TOKENIZER)
    }

    /// Loads `config.json`, `model.safetensors` and `tokenizer.json` of a directory. The weights id is the
    /// directory's name; the revision is the BLAKE3 of the weights, so a changed file is another model.
    ///
    /// # Errors
    /// [`EngineError`] when a file cannot be read or is not of a model that this engine runs.
    pub fn load(dir: &Path) -> Result<Self, EngineError> {
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read(&path)
                .map_err(|source| EngineError::Read { path: path.display().to_string(), source })
        };
        let weights_id = dir.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy());
        Self::from_parts(
            &weights_id,
            &read("config.json")?,
            &read("model.safetensors")?,
            &read("tokenizer.json")?,
        )
    }

    fn from_parts(id: &str, config: &[u8], weights: &[u8], tokenizer: &[u8]) -> Result<Self, EngineError> {
        let config = LlamaConfig::from_json(config)?;
        let spec = config.spec(id.to_owned(), blake3::hash(weights).to_hex().to_string());
        let rotary = rotary::RotaryTable::new(&spec.ropes[0], config.context);
        Ok(Self {
            weights: weights::Weights::from_safetensors(weights, &config)?,
            tokenizer: Tokenizer::from_json(tokenizer)?,
            spec: Arc::new(spec),
            prefill_tokens: PREFILL_TOKENS_DEFAULT,
            config,
            rotary,
        })
    }

    /// Sets how many tokens a prefill step processes (at least 1); bounds the memory for activations.
    #[must_use]
    pub fn with_prefill_tokens(mut self, tokens: usize) -> Self {
        self.prefill_tokens = tokens.max(1);
        self
    }

    /// Identity and layout of the model's KV cache.
    pub fn spec(&self) -> &Arc<ModelSpec> {
        &self.spec
    }

    /// The model's sizes.
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// Number of parameters of the model. The budgets of profiles are shares of it.
    pub fn parameters(&self) -> usize {
        let c = &self.config;
        let attention = 2 * c.hidden * c.head_dim * (c.heads + c.kv_heads);
        let layer = attention + 3 * c.hidden * c.intermediate + 2 * c.hidden;
        let embeddings = c.vocab * c.hidden * if c.tied { 1 } else { 2 };
        c.layers * layer + embeddings + c.hidden
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// An empty cache over a new pool that holds one context, in pages of 16 tokens.
    ///
    /// # Errors
    /// [`EngineError::Paged`] when the model's KV type has no storage.
    pub fn new_kv(&self) -> Result<PagedKv, EngineError> {
        // One page more, so that a fork of a full context can copy its tail.
        let pages = 2 * self.config.context.div_ceil(PAGE_TOKENS_DEFAULT) + 1;
        Ok(PagedKv::new(PagePool::new(&self.spec, PAGE_TOKENS_DEFAULT, pages)?))
    }

    /// Computes the KV cache of a context (CacheGen's `calculate_kv`).
    ///
    /// # Errors
    /// [`EngineError::Token`], [`EngineError::ContextLength`].
    pub fn calculate_kv(&self, tokens: &[u32]) -> Result<PagedKv, EngineError> {
        let mut kv = self.new_kv()?;
        self.extend_kv(&mut kv, tokens)?;
        Ok(kv)
    }

    /// Prefills `tokens` after the tokens that the cache holds.
    ///
    /// # Errors
    /// As [`calculate_kv`](Self::calculate_kv), and [`EngineError::Paged`] when the pool is full.
    pub fn extend_kv(&self, kv: &mut PagedKv, tokens: &[u32]) -> Result<(), EngineError> {
        self.extend_observed(kv, tokens, &mut Unobserved)
    }

    /// As [`extend_kv`](Self::extend_kv), showing attention and hidden states to `observer`.
    ///
    /// # Errors
    /// As [`extend_kv`](Self::extend_kv).
    pub fn extend_observed(
        &self,
        kv: &mut PagedKv,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        for step in tokens.chunks(self.prefill_tokens) {
            self.forward(kv, step, observer)?;
        }
        Ok(())
    }

    /// Completes a cache that a load filled in part. The KV of `tokens` is in the reserved pages, except for
    /// the ranges `missing` (ascending, disjoint), and nothing is committed yet. This call prefills those
    /// ranges in place, each over everything before it. Parts of `missing` behind the end of `tokens` are
    /// ignored.
    ///
    /// # Errors
    /// As [`extend_kv`](Self::extend_kv); [`EngineError::Paged`] when pages were not reserved.
    pub fn complete_kv(
        &self,
        kv: &mut PagedKv,
        tokens: &[u32],
        missing: &[TokenRange],
    ) -> Result<(), EngineError> {
        for range in missing {
            let (start, end) = (range.start as usize, (range.end as usize).min(tokens.len()));
            if start < end {
                kv.commit(start)?;
                self.extend_kv(kv, &tokens[start..end])?;
            }
        }
        Ok(kv.commit(tokens.len())?)
    }

    /// Teacher forcing: appends `tokens` and returns the logits after each of them.
    ///
    /// # Errors
    /// As [`extend_kv`](Self::extend_kv).
    pub fn logits(&self, kv: &mut PagedKv, tokens: &[u32]) -> Result<Logits, EngineError> {
        self.logits_observed(kv, tokens, &mut Unobserved)
    }

    /// As [`logits`](Self::logits), under an `observer`, which may hide cached tokens from attention.
    ///
    /// # Errors
    /// As [`extend_kv`](Self::extend_kv).
    pub fn logits_observed(
        &self,
        kv: &mut PagedKv,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<Logits, EngineError> {
        let mut values = Vec::with_capacity(tokens.len() * self.config.vocab);
        for step in tokens.chunks(self.prefill_tokens) {
            let hidden = self.forward(kv, step, observer)?;
            values.extend_from_slice(hidden.linear(self.weights.head()).values());
        }
        Ok(Logits::new(values, self.config.vocab))
    }

    /// One step of continuous batching: appends every item's tokens to its own cache and returns, per item, the
    /// logits after its last token. Items may mix prefill (many tokens) and decode (one).
    ///
    /// # Errors
    /// As [`extend_kv`](Self::extend_kv), for the first item that cannot be served; then no cache has grown.
    pub fn step(&self, items: &mut [StepItem<'_>]) -> Result<Vec<Vec<f32>>, EngineError> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let hidden = self.forward_batch(items, &mut Unobserved)?;
        let mut end = 0;
        let last = items.iter().map(|item| {
            end += item.tokens.len();
            end - 1
        });
        let logits = hidden.select(last).linear(self.weights.head());
        Ok(logits.values().chunks_exact(self.config.vocab).map(<[f32]>::to_vec).collect())
    }
}
