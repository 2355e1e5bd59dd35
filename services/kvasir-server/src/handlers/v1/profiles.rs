//! Profiles.

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use kvasir_api::{MEDIA_PROFILE, ProfileInfo, ProfileList};

use super::{body, id};
use crate::{auth::Caller, handlers::ApiError, state::AppState};

pub(in crate::handlers) async fn list(
    State(state): State<AppState>,
    caller: Caller,
    Path(model_id): Path<String>,
) -> Result<Json<ProfileList>, ApiError> {
    let model_id = id("model_id", &model_id)?;
    Ok(Json(state.storage()?.list_profiles(&caller.tenant, &model_id).await?))
}

pub(in crate::handlers) async fn put(
    State(state): State<AppState>,
    caller: Caller,
    Path((model_id, profile_hash)): Path<(String, String)>,
    headers: HeaderMap,
    request_body: Body,
) -> Result<Response, ApiError> {
    let storage = state.storage()?;
    let (model_id, profile_hash) = (id("model_id", &model_id)?, id("profile_hash", &profile_hash)?);
    body::check_length(&headers, storage.settings().profile_bytes_max)?;
    let mut upload = body::upload(&state, request_body);
    match storage.put_profile(&caller.tenant, &model_id, &profile_hash, &mut upload).await {
        Ok((created, bytes)) => Ok(body::created_or_ok(created, ProfileInfo { profile_hash, bytes })),
        Err(error) => {
            body::drain(upload).await;
            Err(error.into())
        }
    }
}

pub(in crate::handlers) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    Path((model_id, profile_hash)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let (model_id, profile_hash) = (id("model_id", &model_id)?, id("profile_hash", &profile_hash)?);
    let read = state.storage()?.read_profile(&caller.tenant, &model_id, &profile_hash).await?;
    let length = read.object_bytes;
    let mut response = Response::new(body::download(&state, read));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_PROFILE));
    headers.insert(header::CONTENT_LENGTH, length.into());
    if let Ok(etag) = HeaderValue::try_from(format!("\"{profile_hash}\"")) {
        headers.insert(header::ETAG, etag);
    }
    Ok(response)
}
