//! Uploads that go to the object store directly.

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
    /// Its size; signed as part of the name that the URL is for.
    pub bytes: u64,
    /// SHA-256 of its bytes, 64 hex digits; signed.
    pub sha256: String,
}

/// Where to send the bytes. Nothing is visible before the commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UploadTicket {
    /// Names the upload for its commit.
    pub upload_id: Uuid,
    /// `PUT` the object there, with exactly `headers`, and without the service's credentials.
    pub url: String,
    /// Headers that are part of the signature.
    pub headers: BTreeMap<String, String>,
    /// How long the URL is valid, from the answer on. An upload not committed by then may be collected.
    pub expires_in_s: u64,
}
