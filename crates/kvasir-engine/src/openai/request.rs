//! A client's request, restricted to what the engine supports.

use serde::Deserialize;

use super::error::ApiError;
use crate::{
    limits::{ANSWER_TOKENS_MAX, STOP_BYTES_MAX, STOPS_MAX},
    model::{Model, Sampling},
    serving::Request,
};

/// OpenAI's default.
const MAX_TOKENS_DEFAULT: usize = 16;

/// The body of `POST /v1/completions`. Fields that clients send with their neutral value are accepted; unknown ones are
/// ignored, as OpenAI does.
#[derive(Debug, Clone, Deserialize)]
pub struct CompletionRequest {
    /// Name of the model; the served model if absent.
    pub model: Option<String>,
    /// The prompt.
    pub prompt: Prompt,
    /// Most tokens of the answer.
    pub max_tokens: Option<usize>,
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// Only 1.
    pub top_p: Option<f32>,
    /// Tokens to sample from; all if absent or −1.
    pub top_k: Option<i64>,
    /// Seed of the sampling.
    pub seed: Option<u64>,
    /// Only 1.
    pub n: Option<u32>,
    /// Only 1.
    pub best_of: Option<u32>,
    /// Whether to send the answer as events.
    #[serde(default)]
    pub stream: bool,
    /// Which additional events to send.
    pub stream_options: Option<StreamOptions>,
    /// Ends the answer before any of these.
    pub stop: Option<Stop>,
    /// Only false.
    #[serde(default)]
    pub echo: bool,
    /// Not served.
    pub logprobs: Option<u32>,
    /// Not served.
    pub suffix: Option<String>,
    /// Only 0.
    pub presence_penalty: Option<f32>,
    /// Only 0.
    pub frequency_penalty: Option<f32>,
    /// Extensions.
    #[serde(default)]
    pub kvasir: Extensions,
}

/// A prompt; of a list only one is served at a time.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// A list of texts.
    Texts(Vec<String>),
    /// A list of token ids.
    TokenLists(Vec<Vec<u32>>),
}

/// One stop sequence or several.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Stop {
    /// One.
    One(String),
    /// At most 4.
    Many(Vec<String>),
}

/// Additional events of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct StreamOptions {
    /// A last event with usage and the TTFT breakdown.
    #[serde(default)]
    pub include_usage: bool,
}

/// Kvasir's additions to OpenAI's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extensions {
    /// Answer the BLAKE3 of the prompt's KV: equal caches, equal digests.
    #[serde(default)]
    pub kv_digest: bool,
}

/// A request that the engine can run.
#[derive(Debug)]
pub(super) struct Narrowed {
    pub(super) request: Request,
    pub(super) stops: Vec<String>,
    pub(super) digest: bool,
}

impl CompletionRequest {
    /// Parses a body that requests the model `served`.
    pub(super) fn parse(body: &[u8], served: &str) -> Result<Self, ApiError> {
        let request: Self = serde_json::from_slice(body).map_err(|error| ApiError::json(&error))?;
        match &request.model {
            Some(asked) if asked != served => Err(ApiError::model(asked, served)),
            _ => Ok(request),
        }
    }

    pub(super) fn wants_usage(&self) -> bool {
        self.stream_options.is_some_and(|options| options.include_usage)
    }

    pub(super) fn narrow(&self, model: &Model) -> Result<Narrowed, ApiError> {
        self.refuse()?;
        let stops = match self.stop.clone() {
            None => Vec::new(),
            Some(Stop::One(stop)) => vec![stop],
            Some(Stop::Many(stops)) => stops,
        };
        if stops.len() > STOPS_MAX || stops.iter().any(|stop| stop.is_empty() || stop.len() > STOP_BYTES_MAX)
        {
            let message = format!("at most {STOPS_MAX} stop sequences of 1 to {STOP_BYTES_MAX} bytes");
            return Err(ApiError::param("stop", message));
        }
        let count = self.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT);
        if !(1..=ANSWER_TOKENS_MAX).contains(&count) {
            return Err(ApiError::param("max_tokens", format!("1 to {ANSWER_TOKENS_MAX} tokens")));
        }
        let request = Request { prompt: self.tokens(model)?, count, sampling: self.sampling(model)? };
        Ok(Narrowed { request, stops, digest: self.kvasir.kv_digest })
    }

    /// Rejects every parameter that the engine does not support; none is silently ignored.
    fn refuse(&self) -> Result<(), ApiError> {
        let asked = [
            ("n", self.n.is_some_and(|n| n != 1)),
            ("best_of", self.best_of.is_some_and(|n| n != 1)),
            ("top_p", self.top_p.is_some_and(|p| p != 1.0)),
            ("echo", self.echo),
            ("logprobs", self.logprobs.is_some()),
            ("suffix", self.suffix.is_some()),
            ("presence_penalty", self.presence_penalty.is_some_and(|p| p != 0.0)),
            ("frequency_penalty", self.frequency_penalty.is_some_and(|p| p != 0.0)),
        ];
        match asked.iter().find(|(_, asked)| *asked) {
            Some((param, _)) => {
                Err(ApiError::param(param, format!("this engine does not do {param}; leave it out")))
            }
            None => Ok(()),
        }
    }

    fn tokens(&self, model: &Model) -> Result<Vec<u32>, ApiError> {
        let text = |text: &str| Ok(model.tokenizer().encode(text)?);
        match &self.prompt {
            Prompt::Text(prompt) => text(prompt),
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
            Prompt::Texts(texts) if texts.len() == 1 => text(&texts[0]),
            Prompt::TokenLists(lists) if lists.len() == 1 => Ok(lists[0].clone()),
            Prompt::Texts(_) | Prompt::TokenLists(_) => Err(ApiError::param(
                "prompt",
                "only one prompt per request is supported; send several requests, the engine batches them",
            )),
        }
    }

    fn sampling(&self, model: &Model) -> Result<Sampling, ApiError> {
        let temperature = self.temperature.unwrap_or(1.0);
        if !(0.0..=2.0).contains(&temperature) {
            return Err(ApiError::param("temperature", "0 to 2"));
        }
        let top_k = match self.top_k {
            None | Some(-1) => model.config().vocab,
            Some(top_k) => usize::try_from(top_k)
                .ok()
                .filter(|top_k| *top_k > 0)
                .ok_or_else(|| ApiError::param("top_k", "at least 1, or -1 for all"))?,
        };
        if temperature == 0.0 {
            return Ok(Sampling::Greedy);
        }
        let seed = self.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
        Ok(Sampling::TopK { temperature, top_k, seed })
    }
}
