//! Errors of the codec, grouped by what to do about them.

use kvasir_container::{ContainerError, ProfileHeadError};
use kvasir_types::{Level, ModelId, ProfileHash, SpecError};

use crate::rans::PieceError;

/// A profile that cannot be read, or does not belong to the model at hand.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Not a profile at all.
    #[error("this is not a Kvasir profile: it does not start with the magic bytes `KVSRPROF`")]
    Magic,
    /// Written by another version of the format.
    #[error("the profile has format version {found}, this build reads {expected}: retrain or upgrade")]
    Version {
        /// Version in the file.
        found: u16,
        /// Version of this build.
        expected: u16,
    },
    /// The file ends early.
    #[error("the profile ends in its {field}: fetch it again")]
    Truncated {
        /// The field being read.
        field: &'static str,
    },
    /// A field has a value no writer produces.
    #[error("the profile's {field} is invalid ({found}): the file is damaged or was not made by Kvasir")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The value found.
        found: String,
    },
    /// Bytes after the end.
    #[error("{extra_bytes} bytes follow the end of the profile: fetch it again")]
    Trailing {
        /// How many.
        extra_bytes: u64,
    },
    /// The checksum does not match.
    #[error("the profile is damaged (its checksum does not match): fetch it again")]
    Checksum,
    /// Of another model.
    #[error(
        "the profile was trained for model {profile}, this is model {model}: use a profile of this model"
    )]
    ForeignModel {
        /// The profile's.
        profile: ModelId,
        /// The model at hand.
        model: ModelId,
    },
    /// It takes more than its user allows to a profile that somebody else made.
    #[error(
        "the profile takes more than {most} {what}, the most that one made by others may take: train a smaller one"
    )]
    TooMuch {
        /// What it takes.
        what: &'static str,
        /// Most of it.
        most: u64,
    },
    /// The model spec itself is impossible.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// A chunk that cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// No tokens, or more than a chunk may have.
    #[error(
        "a chunk must have 1 to {max} tokens, but this one has {tokens}; split the context into chunks first"
    )]
    Tokens {
        /// Tokens given.
        tokens: usize,
        /// Most there may be.
        max: usize,
    },
    /// `kl_beneath` is not a finite number ≥ 0.
    #[error("kl_beneath must be a finite number of nats, 0 or more")]
    KlBeneath,
    /// A value is too large for the type of the model's cache, or would be rounded to it although an exact
    /// level promises every bit.
    #[error(
        "{value} does not fit the model's KV type; set `kv_dtype` of the model spec to the type that the engine caches"
    )]
    Value {
        /// The value.
        value: String,
    },
    /// A piece could not be coded.
    #[error("a piece could not be coded: {0}")]
    Piece(#[from] PieceError),
    /// An encoder on a device failed for a reason that is not the chunk's.
    #[error("the device could not encode: {cause}")]
    Device {
        /// The device's words.
        cause: String,
    },
    /// The object could not be assembled.
    #[error("the object could not be assembled: {0}")]
    Container(#[from] ContainerError),
}

/// The object cannot be decoded as requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The object names another profile.
    #[error("the object was encoded with profile {object}, this decoder has {decoder}: load that profile")]
    ForeignProfile {
        /// Named in the header.
        object: ProfileHash,
        /// Of the decoder.
        decoder: ProfileHash,
    },
    /// The object belongs to another model.
    #[error(
        "the object is of model {object}, this decoder is for {decoder}: use a profile of the object's model"
    )]
    ForeignModel {
        /// Named in the header.
        object: ModelId,
        /// Of the decoder.
        decoder: ModelId,
    },
    /// The level does not exist.
    #[error("level {level} does not exist: the object has levels 0 to {top}; choose one of them")]
    NoSuchLevel {
        /// Asked for.
        level: Level,
        /// The finest level.
        top: Level,
    },
    /// The token range is outside the chunk.
    #[error("tokens {start}..{end} are outside a chunk of {tokens} tokens; choose a range within it")]
    NoSuchTokens {
        /// First requested token.
        start: usize,
        /// One past the last.
        end: usize,
        /// Tokens of the chunk.
        tokens: usize,
    },
    /// The prefix is too short for the level.
    #[error(
        "level {level} of these tokens needs the first {needed} bytes, but only {found} are present; fetch more or request a lower level"
    )]
    Short {
        /// The requested level.
        level: Level,
        /// Bytes of the object needed.
        needed: u64,
        /// Bytes given.
        found: u64,
    },
    /// The object's sections do not match its profile.
    #[error("the object's sections do not match its profile ({what}): fetch it again, or upgrade this build")]
    Sections {
        /// The difference.
        what: &'static str,
    },
    /// An exact piece is malformed.
    #[error("the exact values of scope {scope}, span {span} are malformed: fetch the object again")]
    Exact {
        /// Scope.
        scope: usize,
        /// Span.
        span: usize,
    },
    /// A piece fails to decode in spite of its checksum.
    #[error("section {section}, span {span} does not decode ({source}): fetch the object again")]
    Piece {
        /// Index of the section.
        section: usize,
        /// Span.
        span: usize,
        /// Why.
        source: PieceError,
    },
    /// A decoder on a device failed for a reason that is not the object's.
    #[error("the device could not decode: {cause}")]
    Device {
        /// The device's words.
        cause: String,
    },
    /// The container is invalid, for example because of a failed checksum.
    #[error(transparent)]
    Container(#[from] ContainerError),
}

impl From<ProfileHeadError> for ProfileError {
    fn from(error: ProfileHeadError) -> Self {
        match error {
            ProfileHeadError::Magic => Self::Magic,
            ProfileHeadError::Version { found } => Self::Version { found, expected: crate::profile::VERSION },
            ProfileHeadError::Truncated { field } => Self::Truncated { field },
            ProfileHeadError::Invalid { field, found } => Self::Invalid { field, found },
            other => Self::Invalid { field: "head", found: other.to_string() },
        }
    }
}
