//! Error codes: stable names, an HTTP status each, and whether a retry can help.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal, retryable $retryable:literal, $title:literal, remedy $remedy:literal;)*) => {
        /// Stable, machine-readable cause of a failed request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl ErrorCode {
            /// All codes, for tables and tests.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The stable text.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// HTTP status.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// Whether the same request may succeed later.
            pub const fn is_retryable(self) -> bool {
                match self { $(Self::$name => $retryable,)* }
            }

            /// Short title for people.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            /// What the caller can do about it.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy,)* }
            }
        }
    };
}

error_codes! {
    /// The request does not have the route's form.
    BadRequest = "bad_request", 400, retryable false, "the request is malformed",
        remedy "correct the request; `detail` names what is wrong";
    /// No credential, or one that is unknown, not yet valid, or expired.
    Unauthorized = "unauthorized", 401, retryable false, "the request needs a valid credential",
        remedy "send `Authorization: Bearer` with a credential that is known and has not expired";
    /// A credential whose role does not allow this.
    Forbidden = "forbidden", 403, retryable false, "the credential does not allow this",
        remedy "ask for a credential with the role that `detail` names";
    /// A `model_id` that was never registered with this service.
    UnknownModel = "unknown_model", 404, retryable false, "the model is not registered",
        remedy "POST the spec to /v1/models, then send the request again";
    /// A profile that is not stored.
    UnknownProfile = "unknown_profile", 404, retryable false, "the profile is not stored",
        remedy "PUT the profile first";
    /// A chunk or object that is not stored.
    UnknownChunk = "unknown_chunk", 404, retryable false, "the chunk is not stored",
        remedy "look the context up again: the chunk was removed, or never stored";
    /// A key without an object.
    UnknownObject = "unknown_object", 404, retryable false, "no object is stored under this key",
        remedy "store the object: it was removed, or never stored";
    /// A key that has an object: other bytes, or any where the request creates one.
    ObjectExists = "object_exists", 412, retryable false, "the key has an object",
        remedy "read the object, or remove it before storing other bytes under its key";
    /// A body of undeclared length.
    LengthRequired = "length_required", 411, retryable false, "the length of the body is missing",
        remedy "send Content-Length";
    /// A route that does not exist.
    UnknownRoute = "unknown_route", 404, retryable false, "there is no such route",
        remedy "correct the path; /v1/openapi.json lists all routes";
    /// A method that the route does not support.
    MethodNotAllowed = "method_not_allowed", 405, retryable false, "the route does not support this method",
        remedy "use a method that the Allow header lists";
    /// An upload that was never announced, never sent, already committed, or collected.
    UnknownUpload = "unknown_upload", 404, retryable false, "there is no such upload",
        remedy "PUT the bytes to the ticket's URL before the commit; announce the upload again if it expired";
    /// The bytes sent directly are not the announced ones.
    UploadMismatch = "upload_mismatch", 422, retryable false, "the upload differs from its announcement",
        remedy "announce and send the object again; nothing was stored";
    /// The store does not support presigned URLs, or not for this object.
    DirectUnavailable = "direct_unavailable", 409, retryable false, "direct access is not available",
        remedy "read and write through the service instead";
    /// A context or version that does not exist.
    UnknownContext = "unknown_context", 404, retryable false, "there is no such context",
        remedy "list the contexts; it may have expired or been deleted";
    /// A context whose chunks do not form a chain, or that exceeds a limit.
    InvalidContext = "invalid_context", 422, retryable false, "the context is invalid",
        remedy "correct the context; `detail` names what is wrong";
    /// Another request wrote the next version at the same time.
    ContextConflict = "context_conflict", 409, retryable true, "the context was changed concurrently",
        remedy "read the newest version and send the change again";
    /// A job that this replica does not know.
    UnknownJob = "unknown_job", 404, retryable false, "there is no such job here",
        remedy "ask the replica that started it; replicas only keep their latest jobs";
    /// A job of this kind is already running.
    JobRunning = "job_running", 409, retryable true, "a job of this kind is already running",
        remedy "wait for it; /v1/admin/jobs lists it";
    /// A level that the object does not have.
    UnknownLevel = "unknown_level", 404, retryable false, "the object has no such level",
        remedy "request one of the levels that the lookup listed";
    /// An invalid model spec.
    InvalidModelSpec = "invalid_model_spec", 422, retryable false, "the model spec is invalid",
        remedy "correct the spec; `detail` names the field";
    /// A body that is not a chunk object, or is incomplete or corrupt.
    InvalidChunk = "invalid_chunk", 422, retryable false, "the body is not a valid chunk object",
        remedy "encode and send the object again; nothing was stored";
    /// A valid chunk, but not the one that the request names.
    ChunkMismatch = "chunk_mismatch", 422, retryable false, "the object is not the one named by the request",
        remedy "send it to the path of its own chunk and model, with its own digest and length; nothing was stored";
    /// A chunk that was removed while it was being stored.
    ChunkRemoved = "chunk_removed", 409, retryable true, "the chunk was removed while it was being stored",
        remedy "send it again; it will get another name";
    /// A body whose hash differs from the one in the path, or that is not a profile.
    InvalidProfile = "invalid_profile", 422, retryable false, "the body is not the profile named by the path",
        remedy "send it to the path of its own hash; nothing was stored";
    /// A body over its limit.
    BodyTooLarge = "body_too_large", 413, retryable false, "the body is larger than the limit",
        remedy "send less; /v1/config has the limits";
    /// A tenant that has reached its storage quota.
    StorageQuota = "storage_quota", 507, retryable false, "the tenant's storage quota is exhausted",
        remedy "remove chunks, or ask for a larger quota; `detail` names the limit, and the collector frees removed chunks";
    /// A request's head over its limit.
    HeadersTooLarge = "headers_too_large", 431, retryable false, "the headers are larger than the limit",
        remedy "send fewer or shorter headers";
    /// A path and query over their limit.
    UriTooLong = "uri_too_long", 414, retryable false, "the path and query are longer than the limit",
        remedy "send long parameters in the body";
    /// A body with a content encoding.
    UnsupportedEncoding = "unsupported_encoding", 415, retryable false, "content encodings are not supported",
        remedy "send the body without Content-Encoding";
    /// A body that stalled, or arrived too slowly.
    BodyTooSlow = "body_too_slow", 408, retryable true, "the body arrived too slowly",
        remedy "send it again over a better connection";
    /// A `Range` outside the object, or of a form that is not supported.
    RangeNotSatisfiable = "range_not_satisfiable", 416, retryable false, "the range is not satisfiable",
        remedy "request a single range within the object; Content-Range has its size";
    /// Over a rate, concurrency or size limit.
    Throttled = "throttled", 429, retryable true, "too many requests",
        remedy "wait for the time in Retry-After";
    /// The object store does not respond; no acknowledged data is lost.
    StoreUnavailable = "store_unavailable", 503, retryable true, "the object store is unavailable",
        remedy "send it again after Retry-After; it may or may not have been stored";
    /// Shutting down.
    Draining = "draining", 503, retryable true, "the replica is draining",
        remedy "use another replica";
    /// The stored bytes failed their checksum twice; the chunk is now a miss.
    CorruptChunk = "corrupt_chunk", 502, retryable false, "the stored bytes are corrupt",
        remedy "compute the chunk and store it again; it counts as a miss";
    /// The chunk is encrypted under a key that the service does not have.
    KeyLost = "key_lost", 502, retryable false, "the encryption key of the stored bytes is missing",
        remedy "compute the chunk; tell the operator to restore the key that `detail` names";
    /// A bug. The service's log has the cause under the request id.
    Internal = "internal", 500, retryable true, "internal error",
        remedy "send it again; if it persists, report it with the x-request-id";
}

