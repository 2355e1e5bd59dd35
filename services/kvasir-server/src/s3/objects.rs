//! Objects: store, read, query, remove.

use std::time::SystemTime;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use kvasir_api::StoredObject;
use kvasir_storage::{
    ByteRange, ChunkError, ObjectError, OpaqueObject, PutObject, Storage, hot::RequestHint,
};
use s3s::{S3Error, S3Request, S3Result, dto::*, s3_error};

use super::{
    downloads,
    errors::S3Failure,
    held_body::HeldBody,
    operations::{Operations, key, namespace, principal},
    uploads::{Declared, Upload},
};
use crate::{
    audit::{AuditedRequest, OpenAudit},
    auth::Principal,
    limits, quota_reservation,
};

/// Media type of objects: the service treats them as bytes.
const MEDIA_BYTES: &str = "binary/octet-stream";

/// Headers that request protection or semantics that objects here do not have. Metadata and media types are
/// accepted but not stored.
const REFUSED_HEADERS: &[&str] = &[
    "x-amz-acl",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-tagging",
    "x-amz-website-redirect-location",
    "x-amz-write-offset-bytes",
    "if-match",
];
/// Beginnings of such headers.
const REFUSED_PREFIXES: &[&str] = &["x-amz-grant-", "x-amz-object-lock-"];

/// The common inputs of both kinds of reads.
macro_rules! asked {
    ($input:ident) => {
        Asked {
            bucket: $input.bucket,
            key: $input.key,
            part_number: $input.part_number,
            version_id: $input.version_id,
            range: $input.range,
            if_match: $input.if_match,
            if_none_match: $input.if_none_match,
            if_modified_since: $input.if_modified_since,
            if_unmodified_since: $input.if_unmodified_since,
        }
    };
}

