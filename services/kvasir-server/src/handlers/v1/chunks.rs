//! Chunk objects.

use std::time::Duration;

use axum::{
    Json,
    body::Body,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::Response,
};
use kvasir_api::{
    ChunkQuery, ChunkSample, ChunkStatus, ChunkUse, MEDIA_CHUNK, ObjectUrl, SampleQuery, StoredChunk, routes,
};
use kvasir_storage::{ByteRange, ChunkError, ObjectRead, PutChunk, Selection, hot::RequestHint};
use kvasir_store::layout::ChunkKey;
use kvasir_types::{ModelId, ObjectDigest, SeqHash};

use super::{body, conditional, hint, path::id, selection};
use crate::{api_error::ApiError, auth::Principal, quota_reservation, state::AppState};

/// Stores a chunk object. The whole object is verified before any of it is visible. Idempotent.
#[utoipa::path(put, path = routes::CHUNK, operation_id = "put_chunk", tag = "chunks",
    params(("model_id" = ModelId, Path, description = "the model"),
           ("seq_hash" = SeqHash, Path, description = "the chunk")),
    request_body(content = inline(kvasir_api::Binary), content_type = MEDIA_CHUNK),
    responses((status = 200, description = "it was already stored", body = StoredChunk),
              (status = 201, description = "durable and visible", body = StoredChunk)))]
pub(in crate::handlers) async fn put(
    State(state): State<AppState>,
    principal: Principal,
    Path((model_id, seq_hash)): Path<(String, String)>,
    headers: HeaderMap,
    request_body: Body,
) -> Result<Response, ApiError> {
    let storage = state.storage()?;
    let (model_id, seq_hash) = (id("model_id", &model_id)?, id("seq_hash", &seq_hash)?);
    body::check_length(&headers, storage.settings().chunk_bytes_max)?;
    let mut put = PutChunk {
        tenant: principal.tenant.clone(),
        model_id,
        seq_hash,
        namespace: hint::namespace(&headers)?,
        hint: hint::parse(state.cluster(), &headers)?,
        announced: hint::announced(&headers)?,
        reservation: None,
    };
    let mut upload = body::upload(&state, request_body);
    let stored = async {
        put.reservation = quota_reservation::reserve_body(&state, &principal, &headers).await?;
        Ok::<_, ApiError>(storage.ingest().put_chunk(put, &mut upload).await?)
    };
    match stored.await {
        Ok(stored) => {
            state.metrics().chunk_stored(stored.created, stored.bytes);
            Ok(body::created_or_ok(stored.created, stored))
        }
        Err(error) => {
            body::drain(upload).await;
            Err(error)
        }
    }
}

/// A sample of a model's chunks in all namespaces, for programs that train a profile.
#[utoipa::path(get, path = routes::SAMPLE, operation_id = "sample_chunks", tag = "chunks",
    params(("model_id" = ModelId, Path, description = "the model"), SampleQuery),
    responses((status = 200, description = "the chunks", body = ChunkSample)))]
pub(in crate::handlers) async fn sample(
    State(state): State<AppState>,
    principal: Principal,
    Path(model_id): Path<String>,
    query: Result<Query<SampleQuery>, QueryRejection>,
) -> Result<Json<ChunkSample>, ApiError> {
    let Query(query) = query.map_err(|e| ApiError::bad_request(e.to_string()))?;
    let model_id = id("model_id", &model_id)?;
    let count = query.chunks.unwrap_or(SampleQuery::CHUNKS_DEFAULT);
    if !(1..=SampleQuery::CHUNKS_MAX).contains(&count) {
        let detail = format!("a sample must have 1 to {} chunks, not {count}", SampleQuery::CHUNKS_MAX);
        return Err(ApiError::bad_request(detail));
    }
    Ok(Json(state.storage()?.reads().sample(&principal.tenant, &model_id, count).await?))
}

