//! Why a measurement could not be made.

use kvasir_codec::{DecodeError, EncodeError, ProfileError, StarterError};
use kvasir_engine::{EngineError, PagedError};
use kvasir_train::TrainError;

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A text is too short.
    #[error("{what} has {found} tokens, but {needed} are needed; give a longer text or smaller windows")]
    TooShort {
        /// Which text.
        what: String,
        /// Tokens needed.
        needed: usize,
        /// Tokens found.
        found: usize,
    },
    /// The windows do not fit the model.
    #[error("{prefix} + {suffix} tokens are not within the model's context of {context}")]
    Window {
        /// Tokens that go through the codecs.
        prefix: usize,
        /// Tokens that judge them.
        suffix: usize,
        /// Tokens the model takes.
        context: usize,
    },
    /// Generated records do not fill windows of these sizes.
    #[error(
        "{prefix} + {suffix} tokens cannot be records: a prefix takes at most {lines} lines, and a suffix at least one \
         question and at most one a line"
    )]
    Records {
        /// Tokens of lines.
        prefix: usize,
        /// Tokens of questions.
        suffix: usize,
        /// The most lines.
        lines: usize,
    },
    /// A codec cannot read its own output: a bug.
    #[error("codec {codec} cannot read its own bytes: {what}")]
    OwnBytes {
        /// The codec.
        codec: &'static str,
        /// The failure.
        what: &'static str,
    },
    /// The model is of a kind that a baseline is not made for.
    #[error("{what} is not covered by the baselines")]
    Unsupported {
        /// The unsupported case.
        what: &'static str,
    },
    /// The profile is not the model's.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Training a profile failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A cache makes no first profile.
    #[error(transparent)]
    Starter(#[from] StarterError),
    /// Encoding failed.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// Decoding failed.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// An object's head does not parse: a bug of the encoder.
    #[error("the encoder's own object does not parse: {0}")]
    Head(#[from] kvasir_container::ContainerError),
    /// The entropy stage failed.
    #[error(transparent)]
    Piece(#[from] kvasir_codec::rans::PieceError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The cache's pages ran out.
    #[error(transparent)]
    Paged(#[from] PagedError),
    /// Compression or decompression of a byte string failed.
    #[error("a compressor failed: {0}")]
    Io(#[from] std::io::Error),
    /// An eigenvalue decomposition did not converge.
    #[error("the principal components could not be computed")]
    Eigen,
}
