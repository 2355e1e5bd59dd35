//! Errors of the engine, grouped by what the caller can do about them.

use kvasir_types::KvDtype;

/// A model directory, cache or request that the engine cannot serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A file of the model could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// `config.json` does not describe a model that this engine runs.
    #[error("model configuration: {0}")]
    Config(#[from] ConfigError),
    /// The weights lack a tensor, or it has another shape.
    #[error("weights: tensor {name} must be {expected:?}, found {found:?}")]
    Weight {
        /// Hugging Face name.
        name: String,
        /// Shape that the configuration requires.
        expected: Vec<usize>,
        /// Shape found; `None` if the tensor is missing.
        found: Option<Vec<usize>>,
    },
    /// A weight of a type that the engine does not convert.
    #[error("weights: tensor {name} is {dtype}; this engine reads F16, BF16 and F32")]
    WeightType {
        /// Hugging Face name.
        name: String,
        /// Its type.
        dtype: safetensors::Dtype,
    },
    /// The weights are not a valid safetensors file.
    #[error("weights: {0}")]
    Weights(#[from] safetensors::SafeTensorError),
    /// The tokenizer file is malformed, or text could not be encoded.
    #[error("tokenizer: {0}")]
    Tokenizer(#[source] tokenizers::Error),
    /// A token id past the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// More tokens than the model's context holds.
    #[error("{tokens} tokens exceed the model's context of {context}; shorten the prompt")]
    ContextLength {
        /// Tokens requested, including cached ones.
        tokens: usize,
        /// The model's context.
        context: usize,
    },
    /// The prompt has no tokens, so there is nothing to predict from.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// A step was abandoned because the load it depended on did not deliver everything.
    #[error("the step was given up: the load beneath it left tokens out")]
    Interrupted,
    /// A cache problem.
    #[error(transparent)]
    Paged(#[from] PagedError),
}

/// A configuration that this engine does not run; nothing is approximated silently.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not JSON, or a required key is missing.
    #[error("not a Llama config.json: {0}")]
    Json(#[from] serde_json::Error),
    /// A key has a value that the engine has no code for.
    #[error("{key} = {value} is not supported; this engine runs {supported}")]
    Unsupported {
        /// The key of `config.json`.
        key: &'static str,
        /// Its value.
        value: String,
        /// The supported values.
        supported: &'static str,
    },
    /// Sizes that do not fit together.
    #[error("impossible sizes: {0}")]
    Shape(&'static str),
    /// Sizes that no KV cache can have.
    #[error(transparent)]
    Spec(#[from] kvasir_types::SpecError),
}

/// A request that the paged cache refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PagedError {
    /// The pool has no free page left.
    #[error(
        "the page pool is full: {pages_max} pages of {page_tokens} tokens; free a sequence or enlarge it"
    )]
    PoolFull {
        /// Pages the pool may hold.
        pages_max: usize,
        /// Tokens of a page.
        page_tokens: usize,
    },
    /// A token past the end of the sequence was addressed.
    #[error("token {token} is outside the {len} tokens of the sequence")]
    OutOfRange {
        /// The first missing token.
        token: usize,
        /// Tokens there are.
        len: usize,
    },
    /// A load wrote into pages that had been released in the meantime; the writes were dropped.
    #[error("{rows} rows were dropped: their pages were reassigned while the load ran; recompute them")]
    Stale {
        /// Rows of (layer, plane, head) dropped.
        rows: usize,
    },
    /// Rows could not be copied to a device or from there.
    #[error("the device that holds the pages: {reason}")]
    Device {
        /// Why, as a sentence.
        reason: String,
    },
    /// Cached values of a type the pool has no storage for.
    #[error("a pool stores bf16, f16 or f32, not {dtype:?}")]
    Dtype {
        /// The type.
        dtype: KvDtype,
    },
    /// Pages of this many tokens are not possible.
    #[error("pages hold 1 to 1024 tokens, not {page_tokens}")]
    PageTokens {
        /// Tokens requested.
        page_tokens: usize,
    },
}