/// The preferred object of a chunk: whole, by `Range`, or by level. `HEAD` as well.
#[utoipa::path(get, path = routes::CHUNK, operation_id = "get_chunk", tag = "chunks",
    params(("model_id" = ModelId, Path, description = "the model"),
           ("seq_hash" = SeqHash, Path, description = "the chunk"), ChunkQuery),
    responses((status = 200, description = "the object", body = inline(kvasir_api::Binary), content_type = MEDIA_CHUNK),
              (status = 206, description = "the range", body = inline(kvasir_api::Binary), content_type = MEDIA_CHUNK),
              (status = 304, description = "the given ETag is current")))]
pub(in crate::handlers) async fn get_preferred(
    State(state): State<AppState>,
    principal: Principal,
    Path((model_id, seq_hash)): Path<(String, String)>,
    query: Result<Query<ChunkQuery>, QueryRejection>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (model_id, seq_hash) = (id("model_id", &model_id)?, id("seq_hash", &seq_hash)?);
    let key = state.storage()?.reads().preferred(&principal.tenant, &model_id, &seq_hash).await?;
    let mut response = answer(&state, &key, selection::parse(query)?, &method, &headers).await?;
    // The next time it may be another one, or none.
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    Ok(response)
}

/// One object of a chunk: whole, by `Range`, or by level. `HEAD` as well.
#[utoipa::path(get, path = routes::CHUNK_OBJECT, operation_id = "get_object", tag = "chunks",
    params(("model_id" = ModelId, Path, description = "the model"),
           ("seq_hash" = SeqHash, Path, description = "the chunk"),
           ("object_digest" = ObjectDigest, Path, description = "the object"), ChunkQuery),
    responses((status = 200, description = "the object", body = inline(kvasir_api::Binary), content_type = MEDIA_CHUNK),
              (status = 206, description = "the range", body = inline(kvasir_api::Binary), content_type = MEDIA_CHUNK),
              (status = 304, description = "the given ETag is current")))]
pub(in crate::handlers) async fn get_object(
    State(state): State<AppState>,
    principal: Principal,
    Path(names): Path<(String, String, String)>,
    query: Result<Query<ChunkQuery>, QueryRejection>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let key = object_key(&principal, &names)?;
    answer(&state, &key, selection::parse(query)?, &method, &headers).await
}

/// Removes all objects of a chunk: reads are refused at once, and the bytes are deleted after the grace
/// period.
#[utoipa::path(delete, path = routes::CHUNK, operation_id = "delete_chunk", tag = "chunks",
    params(("model_id" = ModelId, Path, description = "the model"),
           ("seq_hash" = SeqHash, Path, description = "the chunk")),
    responses((status = 204, description = "removed")))]
pub(in crate::handlers) async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    Path((model_id, seq_hash)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (model_id, seq_hash) = (id("model_id", &model_id)?, id("seq_hash", &seq_hash)?);
    state.storage()?.lifecycle().remove_chunk(&principal.tenant, &model_id, &seq_hash).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes one object of a chunk: reads are refused at once, and the bytes are deleted after the grace
/// period.
#[utoipa::path(delete, path = routes::CHUNK_OBJECT, operation_id = "delete_object", tag = "chunks",
    params(("model_id" = ModelId, Path, description = "the model"),
           ("seq_hash" = SeqHash, Path, description = "the chunk"),
           ("object_digest" = ObjectDigest, Path, description = "the object")),
    responses((status = 204, description = "removed")))]
pub(in crate::handlers) async fn delete_object(
    State(state): State<AppState>,
    principal: Principal,
    Path(names): Path<(String, String, String)>,
) -> Result<StatusCode, ApiError> {
    state.storage()?.lifecycle().remove(&object_key(&principal, &names)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A presigned URL of one object: for the first read, or to replace an expired one.
#[utoipa::path(get, path = routes::CHUNK_OBJECT_URL, operation_id = "get_object_url", tag = "direct",
    params(("model_id" = ModelId, Path, description = "the model"),
           ("seq_hash" = SeqHash, Path, description = "the chunk"),
           ("object_digest" = ObjectDigest, Path, description = "the object")),
    responses((status = 200, description = "the URL", body = ObjectUrl)))]
