//! Opaque objects: bytes under keys.

use std::{iter, ops::Range};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::{StreamExt, TryStreamExt, stream};
use kvasir_api::{
    ErrorCode, ExplainObjectsResponse, MEDIA_OBJECTS, ObjectInfo, ObjectsLookup, ObjectsRequest,
    ObjectsResponse, PayloadRange, Problem, ReadObjectsRequest, StoredObject, routes,
};
use kvasir_storage::{ByteRange, ChunkError, ObjectRead, OpaqueObject, PutObject};
use kvasir_store::StoreError;
use kvasir_types::{Name, ObjectKey};
use tokio::task::JoinHandle;

use super::{body, conditional, hint, path::id};
use crate::{api_error::ApiError, auth::Principal, quota_reservation, state::AppState};

const MEDIA_BYTES: &str = "application/octet-stream";

/// Stores bytes under a key. They are never overwritten: storing the same bytes again succeeds, other bytes
/// are refused. With `If-None-Match: *`, the same bytes are refused too.
#[utoipa::path(put, path = routes::OBJECT, operation_id = "put_opaque_object", tag = "objects",
    params(("namespace" = Name, Path, description = "the key's namespace"),
           ("key" = ObjectKey, Path, description = "the key, with %2F for a slash"),
           ("If-None-Match" = Option<String>, Header, description = "`*`: 412 if the key has any object")),
    request_body(content = inline(Option<kvasir_api::Binary>), content_type = MEDIA_BYTES, description = "an object may be empty"),
    responses((status = 200, description = "the same bytes were already stored", body = StoredObject),
              (status = 201, description = "durable and visible", body = StoredObject)))]
pub(in crate::handlers) async fn put(
    State(state): State<AppState>,
    principal: Principal,
    Path((namespace, key)): Path<(String, String)>,
    headers: HeaderMap,
    request_body: Body,
) -> Result<Response, ApiError> {
    let storage = state.storage()?;
    let (namespace, key) = (id("namespace", &namespace)?, id("key", &key)?);
    let is_create = is_create(&headers)?;
    body::check_length(&headers, storage.settings().chunk_bytes_max)?;
    let no_length = || {
        let detail = "send the body with Content-Length, not with chunked encoding: the object's header contains its length";
        Problem::new(ErrorCode::LengthRequired, detail)
    };
    let bytes = body::declared_length(&headers).ok_or_else(no_length)?;
    let (tenant, hint) = (principal.tenant.clone(), hint::parse(state.cluster(), &headers)?);
    let mut upload = body::upload(&state, request_body);
    let stored = async {
        let reservation = quota_reservation::reserve_object(&state, &principal, &namespace, bytes).await?;
        let put = PutObject { tenant, namespace, key, bytes, hint, listed: false, reservation };
        Ok::<_, ApiError>(storage.ingest().put_object(put, &mut upload).await?)
    };
    match stored.await {
        Ok(stored) => {
            state.metrics().object_stored(&stored);
            let stored = unless_refused(is_create, stored)?;
            Ok(body::created_or_ok(stored.created, stored))
        }
        Err(error) => {
            body::drain(upload).await;
            Err(error)
        }
    }
}

/// The bytes under a key: all, or by `Range`. `HEAD` as well.
#[utoipa::path(get, path = routes::OBJECT, operation_id = "get_opaque_object", tag = "objects",
    params(("namespace" = Name, Path, description = "the key's namespace"),
           ("key" = ObjectKey, Path, description = "the key, with %2F for a slash")),
    responses((status = 200, description = "the bytes", body = inline(kvasir_api::Binary), content_type = MEDIA_BYTES),
              (status = 206, description = "the range", body = inline(kvasir_api::Binary), content_type = MEDIA_BYTES),
              (status = 304, description = "the given ETag is current")))]
pub(in crate::handlers) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    Path((namespace, key)): Path<(String, String)>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (namespace, key) = (id("namespace", &namespace)?, id("key", &key)?);
    let storage = state.caught_up_storage().await?;
    let object = storage.reads().opaque(&principal.tenant, &namespace, &key).await?;
    let etag = object.etag();
    let mut response = Response::new(Body::empty());
    let answer = response.headers_mut();
    answer.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_BYTES));
    answer.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Ok(etag) = HeaderValue::try_from(&etag) {
        answer.insert(header::ETAG, etag);
    }
    if conditional::is_not_modified(&headers, &etag) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(response);
    }
    let range = conditional::range(&headers, &etag)?;
    let read = if method == Method::HEAD {
        let bytes = object.bytes();
        let wanted = range.resolve(bytes).ok_or(ChunkError::Range { object_bytes: bytes })?;
        ObjectRead::empty(wanted, bytes)
    } else {
        storage.reads().read_opaque(&object, range, &hint::parse(state.cluster(), &headers)?).await?
    };
    Ok(body::ranged(&state, response, read, range != ByteRange::Whole, &method))
}

