//! Errors, by operation and by what the caller does about them.

use std::fmt;

use kvasir_api::ErrorCode;
use kvasir_container::ContainerError;
use kvasir_store::StoreError;
use kvasir_types::{Level, ModelId, ObjectDigest, ObjectKey, ProfileHash, SeqHash, SpecError};
use uuid::Uuid;

/// A model, its spec or its profile is unknown or invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
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
    /// An invalid spec.
    #[error(transparent)]
    InvalidSpec(#[from] SpecError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A stored chunk cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The chunk, or this object of it, is not stored.
    #[error("chunk {seq_hash} is not stored here{}; look the context up again", object_note(object_digest))]
    Unknown {
        /// The chunk.
        seq_hash: SeqHash,
        /// The object, if one was named.
        object_digest: Option<ObjectDigest>,
    },
    /// The object does not have this level.
    #[error("the object has levels 0 to {}, not {level}; request one of them", levels.saturating_sub(1))]
    UnknownLevel {
        /// The requested level.
        level: Level,
        /// Number of levels.
        levels: usize,
    },
    /// A range outside the object.
    #[error("the range is outside the object's {object_bytes} bytes")]
    Range {
        /// Size of the object.
        object_bytes: u64,
    },
    /// The stored bytes are damaged.
    #[error("object {object_digest} of chunk {seq_hash} is corrupt in the store: {reason}")]
    Corrupt {
        /// The chunk.
        seq_hash: SeqHash,
        /// The object.
        object_digest: ObjectDigest,
        /// What was found.
        reason: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A body was not stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The replica's own disk failed.
    #[error("cannot spool the upload: {0}")]
    Spool(#[source] std::io::Error),
    /// The caller's body broke off.
    #[error("the body broke off after {bytes} bytes: {reason}")]
    Body {
        /// Bytes that had arrived.
        bytes: u64,
        /// The cause.
        reason: String,
    },
    /// A body over its limit.
    #[error("the body is larger than the limit of {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// The body is not a valid chunk object.
    #[error("{0}; encode the chunk again and send all of it")]
    InvalidChunk(#[from] ContainerError),
    /// A valid object, but not the named one.
    #[error(transparent)]
    ChunkMismatch(#[from] ChunkMismatch),
    /// The object was removed while it was being stored under the announced name.
    #[error(
        "object {object_digest} of chunk {seq_hash} was removed while it was being stored; send it again"
    )]
    Removed {
        /// The chunk.
        seq_hash: SeqHash,
        /// The object.
        object_digest: ObjectDigest,
    },
    /// A profile's bytes do not hash to its name.
    #[error("the body hashes to {found}, but the path names profile {expected}")]
    ProfileMismatch {
        /// Hash of the body.
        found: ProfileHash,
        /// In the path.
        expected: ProfileHash,
    },
    /// A part of an upload does not exist, or no longer does.
    #[error("part {number} of the upload does not exist; send it again")]
    UnknownPart {
        /// Its number.
        number: u16,
    },
    /// The model or the profile is unknown.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An opaque object was not stored or cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// No object is stored under the key.
    #[error("no object is stored under key {:?} in this namespace", key.as_str())]
    Unknown {
        /// The key.
        key: ObjectKey,
    },
    /// Other bytes are stored under the key, or are being stored now.
    #[error("key {:?} holds different bytes; objects are never overwritten: remove the object first, or use another key", key.as_str())]
    Exists {
        /// The key.
        key: ObjectKey,
    },
    /// The namespace cannot be read.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// It cannot be read.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// It cannot be stored.
    #[error(transparent)]
    Put(#[from] PutError),
}

/// A valid object, but not the one named by the request.
#[derive(Debug, thiserror::Error)]
#[error("the object has {field} {found}, but the request has {expected}")]
pub struct ChunkMismatch {
    /// The differing field.
    pub field: &'static str,
    /// Its value in the object.
    pub found: String,
    /// Its value in the request.
    pub expected: String,
}

/// A direct upload was not announced or not committed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UploadError {
    /// The upload does not exist: never sent, already committed, or collected.
    #[error("upload {upload_id} does not exist: PUT its bytes to the ticket's URL once, before the commit")]
    Unknown {
        /// The upload.
        upload_id: Uuid,
    },
    /// The bytes sent directly are not the announced ones.
    #[error("the upload's {field} is {found}, but {expected} was announced; nothing was stored")]
    Mismatch {
        /// The differing field.
        field: &'static str,
        /// Its value in the upload.
        found: String,
        /// The announced value.
        expected: String,
    },
    /// Direct uploads are not available, or not under this name.
    #[error(transparent)]
    Unavailable(#[from] DirectUnavailable),
    /// It cannot be stored.
    #[error(transparent)]
    Put(#[from] PutError),
}

/// Presigned URLs are not available.
#[derive(Debug, thiserror::Error)]
#[error("{reason}; read and write through the service")]
pub struct DirectUnavailable {
    /// The cause.
    pub reason: &'static str,
}

/// An object has no presigned URL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Presigned URLs are not available.
    #[error(transparent)]
    Unavailable(#[from] DirectUnavailable),
    /// The object does not exist.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
}

/// A named context cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// The context, or this version of it, does not exist.
    #[error("context {context_id} does not exist{}", version.map(|v| format!(" in version {v}")).unwrap_or_default())]
    Unknown {
        /// The context.
        context_id: Uuid,
        /// The version, if one was named.
        version: Option<u64>,
    },
    /// The context request is invalid.
    #[error("{problem}")]
    Invalid {
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Another writer was first.
    #[error(
        "another request wrote version {version} of context {context_id}; read it and repeat your change"
    )]
    Conflict {
        /// The context.
        context_id: Uuid,
        /// The version already taken.
        version: u64,
    },
    /// The model is unknown.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// One of its chunks does not exist.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
}

/// A tenant's storage was not reserved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// The tenant has reached its quota.
    #[error(
        "the tenant uses {used} of the {max} that {limit} allows; remove chunks and wait for the collector, or ask for a larger quota"
    )]
    Full {
        /// As in the tenants file.
        limit: &'static str,
        /// Value of the limit.
        max: u64,
        /// Amount in use.
        used: u64,
    },
    /// The store failed while the tenant's objects were counted.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn object_note(object: &Option<ObjectDigest>) -> String {
    object.map(|digest| format!(" as object {digest}")).unwrap_or_default()
}

