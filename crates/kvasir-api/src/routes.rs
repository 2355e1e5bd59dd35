//! Paths of the API, as templates for the server's router and as builders for the client.

use kvasir_types::{ModelId, ObjectDigest, ProfileHash, SeqHash};

/// Is the process alive? Never depends on the store.
pub const LIVEZ: &str = "/livez";
/// Should traffic come here?
pub const READYZ: &str = "/readyz";
/// Prometheus metrics.
pub const METRICS: &str = "/metrics";
/// `GET`: capabilities and limits, see [`ConfigResponse`](crate::ConfigResponse).
pub const CONFIG: &str = "/v1/config";
/// `POST` a [`ModelSpec`](kvasir_types::ModelSpec), answers [`RegisteredModel`](crate::RegisteredModel).
pub const MODELS: &str = "/v1/models";
/// `GET` the spec of a registered model.
pub const MODEL: &str = "/v1/models/{model_id}";
/// `GET`: the model's profiles, see [`ProfileList`](crate::ProfileList).
pub const PROFILES: &str = "/v1/models/{model_id}/profiles";
/// `PUT`, `GET` a profile's bytes.
pub const PROFILE: &str = "/v1/models/{model_id}/profiles/{profile_hash}";
/// `POST` a [`NamespaceRequest`](crate::NamespaceRequest).
pub const NAMESPACES: &str = "/v1/namespaces";
/// `POST` a [`LookupRequest`](crate::LookupRequest).
pub const LOOKUP: &str = "/v1/lookup";
/// `PUT` an object; `GET`, `HEAD` the preferred object of a seq_hash.
pub const CHUNK: &str = "/v1/models/{model_id}/chunks/{seq_hash}";
/// `GET`, `HEAD` one object, whole, by `Range` or by `?level=`.
pub const CHUNK_OBJECT: &str = "/v1/models/{model_id}/chunks/{seq_hash}/{object_digest}";

/// Path of a model.
pub fn model(model_id: &ModelId) -> String {
    format!("{MODELS}/{model_id}")
}

/// Path of a model's list of profiles.
pub fn profiles(model_id: &ModelId) -> String {
    format!("{MODELS}/{model_id}/profiles")
}

/// Path of a profile.
pub fn profile(model_id: &ModelId, profile_hash: &ProfileHash) -> String {
    format!("{MODELS}/{model_id}/profiles/{profile_hash}")
}

/// Path of a chunk.
pub fn chunk(model_id: &ModelId, seq_hash: &SeqHash) -> String {
    format!("{MODELS}/{model_id}/chunks/{seq_hash}")
}

/// Path of one object of a chunk.
pub fn chunk_object(model_id: &ModelId, seq_hash: &SeqHash, object: &ObjectDigest) -> String {
    format!("{MODELS}/{model_id}/chunks/{seq_hash}/{object}")
}
