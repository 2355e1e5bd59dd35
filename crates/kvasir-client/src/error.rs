//! Errors of the client, classified by what the caller can do about them.

use std::time::Duration;

use kvasir_api::ErrorCode;
use kvasir_codec::EncodeError;
use kvasir_types::SpecError;

/// An error response (RFC 9457). Codes that this build does not know remain readable as text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the service answered {status} {code}: {detail}")]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Stable text of the code; `http_{status}` if the response was no problem document.
    pub code: String,
    /// The code, if this build knows it.
    pub known: Option<ErrorCode>,
    /// The service's description: what happened and what to do.
    pub detail: String,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// How long the service asks the client to wait.
    pub retry_after: Option<Duration>,
}

/// A failed request, store or load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service answered with an error.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// No response, or an incomplete one.
    #[error("no complete response from the service: {}", chain(.0))]
    Transport(#[source] reqwest::Error),
    /// A response whose body came slower than any that is waited for.
    #[error("the service's response came too slowly: {what}")]
    Slow {
        /// What came, and how slowly.
        what: String,
    },
    /// A response that this version cannot interpret.
    #[error("the service's response is not valid: {what}")]
    Protocol {
        /// What is invalid.
        what: String,
    },
    /// An invalid setting.
    #[error("{what}")]
    Config {
        /// What is wrong, and which values are valid.
        what: String,
    },
    /// The model spec is invalid.
    #[error("the model spec is invalid: {0}")]
    Spec(#[from] SpecError),
    /// A chunk could not be encoded.
    #[error("tokens {first_token}.. could not be encoded: {source}")]
    Encode {
        /// First token of the chunk.
        first_token: u64,
        /// The cause.
        source: EncodeError,
    },
    /// A profile that is damaged or belongs to another model.
    #[error("a profile cannot be used: {0}")]
    Profile(#[from] kvasir_codec::ProfileError),
    /// No profile could be made from the cache to save.
    #[error(transparent)]
    Starter(#[from] kvasir_codec::StarterError),
    /// A page that cannot be stored.
    #[error("a page cannot be stored: {0}")]
    Page(#[from] crate::objects::PageError),
    /// Pages whose rows could not be read for a save.
    #[error("the pages could not be read: {what}")]
    UnreadablePages {
        /// The reason.
        what: String,
    },
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
    /// The stable code, if the service sent one that this build knows.
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
            Self::Slow { .. } => true,
            _ => false,
        }
    }

    /// What the caller can do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Api(error) => error.known.map_or(UNKNOWN_REMEDY, remedy),
            Self::Transport(_) => "check that the service runs at this address and is reachable from here",
            Self::Slow { .. } => "try again over a better connection",
            Self::Protocol { .. } => "check that client and service have compatible versions",
            Self::Profile(_) => "give a profile that was trained for this model",
            Self::Config { .. } | Self::Spec(_) => "correct the setting",
            Self::Encode { .. } => "check the KV cache and the profile; this context was not stored",
            Self::Starter(_) => "give a profile, or save a longer context first; this one was not stored",
            Self::Page(_) => "give pages that match their layout; this one was not stored",
            Self::UnreadablePages { .. } => {
                "keep pages until the save has ended, and check their device; chunks saved before are stored"
            }
            Self::Task(_) => "try again; if it happens outside a shutdown, report it",
        }
    }

    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol { what: what.into() }
    }
}

const UNKNOWN_REMEDY: &str = "read the detail; upgrade the client if the code is new";

/// The remedy for a caller of the client, in Rust, in Python or at the command line. `ErrorCode::remedy`
/// addresses callers of the REST API.
fn remedy(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Unauthorized => "give a token that this service accepts and that has not expired",
        ErrorCode::Forbidden => "use a token with the role that the message names",
        ErrorCode::UnknownModel => "register the model first",
        ErrorCode::UnknownProfile => {
            "give the profile itself, which stores it, or the id of one that is stored"
        }
        ErrorCode::UnknownChunk | ErrorCode::CorruptChunk | ErrorCode::KeyLost => {
            "treat it as a miss: compute the tokens and store them again"
        }
        ErrorCode::UnknownContext => "list the contexts; it may have expired or been deleted",
        ErrorCode::ContextConflict => "read the newest version and update that",
        ErrorCode::UnknownJob => "start it again; a service keeps only its last jobs",
        ErrorCode::JobRunning => "wait until it has ended",
        ErrorCode::UnknownLevel => "use a level that the profile has",
        ErrorCode::BadRequest | ErrorCode::InvalidContext | ErrorCode::InvalidModelSpec => {
            "correct what the message names"
        }
        ErrorCode::StorageQuota => "remove chunks, or ask for a larger quota; the message names the limit",
        ErrorCode::Throttled | ErrorCode::StoreUnavailable | ErrorCode::Draining => "try again later",
        ErrorCode::BodyTooSlow => "try again over a better connection",
        ErrorCode::BodyTooLarge => "use shorter chunks",
        ErrorCode::HeadersTooLarge | ErrorCode::UriTooLong => "use a shorter token, fewer or shorter labels",
        ErrorCode::ChunkMismatch
        | ErrorCode::InvalidChunk
        | ErrorCode::UnknownUpload
        | ErrorCode::UploadMismatch => "save it again; nothing was stored",
        ErrorCode::InvalidProfile => "give a profile that was trained for this model",
        ErrorCode::UnknownRoute | ErrorCode::MethodNotAllowed => {
            "check that a service of a compatible version runs at this address"
        }
        ErrorCode::Internal => "try again; if it persists, tell the operator when it happened",
        _ => UNKNOWN_REMEDY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Callers of the client do not write requests, headers or paths, so no remedy may mention them.
    #[test]
    fn remedies_do_not_speak_of_requests() {
        for &code in ErrorCode::ALL {
            let text = remedy(code);
            let words = ["PUT", "POST", "/v1/", "eader", "request", "Retry-After", "`detail`", "the path"];
            for word in words {
                assert!(!text.contains(word), "{}: {text}", code.as_str());
            }
        }
    }
}
