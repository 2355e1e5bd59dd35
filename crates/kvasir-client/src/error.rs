//! What can go wrong between here and the service, by what the caller can do about it.

use std::time::Duration;

use kvasir_api::ErrorCode;
use kvasir_codec::EncodeError;
use kvasir_types::SpecError;

/// An answer that is an error (RFC 9457). Codes this build does not know stay readable by their text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the service answered {status} {code}: {detail}")]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Stable text of the code; `http_{status}` when the answer was no problem document.
    pub code: String,
    /// The code, when this build knows it.
    pub known: Option<ErrorCode>,
    /// What happened and what to do, from the service.
    pub detail: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// How long the service asks to be left alone.
    pub retry_after: Option<Duration>,
}

/// A failed request, store or load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service answered with an error.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// No answer, or one that broke off.
    #[error("no complete answer from the service: {}", chain(.0))]
    Transport(#[source] reqwest::Error),
    /// An answer that this version cannot make sense of.
    #[error("the service's answer makes no sense: {what}")]
    Protocol {
        /// What is wrong with it.
        what: String,
    },
    /// A setting that cannot work.
    #[error("{what}")]
    Config {
        /// What is wrong and what would be right.
        what: String,
    },
    /// The model spec is impossible.
    #[error("the model spec is not possible: {0}")]
    Spec(#[from] SpecError),
    /// A chunk could not be encoded.
    #[error("tokens {first_token}.. could not be encoded: {source}")]
    Encode {
        /// First token of the chunk.
        first_token: u64,
        /// Why.
        source: EncodeError,
    },
    /// A profile that is damaged or of another model.
    #[error("a profile cannot be used: {0}")]
    Profile(#[from] kvasir_codec::ProfileError),
    /// No profile could be made of the cache that was to be saved.
    #[error(transparent)]
    Starter(#[from] kvasir_codec::StarterError),
    /// A blocking task was cancelled or panicked: the runtime is shutting down, or there is a bug.
    #[error("a blocking task did not finish: {0}")]
    Task(#[from] tokio::task::JoinError),
}

fn chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl Error {
    /// The stable code, when the service sent one that this build knows.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Api(error) => error.known,
            _ => None,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Api(error) => error.retryable,
            Self::Transport(error) => !error.is_builder(),
            _ => false,
        }
    }

    /// What the caller can do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Api(error) => error.known.map_or(UNKNOWN_REMEDY, remedy),
            Self::Transport(_) => "check that the service runs at this address and can be reached from here",
            Self::Protocol { .. } => "check that client and service are of compatible versions",
            Self::Profile(_) => "publish a profile that was trained for this model",
            Self::Config { .. } | Self::Spec(_) => "correct the setting",
            Self::Encode { .. } => "check the KV cache and the profile; the context is simply not stored",
            Self::Starter(_) => {
                "give a profile, or save a longer context first; this one is simply not stored"
            }
            Self::Task(_) => "try again; if it happens outside a shutdown, report it",
        }
    }

    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol { what: what.into() }
    }
}

const UNKNOWN_REMEDY: &str = "read the detail; upgrade the client if the code is new";

fn remedy(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::UnknownModel => "register the model first",
        ErrorCode::UnknownProfile => "upload the profile first",
        ErrorCode::UnknownChunk | ErrorCode::CorruptChunk | ErrorCode::KeyLost => {
            "treat it as a miss: compute the tokens and store them anew"
        }
        ErrorCode::Throttled | ErrorCode::StoreUnavailable | ErrorCode::Draining => "try again later",
        ErrorCode::BodyTooLarge => "use shorter chunks",
        ErrorCode::ChunkMismatch | ErrorCode::InvalidChunk => {
            "encode the chunk again and upload it once more"
        }
        ErrorCode::Internal => "try again; if it persists, give the request id to the operator",
        _ => UNKNOWN_REMEDY,
    }
}
