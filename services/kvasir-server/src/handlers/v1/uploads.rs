//! Direct uploads.

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    http::StatusCode,
    response::Response,
};
use kvasir_api::{StoredChunk, UploadRequest, UploadTicket, routes};

use super::{body, path::id};
use crate::{api_error::ApiError, auth::Principal, quota_reservation, state::AppState};

/// Announces a chunk object that will be sent to the object store directly.
#[utoipa::path(post, path = routes::UPLOADS, operation_id = "announce_upload", tag = "direct",
    request_body = UploadRequest,
    responses((status = 201, description = "where to send it", body = UploadTicket)))]
pub(in crate::handlers) async fn announce(
    State(state): State<AppState>,
    principal: Principal,
    request_body: Body,
) -> Result<(StatusCode, Json<UploadTicket>), ApiError> {
    let request: UploadRequest = body::json(request_body).await?;
    let _reservation = quota_reservation::reserve(&state, &principal, request.bytes).await?;
    let ticket = state.storage()?.direct_uploads().announce_upload(&principal.tenant, &request).await?;
    Ok((StatusCode::CREATED, Json(ticket)))
}

/// Checks an upload and makes it visible. May be repeated.
#[utoipa::path(post, path = routes::UPLOAD_COMMIT, operation_id = "commit_upload", tag = "direct",
    params(("upload_id" = uuid::Uuid, Path, description = "the ticket's")),
    responses((status = 200, description = "it was already stored", body = StoredChunk),
              (status = 201, description = "durable and visible", body = StoredChunk)))]
pub(in crate::handlers) async fn commit(
    State(state): State<AppState>,
    principal: Principal,
    Path(upload_id): Path<String>,
) -> Result<Response, ApiError> {
    let upload_id = id("upload_id", &upload_id)?;
    let _reservation = quota_reservation::reserve_commit(&state, &principal, upload_id).await?;
    let stored = state.storage()?.direct_uploads().commit_upload(&principal.tenant, upload_id).await?;
    state.metrics().chunk_stored(stored.created, stored.bytes);
    Ok(body::created_or_ok(stored.created, stored))
}
