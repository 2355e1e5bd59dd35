//! What can go wrong, by what the caller does about it.

use kvasir_api::ErrorCode;
use kvasir_container::ContainerError;
use kvasir_types::{Level, ModelId, ObjectDigest, ProfileHash, SeqHash, SpecError};
use uuid::Uuid;

use crate::seal::SealError;

/// A failed operation. [`code`](Self::code) is what the wire says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The object store failed or cannot be reached.
    #[error("{operation}: {source}")]
    Store {
        /// What was being done.
        operation: &'static str,
        /// The store's words.
        source: object_store::Error,
    },
    /// The replica's own disk failed.
    #[error("spooling an upload: {0}")]
    Spool(#[source] std::io::Error),
    /// The caller's body broke off.
    #[error("the body broke off after {bytes} bytes: {reason}")]
    Body {
        /// Bytes that had arrived.
        bytes: u64,
        /// Why.
        reason: String,
    },
    /// A body over its limit.
    #[error("the body is larger than the limit of {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// The tenant has stored as much as it may.
    #[error(
        "the tenant has {used} of the {max} that its {limit} allows; remove chunks and wait for the collector, or ask for more"
    )]
    Full {
        /// As in the tenants file.
        limit: &'static str,
        /// How much that is.
        max: u64,
        /// How much is in use.
        used: u64,
    },
    /// The model was never registered.
    #[error("model {model_id} is not registered; POST its spec to /v1/models first")]
    UnknownModel {
        /// The model.
        model_id: ModelId,
    },
    /// The profile is not stored.
    #[error("profile {profile_hash} of model {model_id} is not stored; PUT its bytes first")]
    UnknownProfile {
        /// The model.
        model_id: ModelId,
        /// The profile.
        profile_hash: ProfileHash,
    },
    /// The chunk, or this object of it, is not stored.
    #[error("chunk {seq_hash} is not stored here{}; look the context up again", object_note(object_digest))]
    UnknownChunk {
        /// The chunk.
        seq_hash: SeqHash,
        /// The object, where one was named.
        object_digest: Option<ObjectDigest>,
    },
    /// The upload is not there: never sent, committed, or collected.
    #[error("upload {upload_id} is not there: PUT its bytes to the ticket's URL before the commit, once")]
    UnknownUpload {
        /// The upload.
        upload_id: Uuid,
    },
    /// What was sent directly is not what was announced.
    #[error("the upload's {field} is {found}, {expected} was announced; nothing was stored")]
    UploadMismatch {
        /// What differs.
        field: &'static str,
        /// What was sent.
        found: String,
        /// What was announced.
        expected: String,
    },
    /// No presigned URLs here.
    #[error("{reason}; read and write through the service")]
    DirectUnavailable {
        /// Why.
        reason: &'static str,
    },
    /// The context, or this version of it, is not there.
    #[error("context {context_id} is not there{}", version.map(|v| format!(" in version {v}")).unwrap_or_default())]
    UnknownContext {
        /// The context.
        context_id: Uuid,
        /// The version, where one was named.
        version: Option<u64>,
    },
    /// A context that cannot be.
    #[error("{problem}")]
    InvalidContext {
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Another writer was first.
    #[error("another request wrote version {version} of context {context_id}; read it and change it again")]
    ContextConflict {
        /// The context.
        context_id: Uuid,
        /// The version that is taken.
        version: u64,
    },
    /// The object has no such level.
    #[error("the object has levels 0 to {}, not {level}", levels.saturating_sub(1))]
    UnknownLevel {
        /// What was asked for.
        level: Level,
        /// Levels there are.
        levels: usize,
    },
    /// A range that lies outside the object.
    #[error("the range lies outside the object's {object_bytes} bytes")]
    Range {
        /// Size of the object.
        object_bytes: u64,
    },
    /// An impossible spec.
    #[error("{0}")]
    InvalidSpec(#[from] SpecError),
    /// The body is no sound chunk object.
    #[error("{0}; encode the chunk again and send all of it")]
    InvalidChunk(#[from] ContainerError),
    /// A sound object, but not of the chunk or model that the path names.
    #[error("the object says {field} {found}, the path says {expected}")]
    ChunkMismatch {
        /// What differs.
        field: &'static str,
        /// In the object.
        found: String,
        /// In the path.
        expected: String,
    },
    /// A profile's bytes do not hash to its name.
    #[error("the body hashes to {found}, the path names profile {expected}")]
    ProfileMismatch {
        /// Hash of the body.
        found: ProfileHash,
        /// In the path.
        expected: ProfileHash,
    },
    /// Stored bytes that are not what was stored.
    #[error("object {object_digest} of chunk {seq_hash} is corrupt in the store: {reason}")]
    Corrupt {
        /// The chunk.
        seq_hash: SeqHash,
        /// The object.
        object_digest: ObjectDigest,
        /// What was found.
        reason: String,
    },
    /// An object is sealed under a key that is not there.
    #[error("{reason}")]
    KeyLost {
        /// Which key, and whose.
        reason: String,
    },
    /// Something of ours in the store cannot be read.
    #[error("{what} in the store cannot be read: {reason}")]
    Damaged {
        /// What.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// A task of ours died: a bug.
    #[error("an internal task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

fn object_note(object: &Option<ObjectDigest>) -> String {
    object.map(|digest| format!(" as object {digest}")).unwrap_or_default()
}

impl StorageError {
    /// Names the operation that the store failed in; for `map_err`.
    pub(crate) fn store(operation: &'static str) -> impl Fn(object_store::Error) -> Self {
        move |source| match SealError::of(&source) {
            Some(error) if error.is_lost_key() => Self::KeyLost { reason: error.to_string() },
            Some(error @ (SealError::Plain { .. } | SealError::AlteredRecord { .. })) => {
                Self::Damaged { what: "a record of a sealed tenant", reason: error.to_string() }
            }
            _ => Self::Store { operation, source },
        }
    }

    /// Whether only this object cannot be read, so that work on many goes on without it.
    pub(crate) fn is_of_one_object(&self) -> bool {
        matches!(self, Self::UnknownChunk { .. } | Self::Corrupt { .. } | Self::KeyLost { .. })
    }

    /// A failure of this replica that is to be taken like one of the store: it may be tried again.
    pub(crate) fn own(operation: &'static str, reason: &str) -> Self {
        let source = object_store::Error::Generic { store: "kvasir", source: reason.into() };
        Self::Store { operation, source }
    }

    /// The same failure for another of those who waited for one request.
    pub(crate) fn shared(&self) -> Self {
        match self {
            Self::UnknownChunk { seq_hash, object_digest } => {
                Self::UnknownChunk { seq_hash: *seq_hash, object_digest: *object_digest }
            }
            Self::Corrupt { seq_hash, object_digest, reason } => {
                Self::Corrupt { seq_hash: *seq_hash, object_digest: *object_digest, reason: reason.clone() }
            }
            Self::KeyLost { reason } => Self::KeyLost { reason: reason.clone() },
            other => Self::own("reading an object", &other.to_string()),
        }
    }

    /// The code on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Store { .. } | Self::Spool(_) => ErrorCode::StoreUnavailable,
            Self::Body { .. } => ErrorCode::BadRequest,
            Self::TooLarge { .. } => ErrorCode::BodyTooLarge,
            Self::Full { .. } => ErrorCode::StorageQuota,
            Self::UnknownModel { .. } => ErrorCode::UnknownModel,
            Self::UnknownProfile { .. } => ErrorCode::UnknownProfile,
            Self::UnknownChunk { .. } => ErrorCode::UnknownChunk,
            Self::UnknownUpload { .. } => ErrorCode::UnknownUpload,
            Self::UploadMismatch { .. } => ErrorCode::UploadMismatch,
            Self::DirectUnavailable { .. } => ErrorCode::DirectUnavailable,
            Self::UnknownContext { .. } => ErrorCode::UnknownContext,
            Self::InvalidContext { .. } => ErrorCode::InvalidContext,
            Self::ContextConflict { .. } => ErrorCode::ContextConflict,
            Self::UnknownLevel { .. } => ErrorCode::UnknownLevel,
            Self::Range { .. } => ErrorCode::RangeNotSatisfiable,
            Self::InvalidSpec(_) => ErrorCode::InvalidModelSpec,
            Self::InvalidChunk(_) => ErrorCode::InvalidChunk,
            Self::ChunkMismatch { .. } => ErrorCode::ChunkMismatch,
            Self::ProfileMismatch { .. } => ErrorCode::InvalidProfile,
            Self::Corrupt { .. } => ErrorCode::CorruptChunk,
            Self::KeyLost { .. } => ErrorCode::KeyLost,
            Self::Damaged { .. } | Self::Task(_) => ErrorCode::Internal,
        }
    }
}