pub(in crate::handlers) async fn url(
    State(state): State<AppState>,
    principal: Principal,
    Path(names): Path<(String, String, String)>,
) -> Result<Json<ObjectUrl>, ApiError> {
    let storage = state.storage()?;
    let (url, expires_in_s) = storage.direct_reads().object_url(&object_key(&principal, &names)?).await?;
    Ok(Json(ObjectUrl { url, expires_in_s }))
}

/// When one object was stored, when it expires, and how this replica used it.
#[utoipa::path(get, path = routes::CHUNK_OBJECT_STATUS, operation_id = "get_object_status", tag = "chunks",
    params(("model_id" = ModelId, Path, description = "the model"),
           ("seq_hash" = SeqHash, Path, description = "the chunk"),
           ("object_digest" = ObjectDigest, Path, description = "the object")),
    responses((status = 200, description = "its status", body = ChunkStatus)))]
pub(in crate::handlers) async fn status(
    State(state): State<AppState>,
    principal: Principal,
    Path(names): Path<(String, String, String)>,
) -> Result<Json<ChunkStatus>, ApiError> {
    let key = object_key(&principal, &names)?;
    let status = state.caught_up_storage().await?.reads().status(&key).await?;
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Ok(Json(ChunkStatus {
        stored_at_ms: status.stored_at_ms,
        expires_at_ms: state.jobs().chunk_ttl().map(|ttl| status.stored_at_ms.saturating_add(ms(ttl))),
        use_here: status.last_use.map(|(ago, uses)| ChunkUse { uses: u64::from(uses), last_ago_ms: ms(ago) }),
    }))
}

fn object_key(
    principal: &Principal,
    (model_id, seq_hash, object): &(String, String, String),
) -> Result<ChunkKey, ApiError> {
    Ok(ChunkKey {
        tenant: principal.tenant.clone(),
        model_id: id("model_id", model_id)?,
        seq_hash: id("seq_hash", seq_hash)?,
        object_digest: id("object_digest", object)?,
    })
}

/// A level, a token prefix and a selection of sections are distinct representations, each with its own length
/// and ETag.
async fn answer(
    state: &AppState,
    key: &ChunkKey,
    (selection, tag): (Selection, String),
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let etag = format!("\"{}{tag}\"", key.object_digest);
    let mut response = Response::new(Body::empty());
    describe(response.headers_mut(), &etag);
    if conditional::is_not_modified(headers, &etag) {
        // Of one that is removed, or was never stored, no copy is current.
        state.caught_up_storage().await?.reads().object_bytes(key).await?;
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(response);
    }
    let range = conditional::range(headers, &etag)?;
    let is_partial = range != ByteRange::Whole;
    let read = open(state, key, &selection, range, method, &hint::parse(state.cluster(), headers)?).await?;
    Ok(body::ranged(state, response, read, is_partial, method))
}

/// The requested read; for HEAD, one that is never opened.
async fn open(
    state: &AppState,
    key: &ChunkKey,
    selection: &Selection,
    range: ByteRange,
    method: &Method,
    hint: &RequestHint,
) -> Result<ObjectRead, ApiError> {
    let storage = state.caught_up_storage().await?;
    if selection.is_scattered() {
        return Ok(storage.reads().read_selection(key, selection, range, hint).await?);
    }
    let length = match selection.level {
        Some(level) => Some(storage.reads().level_bytes(key, level).await?),
        None if method == Method::HEAD => Some(storage.reads().object_bytes(key).await?),
        None => None,
    };
    let Some(length) = length else { return Ok(storage.reads().read(key, range, hint).await?) };
    let within = range.resolve(length).ok_or(ChunkError::Range { object_bytes: length })?;
    if method == Method::HEAD {
        return Ok(ObjectRead::empty(within, length));
    }
    let range = ByteRange::Bounded(within.start, within.end.saturating_sub(1));
    let read = storage.reads().read(key, range, hint).await?;
    Ok(ObjectRead { object_bytes: length, ..read })
}

fn describe(headers: &mut HeaderMap, etag: &str) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_CHUNK));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // An object that is named by its bytes never changes.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=31536000, immutable"));
    if let Ok(etag) = HeaderValue::try_from(etag) {
        headers.insert(header::ETAG, etag);
    }
}
