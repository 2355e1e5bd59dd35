//! Paths of the API, as templates for the server's router and as builders for the client.

use kvasir_types::{ModelId, Name, ObjectDigest, ObjectKey, ProfileHash, SeqHash};
use uuid::Uuid;

/// Liveness. Never depends on the store.
pub const LIVEZ: &str = "/livez";
/// Readiness for traffic.
pub const READYZ: &str = "/readyz";
/// Prometheus metrics.
pub const METRICS: &str = "/metrics";
/// `GET`: capabilities and limits, see [`ConfigResponse`](crate::ConfigResponse).
pub const CONFIG: &str = "/v1/config";
/// `GET` a [`MembersResponse`](crate::MembersResponse): the replicas that share the bucket.
pub const MEMBERS: &str = "/v1/members";
/// `POST` a [`ModelSpec`](kvasir_types::ModelSpec), returns [`RegisteredModel`](crate::RegisteredModel);
/// `GET` a [`ModelList`](crate::ModelList).
pub const MODELS: &str = "/v1/models";
/// `GET` the spec of a registered model.
pub const MODEL: &str = "/v1/models/{model_id}";
/// `GET`: the model's profiles, see [`ProfileList`](crate::ProfileList).
pub const PROFILES: &str = "/v1/models/{model_id}/profiles";
/// `PUT`, `GET` a profile's bytes.
pub const PROFILE: &str = "/v1/models/{model_id}/profiles/{profile_hash}";
/// `GET` a profile's levels: [`ProfileLevels`](crate::ProfileLevels).
pub const PROFILE_LEVELS: &str = "/v1/models/{model_id}/profiles/{profile_hash}/levels";
/// `POST` a [`TrainingRecord`](crate::TrainingRecord), for admins; `GET` a [`TrainingList`](crate::TrainingList).
pub const TRAININGS: &str = "/v1/models/{model_id}/trainings";
/// `POST` a [`NamespaceRequest`](crate::NamespaceRequest).
pub const NAMESPACES: &str = "/v1/namespaces";
/// `POST` a [`NamespaceRotation`](crate::NamespaceRotation), returns
/// [`NamespaceResponse`](crate::NamespaceResponse). For admins.
pub const NAMESPACE_ROTATION: &str = "/v1/namespaces/rotate";
/// `PUT`, `GET`, `HEAD`, `DELETE` an opaque object's bytes. The key is one segment: a slash in it is written `%2F`.
pub const OBJECT: &str = "/v1/namespaces/{namespace}/objects/{key}";
/// `POST` an [`ObjectsLookup`](crate::ObjectsLookup), returns [`ObjectsResponse`](crate::ObjectsResponse).
pub const OBJECTS_LOOKUP: &str = "/v1/namespaces/{namespace}/objects:lookup";
/// `POST` an [`ObjectsRequest`](crate::ObjectsRequest), returns
/// [`ExplainObjectsResponse`](crate::ExplainObjectsResponse).
pub const OBJECTS_EXPLAIN: &str = "/v1/namespaces/{namespace}/objects:explain";
/// `POST` objects, see [`MEDIA_NEW_OBJECTS`](crate::MEDIA_NEW_OBJECTS), returns
/// [`WriteObjectsResponse`](crate::WriteObjectsResponse).
pub const OBJECTS_WRITE: &str = "/v1/namespaces/{namespace}/objects:write";
/// `POST` a [`ReadObjectsRequest`](crate::ReadObjectsRequest), returns the objects' bytes, see
/// [`MEDIA_OBJECTS`](crate::MEDIA_OBJECTS).
pub const OBJECTS_READ: &str = "/v1/namespaces/{namespace}/objects:read";
/// `POST` a [`LookupRequest`](crate::LookupRequest).
pub const LOOKUP: &str = "/v1/lookup";
/// `GET` a [`ChunkSample`](crate::ChunkSample). For admins.
pub const SAMPLE: &str = "/v1/models/{model_id}/sample";
/// `PUT` an object; `GET`, `HEAD` the preferred object of a seq_hash.
pub const CHUNK: &str = "/v1/models/{model_id}/chunks/{seq_hash}";
/// `GET`, `HEAD` one object, whole, by `Range` or by `?level=`.
pub const CHUNK_OBJECT: &str = "/v1/models/{model_id}/chunks/{seq_hash}/{object_digest}";
/// `GET` an [`ObjectUrl`](crate::ObjectUrl): a presigned URL, or a new one to replace an expired one.
pub const CHUNK_OBJECT_URL: &str = "/v1/models/{model_id}/chunks/{seq_hash}/{object_digest}/url";
/// `GET` a [`ChunkStatus`](crate::ChunkStatus): age, expiry and uses of one object.
pub const CHUNK_OBJECT_STATUS: &str = "/v1/models/{model_id}/chunks/{seq_hash}/{object_digest}/status";
/// `POST` an [`UploadRequest`](crate::UploadRequest), returns [`UploadTicket`](crate::UploadTicket).
pub const UPLOADS: &str = "/v1/uploads";
/// `POST`: makes an upload visible, returns [`StoredChunk`](crate::StoredChunk).
pub const UPLOAD_COMMIT: &str = "/v1/uploads/{upload_id}/commit";
/// `POST` a [`ContextRequest`](crate::ContextRequest); `GET` lists.
pub const CONTEXTS: &str = "/v1/contexts";
/// `GET`, `PATCH`, `DELETE` a context.
pub const CONTEXT: &str = "/v1/contexts/{context_id}";
/// `GET`: the versions of a context.
pub const CONTEXT_VERSIONS: &str = "/v1/contexts/{context_id}/versions";
/// `GET`: server-sent [`Event`](crate::Event)s.
pub const EVENTS: &str = "/v1/events";
/// `POST` an [`ExplainRequest`](crate::ExplainRequest).
pub const EXPLAIN: &str = "/v1/explain";
/// `GET` [`PlanOptions`](crate::PlanOptions); `POST` a [`PlanRequest`](crate::PlanRequest), returns
/// [`PlanResponse`](crate::PlanResponse).
pub const PLAN: &str = "/v1/plan";
/// `GET` a [`UsageResponse`](crate::UsageResponse).
pub const USAGE: &str = "/v1/usage";
/// `GET` a [`SeriesResponse`](crate::SeriesResponse). For operators.
pub const SERIES: &str = "/v1/series";
/// `POST` a [`LoadRecord`](crate::LoadRecord); `GET` a [`LoadList`](crate::LoadList).
pub const LOADS: &str = "/v1/loads";
/// `POST` a [`JobRequest`](crate::JobRequest); `GET` lists. For operators.
pub const JOBS: &str = "/v1/admin/jobs";
/// `GET` a [`Job`](crate::Job).
pub const JOB: &str = "/v1/admin/jobs/{job_id}";
/// `POST` asks a job to stop.
pub const JOB_CANCEL: &str = "/v1/admin/jobs/{job_id}/cancel";
/// `GET` an [`AuditList`](crate::AuditList). For admins, of their tenant; for operators, of all.
pub const AUDIT: &str = "/v1/admin/audit";
/// `GET`: the OpenAPI document.
pub const OPENAPI: &str = "/v1/openapi.json";
/// `GET`: the document as a page that loads nothing from elsewhere.
pub const DOCS: &str = "/docs";
/// Prefix of the paths of the page's parts.
pub const DOCS_ASSETS: &str = "/docs/";