/// Each failure's code on the wire: its own, or that of its cause.
macro_rules! codes {
    ($($error:ident { $($variant:ident => $code:ident),* $(; $($cause:ident),*)? })*) => {
        $(impl $error {
            /// The code on the wire.
            pub fn code(&self) -> ErrorCode {
                match self {
                    $(Self::$variant { .. } => ErrorCode::$code,)*
                    $($(Self::$cause(error) => error.code(),)*)?
                }
            }
        })*
    };
}

codes! {
    CatalogError {
        UnknownModel => UnknownModel, UnknownProfile => UnknownProfile, InvalidSpec => InvalidModelSpec; Store
    }
    ChunkError {
        Unknown => UnknownChunk, UnknownLevel => UnknownLevel, Range => RangeNotSatisfiable,
        Corrupt => CorruptChunk; Store
    }
    PutError {
        Spool => StoreUnavailable, Body => BadRequest, TooLarge => BodyTooLarge, InvalidChunk => InvalidChunk,
        ChunkMismatch => ChunkMismatch, Removed => ChunkRemoved, ProfileMismatch => InvalidProfile,
        UnknownPart => UnknownUpload; Catalog, Store
    }
    ObjectError { Unknown => UnknownObject, Exists => ObjectExists; Catalog, Chunk, Put }
    UploadError { Unknown => UnknownUpload, Mismatch => UploadMismatch, Unavailable => DirectUnavailable; Put }
    UrlError { Unavailable => DirectUnavailable; Chunk }
    ContextError {
        Unknown => UnknownContext, Invalid => InvalidContext, Conflict => ContextConflict; Catalog, Chunk
    }
    QuotaError { Full => StorageQuota; Store }
}

/// Conversions in two steps.
macro_rules! through {
    ($($from:ident => $by:ident => $to:ident;)*) => {
        $(impl From<$from> for $to {
            fn from(error: $from) -> Self {
                $by::from(error).into()
            }
        })*
    };
}

through! {
    StoreError => PutError => UploadError;
    CatalogError => PutError => UploadError;
    ContainerError => PutError => UploadError;
    StoreError => ChunkError => UrlError;
    StoreError => ChunkError => ObjectError;
    ContainerError => PutError => ObjectError;
    StoreError => CatalogError => ContextError;
}

impl ChunkError {
    /// `Ok` if only this object cannot be read, so that work on many can skip it; otherwise the store's
    /// failure.
    pub(crate) fn only_this_object(self) -> Result<(), StoreError> {
        match self {
            Self::Store(StoreError::KeyLost { .. }) => Ok(()),
            Self::Store(error) => Err(error),
            _ => Ok(()),
        }
    }

    /// The same failure for another waiter of a shared request.
    pub(crate) fn shared(&self) -> Self {
        match self {
            Self::Unknown { seq_hash, object_digest } => {
                Self::Unknown { seq_hash: *seq_hash, object_digest: *object_digest }
            }
            Self::Corrupt { seq_hash, object_digest, reason } => {
                Self::Corrupt { seq_hash: *seq_hash, object_digest: *object_digest, reason: reason.clone() }
            }
            Self::Store(StoreError::KeyLost { reason }) => {
                StoreError::KeyLost { reason: reason.clone() }.into()
            }
            other => StoreError::own("reading an object", &other.to_string()).into(),
        }
    }
}

impl ChunkMismatch {
    /// Compares the model and the chunk in an object's header with those of its path.
    pub(crate) fn check(
        header: &kvasir_container::ChunkHeader,
        model_id: &ModelId,
        seq_hash: &SeqHash,
    ) -> Result<(), Self> {
        Self::same("model_id", &header.model_id, model_id)?;
        Self::same("seq_hash", &header.seq_hash, seq_hash)
    }

    /// Compares one field.
    pub(crate) fn same<T: PartialEq + fmt::Display>(
        field: &'static str,
        found: &T,
        expected: &T,
    ) -> Result<(), Self> {
        if found == expected {
            return Ok(());
        }
        Err(Self { field, found: found.to_string(), expected: expected.to_string() })
    }
}
