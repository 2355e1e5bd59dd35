//! Error codes: stable names, one status each, and whether a retry can help.

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
    /// The request is not of the route's form.
    BadRequest = "bad_request", 400, retryable false, "the request is malformed",
        remedy "correct the request; `detail` names what is wrong";
    /// No credential, or one that is not known, not valid yet or not valid any more.
    Unauthorized = "unauthorized", 401, retryable false, "the request needs a valid credential",
        remedy "send `Authorization: Bearer` with a credential that is known and has not expired";
    /// A credential whose role does not allow this.
    Forbidden = "forbidden", 403, retryable false, "the credential does not allow this",
        remedy "ask for a credential with the role that `detail` names";
    /// A `model_id` that was never registered here.
    UnknownModel = "unknown_model", 404, retryable false, "the model is not registered",
        remedy "POST the spec to /v1/models, then send the request again";
    /// A profile that is not there.
    UnknownProfile = "unknown_profile", 404, retryable false, "the profile is not stored",
        remedy "PUT the profile first";
    /// A chunk or object that is not there.
    UnknownChunk = "unknown_chunk", 404, retryable false, "the chunk is not stored",
        remedy "look the context up again: it went meanwhile, or was never there";
    /// A key under which nothing is stored.
    UnknownObject = "unknown_object", 404, retryable false, "nothing is stored under this key",
        remedy "store the object; it went meanwhile, or was never there";
    /// A key that has other bytes.
    ObjectExists = "object_exists", 412, retryable false, "the key has other bytes",
        remedy "read the object, or remove it before other bytes are stored under its key";
    /// A body of which the length is not said.
    LengthRequired = "length_required", 411, retryable false, "the length of the body is not known",
        remedy "send Content-Length";
    /// A route that is not there.
    UnknownRoute = "unknown_route", 404, retryable false, "there is no such route",
        remedy "correct the path; /v1/openapi.json lists them";
    /// A method that the route does not have.
    MethodNotAllowed = "method_not_allowed", 405, retryable false, "the route does not take this method",
        remedy "use a method that the Allow header lists";
    /// An upload that was never announced, never sent, committed already, or collected.
    UnknownUpload = "unknown_upload", 404, retryable false, "there is no such upload",
        remedy "PUT the bytes to the ticket's URL before the commit; announce it again where it expired";
    /// The bytes that were sent directly are not those that were announced.
    UploadMismatch = "upload_mismatch", 422, retryable false, "the upload is not what was announced",
        remedy "announce and send the object again; nothing was stored";
    /// The store has no presigned URLs, or not for this object.
    DirectUnavailable = "direct_unavailable", 409, retryable false, "the direct path is not available",
        remedy "read and write through the service instead";
    /// A context or version that is not there.
    UnknownContext = "unknown_context", 404, retryable false, "there is no such context",
        remedy "list the contexts; it may have expired or been deleted";
    /// A context whose chunks do not follow each other, or over a limit.
    InvalidContext = "invalid_context", 422, retryable false, "the context is impossible",
        remedy "correct the context; `detail` names what is wrong";
    /// Somebody else wrote the next version at the same moment.
    ContextConflict = "context_conflict", 409, retryable true, "the context was changed at the same time",
        remedy "read the newest version and send the change again";
    /// A job that this replica does not know.
    UnknownJob = "unknown_job", 404, retryable false, "there is no such job here",
        remedy "ask the replica that started it; only the last jobs are remembered";
    /// A job of this kind is under way already.
    JobRunning = "job_running", 409, retryable true, "such a job is running already",
        remedy "wait for it; /v1/admin/jobs lists it";
    /// A level the object does not have.
    UnknownLevel = "unknown_level", 404, retryable false, "the object has no such level",
        remedy "ask for one of the levels that the lookup listed";
    /// A model spec that no cache can have.
    InvalidModelSpec = "invalid_model_spec", 422, retryable false, "the model spec is impossible",
        remedy "correct the spec; `detail` names the field";
    /// A body that is no chunk object, or a torn or corrupt one.
    InvalidChunk = "invalid_chunk", 422, retryable false, "the body is not a valid chunk object",
        remedy "encode and send the object again; nothing was stored";
    /// A valid chunk, but not the one that the request names.
    ChunkMismatch = "chunk_mismatch", 422, retryable false, "the object is not the one that the request names",
        remedy "send it to the path of its own chunk and model, with its own digest and length; nothing was stored";
    /// A chunk that was removed while it was stored.
    ChunkRemoved = "chunk_removed", 409, retryable true, "the chunk was removed while it was stored",
        remedy "send it again; it gets another name";
    /// A body whose hash is not the one in the path, or no profile.
    InvalidProfile = "invalid_profile", 422, retryable false, "the body is not the profile that the path names",
        remedy "send it to the path of its own hash; nothing was stored";
    /// A body over its limit.
    BodyTooLarge = "body_too_large", 413, retryable false, "the body is larger than the limit",
        remedy "send less; /v1/config has the limits";
    /// A tenant that has stored as much as it may.
    StorageQuota = "storage_quota", 507, retryable false, "the tenant has no room left",
        remedy "remove chunks, or ask for more room; `detail` names the limit, and the collector frees what was removed";
    /// A request's head over its limit.
    HeadersTooLarge = "headers_too_large", 431, retryable false, "the headers are larger than the limit",
        remedy "send fewer or shorter headers";
    /// A path and query over their limit.
    UriTooLong = "uri_too_long", 414, retryable false, "the path and query are longer than the limit",
        remedy "send what is long in the body";
    /// A body in an encoding.
    UnsupportedEncoding = "unsupported_encoding", 415, retryable false, "bodies in an encoding are not taken",
        remedy "send the body as it is, without Content-Encoding";
    /// A body that hardly moves.
    BodyTooSlow = "body_too_slow", 408, retryable true, "the body came too slowly",
        remedy "send it again over a better connection";
    /// A `Range` outside the object, or of a form that is not supported.
    RangeNotSatisfiable = "range_not_satisfiable", 416, retryable false, "the range is not satisfiable",
        remedy "ask for one range within the object; Content-Range has its size";
    /// A conditional request whose condition does not hold.
    PreconditionFailed = "precondition_failed", 412, retryable false, "the precondition does not hold",
        remedy "read the resource again and decide anew";
    /// Over a rate, concurrency or size limit.
    Throttled = "throttled", 429, retryable true, "too many requests",
        remedy "wait as long as Retry-After says";
    /// The object store does not answer; nothing acknowledged is lost.
    StoreUnavailable = "store_unavailable", 503, retryable true, "the object store is unavailable",
        remedy "send it again after Retry-After; it may or may not have been stored";
    /// Shutting down.
    Draining = "draining", 503, retryable true, "the replica is draining",
        remedy "use another replica";
    /// The stored bytes failed their checksum twice; the chunk is now a miss.
    CorruptChunk = "corrupt_chunk", 502, retryable false, "the stored bytes are corrupt",
        remedy "compute the chunk and store it again; it counts as a miss";
    /// The chunk is sealed under a key that the service does not have.
    KeyLost = "key_lost", 502, retryable false, "the key of the stored bytes is not there",
        remedy "compute the chunk; tell the operator, who has to put back the key that `detail` names";
    /// A bug. The log has the details under the request id.
    Internal = "internal", 500, retryable true, "internal error",
        remedy "send it again; report it with the x-request-id";
}

// By hand: the derive does not see texts that come out of a macro.
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