/// `GET`: redirects to the console.
pub const CONSOLE: &str = "/console";
/// The console, and the prefix of the paths of its files.
pub const CONSOLE_FILES: &str = "/console/";

/// Every route template of the API except the browsable pages.
pub const ALL: &[&str] = &[
    LIVEZ,
    READYZ,
    METRICS,
    CONFIG,
    MEMBERS,
    MODELS,
    MODEL,
    PROFILES,
    PROFILE,
    PROFILE_LEVELS,
    TRAININGS,
    NAMESPACES,
    NAMESPACE_ROTATION,
    OBJECT,
    OBJECTS_LOOKUP,
    OBJECTS_READ,
    OBJECTS_WRITE,
    OBJECTS_EXPLAIN,
    LOOKUP,
    SAMPLE,
    CHUNK,
    CHUNK_OBJECT,
    CHUNK_OBJECT_URL,
    CHUNK_OBJECT_STATUS,
    UPLOADS,
    UPLOAD_COMMIT,
    CONTEXTS,
    CONTEXT,
    CONTEXT_VERSIONS,
    EVENTS,
    EXPLAIN,
    PLAN,
    USAGE,
    SERIES,
    LOADS,
    JOBS,
    JOB,
    JOB_CANCEL,
    AUDIT,
    OPENAPI,
];

/// Path of an upload's commit.
pub fn upload_commit(upload_id: &Uuid) -> String {
    format!("{UPLOADS}/{upload_id}/commit")
}

/// Path of a context.
pub fn context(context_id: &Uuid) -> String {
    format!("{CONTEXTS}/{context_id}")
}

/// Path of a context's versions.
pub fn context_versions(context_id: &Uuid) -> String {
    format!("{CONTEXTS}/{context_id}/versions")
}

/// Path of a job.
pub fn job(job_id: &Uuid) -> String {
    format!("{JOBS}/{job_id}")
}

/// Path of an object's presigned URL.
pub fn object_url(model_id: &ModelId, seq_hash: &SeqHash, object: &ObjectDigest) -> String {
    format!("{}/url", chunk_object(model_id, seq_hash, object))
}

/// Path of an object's status.
pub fn object_status(model_id: &ModelId, seq_hash: &SeqHash, object: &ObjectDigest) -> String {
    format!("{}/status", chunk_object(model_id, seq_hash, object))
}

/// Path of an opaque object.
pub fn object(namespace: &Name, key: &ObjectKey) -> String {
    use std::fmt::Write;
    let mut path = format!("{NAMESPACES}/{namespace}/objects/");
    for byte in key.as_str().bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            path.push(byte.into());
        } else {
            // Writing to a string does not fail.
            let _ = write!(path, "%{byte:02X}");
        }
    }
    path
}

/// Path of a lookup of opaque objects.
pub fn objects_lookup(namespace: &Name) -> String {
    format!("{NAMESPACES}/{namespace}/objects:lookup")
}

/// Path of a read of opaque objects.
pub fn objects_read(namespace: &Name) -> String {
    format!("{NAMESPACES}/{namespace}/objects:read")
}

/// Path of a write of opaque objects.
pub fn objects_write(namespace: &Name) -> String {
    format!("{NAMESPACES}/{namespace}/objects:write")
}

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

/// Path of a model's trainings.
pub fn trainings(model_id: &ModelId) -> String {
    format!("{MODELS}/{model_id}/trainings")
}

/// Path of a model's sample of chunks.
pub fn sample(model_id: &ModelId) -> String {
    format!("{MODELS}/{model_id}/sample")
}

/// Path of a chunk.
pub fn chunk(model_id: &ModelId, seq_hash: &SeqHash) -> String {
    format!("{MODELS}/{model_id}/chunks/{seq_hash}")
}

/// Path of one object of a chunk.
pub fn chunk_object(model_id: &ModelId, seq_hash: &SeqHash, object: &ObjectDigest) -> String {
    format!("{MODELS}/{model_id}/chunks/{seq_hash}/{object}")
}
