//! The response to a client, in OpenAI's shape with an additional `kvasir` object.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::text::Detokenizer;
use crate::serving::{PrefixUse, Summary, TtftBreakdown};

/// A completion, or a part of one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompletionResponse {
    /// `cmpl-…`.
    pub id: String,
    /// `text_completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model.
    pub model: String,
    /// One, or none in the event with usage.
    pub choices: Vec<Choice>,
    /// Token counts; not in pieces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Where the KV came from and where the time went; in the last part and in the usage event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvasir: Option<KvasirReport>,
}

/// A text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The text, or a part of it.
    pub text: String,
    /// 0.
    pub index: u32,
    /// Not served.
    pub logprobs: Option<()>,
    /// `length` or `stop`; none in pieces before the last.
    pub finish_reason: Option<&'static str>,
}

/// Token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: usize,
    /// Of the answer.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// Which part of the prompt was not computed.
    pub prompt_tokens_details: PromptDetails,
}

/// OpenAI's object for the number of cached tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PromptDetails {
    /// Prompt tokens whose KV came from memory or from Kvasir.
    pub cached_tokens: usize,
}

/// Where the prompt's KV came from, and where the time to the first token went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KvasirReport {
    /// Time.
    pub ttft: TtftBreakdown,
    /// Tokens and bytes.
    pub prefix: PrefixUse,
    /// Digest of the prompt's KV (whole pages), if the request asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_digest: Option<String>,
}

impl From<&Summary> for KvasirReport {
    fn from(summary: &Summary) -> Self {
        let kv_digest = summary.kv_digest.map(|digest| digest.to_hex().to_string());
        Self { ttft: summary.ttft, prefix: summary.prefix.clone(), kv_digest }
    }
}

/// The fields that all responses to a request share.
#[derive(Debug)]
pub(super) struct Reply {
    id: String,
    created: u64,
    model: String,
    prompt_tokens: usize,
}

impl Reply {
    pub(super) fn new(model: &str, prompt_tokens: usize) -> Self {
        // A clock before 1970 must not fail the request.
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let id = format!("cmpl-{}", uuid::Uuid::new_v4().simple());
        Self { id, created, model: model.to_owned(), prompt_tokens }
    }

    fn response(&self, choice: Option<Choice>) -> CompletionResponse {
        CompletionResponse {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model.clone(),
            choices: choice.into_iter().collect(),
            usage: None,
            kvasir: None,
        }
    }

    /// A piece of the text.
    pub(super) fn piece(&self, text: String) -> CompletionResponse {
        self.response(Some(Choice { text, index: 0, logprobs: None, finish_reason: None }))
    }

    /// The last piece, with the report.
    pub(super) fn last(&self, text: String, decoder: &Detokenizer, summary: &Summary) -> CompletionResponse {
        let finish_reason = Some(if decoder.stopped() { "stop" } else { "length" });
        let mut response = self.response(Some(Choice { text, index: 0, logprobs: None, finish_reason }));
        response.kvasir = Some(summary.into());
        response
    }

    /// The usage event after the text.
    pub(super) fn usage(&self, decoder: &Detokenizer, summary: &Summary) -> CompletionResponse {
        let mut response = self.response(None);
        response.usage = Some(self.count(decoder, summary));
        response.kvasir = Some(summary.into());
        response
    }

    /// The complete response.
    pub(super) fn whole(&self, text: String, decoder: &Detokenizer, summary: &Summary) -> CompletionResponse {
        let mut response = self.last(text, decoder, summary);
        response.usage = Some(self.count(decoder, summary));
        response
    }

    fn count(&self, decoder: &Detokenizer, summary: &Summary) -> Usage {
        let cached =
            PromptDetails { cached_tokens: summary.prefix.memory_tokens + summary.prefix.loaded_tokens };
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: decoder.tokens(),
            total_tokens: self.prompt_tokens + decoder.tokens(),
            prompt_tokens_details: cached,
        }
    }
}