/// Rejects unsupported attributes of an object.
pub(super) fn refuse_attributes(headers: &HeaderMap) -> S3Result<()> {
    let is_refused = |name: &str| {
        REFUSED_HEADERS.contains(&name) || REFUSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    match headers.keys().find(|name| is_refused(name.as_str())) {
        Some(name) => Err(s3_error!(NotImplemented, "{name} is not supported: send the object without it")),
        None => Ok(()),
    }
}

impl Operations {
    pub(super) async fn put(&self, request: S3Request<PutObjectInput>) -> S3Result<PutObjectOutput> {
        let principal = principal(&request)?;
        refuse_attributes(&request.headers)?;
        let is_create = is_create(request.input.if_none_match.as_ref())?;
        let PutObjectInput { bucket, key, body, content_length, .. } = request.input;
        let bytes = length(content_length, &request.headers)?;
        let put = listed_put(&principal, &bucket, &key, bytes)?;
        let storage = self.state().storage().map_err(S3Failure::from)?;
        let held = request.extensions.get::<HeldBody>().cloned().unwrap_or_default();
        let is_signed = request.credentials.is_some();
        let declared =
            Declared { bytes, headers: &request.headers, trailers: request.trailing_headers, is_signed };
        let mut upload = Upload::new(self.state(), body, held, declared)?;
        let stored = async {
            let reservation =
                quota_reservation::reserve_object(self.state(), &principal, &put.namespace, bytes).await?;
            let put = PutObject { reservation, ..put.clone() };
            Ok::<_, S3Failure>(storage.ingest().put_object(put, upload.parts()).await?)
        };
        match stored.await {
            Ok(stored) => {
                let e_tag = Some(self.etag_of_stored(storage, &put, &stored, is_create).await?);
                Ok(PutObjectOutput { e_tag, ..PutObjectOutput::default() })
            }
            Err(error) => Err(upload.failure(error).await),
        }
    }

    /// The ETag of the object now stored under a key; an error if the request required creation and the key
    /// existed.
    pub(super) async fn etag_of_stored(
        &self,
        storage: &Storage,
        put: &PutObject,
        stored: &StoredObject,
        is_create: bool,
    ) -> S3Result<ETag> {
        self.state().metrics().object_stored(stored);
        if is_create && !stored.created {
            return Err(s3_error!(PreconditionFailed, "the key already has an object"));
        }
        let object = storage.reads().opaque(&put.tenant, &put.namespace, &put.key).await;
        Ok(downloads::etag(&object.map_err(S3Failure::from)?.etag()))
    }

    pub(super) async fn get(&self, request: S3Request<GetObjectInput>) -> S3Result<GetObjectOutput> {
        let (principal, input) = (principal(&request)?, request.input);
        let found = self.find(&principal, asked!(input)).await?;
        let (wanted, hint) = (found.range.unwrap_or(ByteRange::Whole), RequestHint::default());
        let read = self.storage_reads().await?.read_opaque(&found.object, wanted, &hint).await;
        let read = read.map_err(S3Failure::from)?;
        Ok(GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(signed(read.range.end - read.range.start)),
            content_range: found.content_range(&read.range),
            content_type: Some(MEDIA_BYTES.to_owned()),
            e_tag: Some(found.e_tag),
            last_modified: Some(found.last_modified),
            body: Some(downloads::body(self.state(), read)),
            ..GetObjectOutput::default()
        })
    }

    pub(super) async fn head(&self, request: S3Request<HeadObjectInput>) -> S3Result<HeadObjectOutput> {
        let (principal, input) = (principal(&request)?, request.input);
        let found = self.find(&principal, asked!(input)).await?;
        let object_bytes = found.object.bytes();
        let range = found.range.unwrap_or(ByteRange::Whole).resolve(object_bytes);
        let range = range.ok_or(ChunkError::Range { object_bytes }).map_err(S3Failure::from)?;
        Ok(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(signed(range.end - range.start)),
            content_range: found.content_range(&range),
            content_type: Some(MEDIA_BYTES.to_owned()),
            e_tag: Some(found.e_tag),
            last_modified: Some(found.last_modified),
            ..HeadObjectOutput::default()
        })
    }

    pub(super) async fn delete(&self, request: S3Request<DeleteObjectInput>) -> S3Result<DeleteObjectOutput> {
        let principal = principal(&request)?;
        refuse_parts(None, request.input.version_id.as_deref())?;
        let is_conditional = |name: &str| name == "if-match" || name.starts_with("x-amz-if-match-");
        refuse_condition(request.headers.keys().any(|name| is_conditional(name.as_str())))?;
        self.remove(&principal, &request.input.bucket, &request.input.key).await?;
        Ok(DeleteObjectOutput::default())
    }

    pub(super) async fn delete_many(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<DeleteObjectsOutput> {
        let principal = principal(&request)?;
        let DeleteObjectsInput { bucket, delete, .. } = request.input;
        if delete.objects.len() > limits::S3_DELETE_KEYS_MAX {
            return Err(s3_error!(
                MalformedXML,
                "a request may remove at most {} keys",
                limits::S3_DELETE_KEYS_MAX
            ));
        }
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for ObjectIdentifier { key, version_id, e_tag, last_modified_time, size } in delete.objects {
            let removed = async {
                refuse_parts(None, version_id.as_deref())?;
                refuse_condition(e_tag.is_some() || last_modified_time.is_some() || size.is_some())?;
                self.remove(&principal, &bucket, &key).await
            };
            match removed.await {
                Ok(()) => deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() }),
                Err(error) => errors.push(Error {
                    code: Some(error.code().as_str().to_owned()),
                    message: error.message().map(str::to_owned),
                    key: Some(key),
                    ..Error::default()
                }),
            }
        }
        let deleted = (!delete.quiet.unwrap_or(false)).then_some(deleted);
        let errors = (!errors.is_empty()).then_some(errors);
        Ok(DeleteObjectsOutput { deleted, errors, ..DeleteObjectsOutput::default() })
    }

    /// Removes an object; removing a missing one succeeds. Each is a line of the audit log.
    async fn remove(&self, principal: &Principal, bucket: &str, name: &str) -> S3Result<()> {
        let (namespace, key) = (namespace(bucket)?, key(name)?);
        let audited = AuditedRequest::of_s3(&Method::DELETE, bucket, name);
        let audited = OpenAudit::new(self.state(), principal, Some(audited));
        let removed = async {
            let storage = self.state().storage().map_err(S3Failure::from)?;
            match storage.lifecycle().remove_object(&principal.tenant, &namespace, &key).await {
                Ok(()) | Err(ObjectError::Unknown { .. }) => Ok(()),
                Err(error) => Err(S3Error::from(S3Failure::from(error))),
            }
        };
        let removed = removed.await;
        let status = match &removed {
            Ok(()) => StatusCode::NO_CONTENT,
            Err(error) => error.status_code().unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        };
        audited.end(status.as_u16());
        removed
    }

    /// The object that a read requests, if its conditions hold.
    async fn find(&self, principal: &Principal, asked: Asked) -> S3Result<Found> {
        refuse_parts(asked.part_number, asked.version_id.as_deref())?;
        let (namespace, key) = (namespace(&asked.bucket)?, key(&asked.key)?);
        let reads = self.storage_reads().await?;
        let found = async {
            let object = reads.opaque(&principal.tenant, &namespace, &key).await?;
            let written_ms = reads.opaque_written_ms(&object).await?;
            Ok::<_, S3Failure>((object, written_ms))
        };
        let (object, written_ms) = found.await?;
        let (e_tag, last_modified) = (downloads::etag(&object.etag()), downloads::timestamp(written_ms));
        let range = asked.range.map(byte_range);
        let found = Found { object, e_tag, last_modified, modified: written_ms / 1_000, range };
        asked.check_conditions(&found)?;
        Ok(found)
    }

    pub(super) async fn storage_reads(&self) -> S3Result<&std::sync::Arc<kvasir_storage::Reads>> {
        Ok(self.state().caught_up_storage().await.map_err(S3Failure::from)?.reads())
    }
}

/// A stored object.
struct Found {
    object: OpaqueObject,
    e_tag: ETag,
    last_modified: Timestamp,
    /// The same in seconds since 1970.
    modified: u64,
    /// The requested byte range, if not all.
    range: Option<ByteRange>,
}