// Written by hand: the derive macro does not see texts generated by a macro.
impl utoipa::PartialSchema for ErrorCode {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        let texts = Self::ALL.iter().map(|code| code.as_str());
        let description = "Stable, machine-readable cause of a failed request.";
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::Type::String)
            .description(Some(description))
            .enum_values(Some(texts))
            .into()
    }
}

impl ToSchema for ErrorCode {}

/// An RFC 9457 problem document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `about:kvasir/{code}`.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// Short title for people.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What happened and what to do.
    pub detail: String,
    /// Stable cause.
    pub code: ErrorCode,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

impl Problem {
    /// A problem with the code's own status and title.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            type_uri: format!("about:kvasir/{}", code.as_str()),
            title: code.title().to_owned(),
            status: code.status(),
            detail: detail.into(),
            code,
            retryable: code.is_retryable(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_round_trip() {
        let texts: std::collections::BTreeSet<_> = ErrorCode::ALL.iter().map(|c| c.as_str()).collect();
        assert_eq!(texts.len(), ErrorCode::ALL.len());
        for &code in ErrorCode::ALL {
            let problem = Problem::new(code, "do this");
            let json = serde_json::to_string(&problem).expect("serialises");
            assert!(json.contains(&format!("\"code\":\"{}\"", code.as_str())));
            assert_eq!(serde_json::from_str::<Problem>(&json).expect("parses"), problem);
        }
    }
}
