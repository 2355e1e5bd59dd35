//! Direct uploads to the object store.

use std::collections::BTreeMap;

use kvasir_types::{ModelId, ObjectDigest, SeqHash};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// Announces an upload of one chunk object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UploadRequest {
    /// The model.
    pub model_id: ModelId,
    /// The chunk.
    pub seq_hash: SeqHash,
    /// BLAKE3 of the object's bytes: its name.
    pub object_digest: ObjectDigest,
    /// Its size; signed as part of the name in the URL.
    pub bytes: u64,
    /// SHA-256 of its bytes, 64 hex digits; signed.
    pub sha256: String,
}

/// Where to send the bytes. They are not visible before the commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadTicket {
    /// Identifies the upload for its commit.
    pub upload_id: Uuid,
    /// `PUT` the object to this URL, with exactly `headers`, and without the service's credentials.
    pub url: String,
    /// Headers that are part of the signature.
    pub headers: BTreeMap<String, String>,
    /// Validity of the URL, in seconds from the response. An upload not committed by then may be collected.
    pub expires_in_s: u64,
}