/// Removes the bytes under a key: reads are refused at once, and the bytes are deleted after the grace
/// period. Other bytes may then be stored under the key.
#[utoipa::path(delete, path = routes::OBJECT, operation_id = "delete_opaque_object", tag = "objects",
    params(("namespace" = Name, Path, description = "the key's namespace"),
           ("key" = ObjectKey, Path, description = "the key, with %2F for a slash")),
    responses((status = 204, description = "removed")))]
pub(in crate::handlers) async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    Path((namespace, key)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (namespace, key) = (id("namespace", &namespace)?, id("key", &key)?);
    state.storage()?.lifecycle().remove_object(&principal.tenant, &namespace, &key).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The sizes of the objects of the leading keys, up to the first that is not stored; with `gaps`, of all
/// stored ones.
#[utoipa::path(post, path = routes::OBJECTS_LOOKUP, operation_id = "lookup_opaque_objects", tag = "objects",
    params(("namespace" = Name, Path, description = "the keys' namespace")),
    request_body = ObjectsLookup,
    responses((status = 200, description = "the stored ones", body = ObjectsResponse)))]
pub(in crate::handlers) async fn lookup(
    State(state): State<AppState>,
    principal: Principal,
    Path(namespace): Path<String>,
    headers: HeaderMap,
    request_body: Body,
) -> Result<Json<ObjectsResponse>, ApiError> {
    let storage = state.caught_up_storage().await?;
    let (namespace, hint): (Name, _) =
        (id("namespace", &namespace)?, hint::parse(state.cluster(), &headers)?);
    let ObjectsLookup { keys, gaps } = body::json(request_body).await?;
    check_count(&keys)?;
    let (reads, parallel) = (storage.reads(), storage.settings().lookup_parallel);
    let info = |object: OpaqueObject| ObjectInfo { bytes: object.bytes() };
    let objects: Vec<_> = if gaps {
        let found = reads.opaque_each(&principal.tenant, &namespace, &keys, parallel);
        found.map_ok(|object| object.map(info)).try_collect().await?
    } else {
        let found = reads.opaque_run(&principal.tenant, &namespace, &keys, parallel, &hint).await?;
        found.into_iter().map(|object| Some(info(object))).collect()
    };
    state.metrics().api().lookup_keys(keys.len(), objects.iter().flatten().count());
    Ok(Json(ObjectsResponse { objects }))
}

/// Reports how many of the leading keys have an object, and why the next one has none.
#[utoipa::path(post, path = routes::OBJECTS_EXPLAIN, operation_id = "explain_opaque_objects", tag = "objects",
    params(("namespace" = Name, Path, description = "the keys' namespace")),
    request_body = ObjectsRequest,
    responses((status = 200, description = "the causes, the most informative first", body = ExplainObjectsResponse)))]
pub(in crate::handlers) async fn explain(
    State(state): State<AppState>,
    principal: Principal,
    Path(namespace): Path<String>,
    request_body: Body,
) -> Result<Json<ExplainObjectsResponse>, ApiError> {
    let storage = state.caught_up_storage().await?;
    let namespace: Name = id("namespace", &namespace)?;
    let ObjectsRequest { keys } = body::json(request_body).await?;
    check_count(&keys)?;
    Ok(Json(storage.explain_objects(&principal.tenant, &namespace, &keys).await?))
}

/// The bytes of the leading keys, up to the first that is not stored: all of each, or a range.
#[utoipa::path(post, path = routes::OBJECTS_READ, operation_id = "read_opaque_objects", tag = "objects",
    params(("namespace" = Name, Path, description = "the keys' namespace")),
    request_body = ReadObjectsRequest,
    responses((status = 200, description = "of each, how many bytes follow, u64 little endian, and these",
               body = inline(kvasir_api::Binary), content_type = MEDIA_OBJECTS)))]