impl Found {
    /// The value of `Content-Range` for `sent`, if a range was requested.
    fn content_range(&self, sent: &std::ops::Range<u64>) -> Option<String> {
        let text = || format!("bytes {}-{}/{}", sent.start, sent.end.saturating_sub(1), self.object.bytes());
        self.range.is_some().then(text)
    }
}

/// A read request and its conditions (RFC 9110, section 13).
struct Asked {
    bucket: String,
    key: String,
    part_number: Option<i32>,
    version_id: Option<String>,
    range: Option<Range>,
    if_match: Option<IfMatch>,
    if_none_match: Option<IfNoneMatch>,
    if_modified_since: Option<Timestamp>,
    if_unmodified_since: Option<Timestamp>,
}

impl Asked {
    fn check_conditions(&self, found: &Found) -> S3Result<()> {
        let names = |condition: &ETagCondition| {
            condition.is_any() || condition.as_etag().is_some_and(|tag| tag.value() == found.e_tag.value())
        };
        let seconds = |time: &Timestamp| {
            let since = SystemTime::from(time::OffsetDateTime::from(time.clone()))
                .duration_since(SystemTime::UNIX_EPOCH);
            since.map_or(0, |since| since.as_secs())
        };
        let is_refused = match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) => !names(condition),
            (None, Some(time)) => found.modified > seconds(time),
            (None, None) => false,
        };
        if is_refused {
            return Err(s3_error!(PreconditionFailed, "the object does not match the condition"));
        }
        let is_same = match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) => names(condition),
            (None, Some(time)) => found.modified <= seconds(time),
            (None, None) => false,
        };
        if is_same { Err(not_modified(found)) } else { Ok(()) }
    }
}

/// The response to a reader that already has the object: with the headers that identify it (RFC 9110, section
/// 15.4.5).
fn not_modified(found: &Found) -> S3Error {
    let mut answer = s3_error!(NotModified);
    if let Ok(e_tag) = HeaderValue::try_from(found.object.etag()) {
        answer.set_headers(HeaderMap::from_iter([(header::ETAG, e_tag)]));
    }
    answer
}

/// Conditional removals are not supported: two concurrent ones could not both be right.
fn refuse_condition(is_conditional: bool) -> S3Result<()> {
    if is_conditional {
        Err(s3_error!(NotImplemented, "conditional removal is not supported"))
    } else {
        Ok(())
    }
}

/// Whether a PUT must fail if the key exists: the only supported condition.
pub(super) fn is_create(condition: Option<&IfNoneMatch>) -> S3Result<bool> {
    match condition {
        None => Ok(false),
        Some(condition) if condition.is_any() => Ok(true),
        Some(_) => Err(s3_error!(NotImplemented, "If-None-Match of a PUT must be * or absent")),
    }
}

/// The put of a listed object under a key of a bucket.
pub(super) fn listed_put(principal: &Principal, bucket: &str, name: &str, bytes: u64) -> S3Result<PutObject> {
    Ok(PutObject {
        tenant: principal.tenant.clone(),
        namespace: namespace(bucket)?,
        key: key(name)?,
        bytes,
        hint: RequestHint::default(),
        listed: true,
        reservation: None,
    })
}

/// The length of a body, required to write the object's header. Of aws-chunks in a transfer without a length, as AWS's SDK
/// for C++ sends them, only the content's length is declared.
pub(super) fn length(declared: Option<i64>, headers: &HeaderMap) -> S3Result<u64> {
    let decoded = || headers.get("x-amz-decoded-content-length")?.to_str().ok()?.parse().ok();
    let length = declared.and_then(|length| u64::try_from(length).ok()).or_else(decoded);
    length.ok_or_else(|| s3_error!(MissingContentLength, "send the length of the body"))
}

fn refuse_parts(part_number: Option<i32>, version_id: Option<&str>) -> S3Result<()> {
    if version_id.is_some_and(|version| version != "null") {
        return Err(s3_error!(NotImplemented, "versions of objects are not supported"));
    }
    match part_number {
        None | Some(1) => Ok(()),
        Some(_) => Err(s3_error!(NotImplemented, "reading by part number is not supported; request a range")),
    }
}

fn byte_range(range: Range) -> ByteRange {
    match range {
        Range::Int { first, last: Some(last) } => ByteRange::Bounded(first, last),
        Range::Int { first, last: None } => ByteRange::From(first),
        Range::Suffix { length } => ByteRange::Suffix(length),
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object that is stored all the same would lack the protection that its writer asked for.
    #[test]
    fn protection_that_objects_do_not_have_is_refused() {
        let is_refused = |name: &str| {
            let (name, value) = (name.parse().expect("a name"), HeaderValue::from_static("x"));
            refuse_attributes(&HeaderMap::from_iter([(name, value)])).is_err()
        };
        for name in [
            "x-amz-acl",
            "x-amz-grant-read",
            "x-amz-object-lock-legal-hold",
            "x-amz-object-lock-mode",
            "x-amz-object-lock-retain-until-date",
            "x-amz-server-side-encryption",
        ] {
            assert!(is_refused(name), "{name}");
        }
        assert!(!is_refused("x-amz-meta-color") && !is_refused("x-amz-storage-class"));
    }
}