pub(in crate::handlers) async fn read(
    State(state): State<AppState>,
    principal: Principal,
    Path(namespace): Path<String>,
    headers: HeaderMap,
    request_body: Body,
) -> Result<Response, ApiError> {
    let storage = state.caught_up_storage().await?;
    let (namespace, hint): (Name, _) =
        (id("namespace", &namespace)?, hint::parse(state.cluster(), &headers)?);
    let ReadObjectsRequest { keys, ranges } = body::json(request_body).await?;
    check_count(&keys)?;
    if !ranges.is_empty() && ranges.len() != keys.len() {
        let detail = format!("{} ranges for {} keys; give one, or null, for each", ranges.len(), keys.len());
        return Err(ApiError::bad_request(detail));
    }
    let parallel = storage.settings().lookup_parallel.max(1);
    let found = storage.reads().opaque_run(&principal.tenant, &namespace, &keys, parallel, &hint).await?;
    state.metrics().api().lookup_keys(keys.len(), found.len());
    let ranges = ranges.into_iter().chain(iter::repeat(None));
    let asked = found.into_iter().zip(ranges).map(|(object, range)| (wanted(range, object.bytes()), object));
    let asked: Vec<_> = asked.collect();
    let total: u64 = asked.iter().map(|(wanted, _)| LENGTH_BYTES + (wanted.end - wanted.start)).sum();
    let reads = std::sync::Arc::clone(storage.reads());
    // The following objects are opened while the first is sent.
    let bytes = stream::iter(asked).map(move |(wanted, object)| {
        let (reads, hint) = (std::sync::Arc::clone(&reads), hint.clone());
        let opening = Opening::start(async move {
            let length = Bytes::copy_from_slice(&(wanted.end - wanted.start).to_le_bytes());
            let read = reads.read_opaque_range(&object, wanted, &hint).await?;
            Ok(stream::iter([Ok(length)]).chain(read.bytes))
        });
        opening.opened()
    });
    let read = ObjectRead {
        range: 0..total,
        object_bytes: total,
        bytes: bytes.buffered(parallel).try_flatten().boxed(),
    };
    let headers =
        [(header::CONTENT_TYPE, MEDIA_OBJECTS.to_owned()), (header::CONTENT_LENGTH, total.to_string())];
    Ok((headers, body::download(&state, read)).into_response())
}

/// An object that is being opened, until this is dropped. It is opened by a task of its own: while a client does not read, its
/// response is not polled, and a request to the store that stood still would keep its place among all others.
struct Opening<T>(JoinHandle<Result<T, ChunkError>>);

impl<T: Send + 'static> Opening<T> {
    fn start(open: impl Future<Output = Result<T, ChunkError>> + Send + 'static) -> Self {
        Self(tokio::spawn(open))
    }

    async fn opened(mut self) -> Result<T, ChunkError> {
        (&mut self.0).await.map_err(StoreError::Task)?
    }
}

impl<T> Drop for Opening<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The bytes of an object that a read in a batch is for.
fn wanted(range: Option<PayloadRange>, object_bytes: u64) -> Range<u64> {
    let Some(PayloadRange { first, bytes }) = range else { return 0..object_bytes };
    first.min(object_bytes)..first.saturating_add(bytes).min(object_bytes)
}

/// Whether a write must fail if the key has any object: the only condition of a write.
pub(super) fn is_create(headers: &HeaderMap) -> Result<bool, ApiError> {
    match headers.get(header::IF_NONE_MATCH).map(HeaderValue::as_bytes) {
        None => Ok(false),
        Some(b"*") => Ok(true),
        Some(_) => Err(ApiError::bad_request("If-None-Match of a write must be * or absent")),
    }
}

/// The outcome of a write; an error if it must fail because equal bytes were already stored.
pub(super) fn unless_refused(is_create: bool, stored: StoredObject) -> Result<StoredObject, ApiError> {
    if stored.created || !is_create {
        return Ok(stored);
    }
    let detail = "the key already has these bytes; without If-None-Match, storing them again succeeds";
    Err(Problem::new(ErrorCode::ObjectExists, detail).into())
}

/// Size of the length field before an object.
const LENGTH_BYTES: u64 = 8;

fn check_count(keys: &[ObjectKey]) -> Result<(), ApiError> {
    if keys.len() <= ObjectsRequest::KEYS_MAX {
        return Ok(());
    }
    Err(ApiError::bad_request(format!("more than {} keys; send several requests", ObjectsRequest::KEYS_MAX)))
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use tokio::{sync::Semaphore, time::sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn objects_are_opened_while_a_client_does_not_read_and_not_once_it_is_gone() {
        const OBJECTS: u64 = 3;
        let requests = Arc::new(Semaphore::new(OBJECTS as usize));
        let open = |number: u64| {
            let requests = Arc::clone(&requests);
            let opening = Opening::start(async move {
                let _request = requests.acquire().await.expect("is not closed");
                sleep(Duration::from_secs(number)).await;
                Ok(number)
            });
            opening.opened()
        };
        let mut objects = stream::iter(1..=OBJECTS).map(open).buffered(OBJECTS as usize);
        assert_eq!(objects.try_next().await.expect("opens"), Some(1));
        assert_eq!(requests.available_permits(), 1, "the others are being opened");
        sleep(Duration::from_secs(OBJECTS)).await;
        assert_eq!(requests.available_permits(), 3);
        assert_eq!(objects.try_collect::<Vec<_>>().await.expect("open"), [2, 3]);
        let gone = open(60);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(requests.available_permits(), 2);
        drop(gone);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(requests.available_permits(), 3);
    }
}
