//! Profiles.

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use kvasir_api::{MEDIA_PROFILE, ProfileInfo, ProfileLevels, ProfileList, routes};
use kvasir_types::{ModelId, ProfileHash};

use super::{body, path::id};
use crate::{api_error::ApiError, auth::Principal, quota_reservation, state::AppState};

/// The profiles of a model, by hash.
#[utoipa::path(get, path = routes::PROFILES, operation_id = "list_profiles", tag = "profiles",
    params(("model_id" = ModelId, Path, description = "the model")),
    responses((status = 200, description = "its profiles", body = ProfileList)))]
pub(in crate::handlers) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Path(model_id): Path<String>,
) -> Result<Json<ProfileList>, ApiError> {
    let model_id = id("model_id", &model_id)?;
    Ok(Json(state.storage()?.catalog().list_profiles(&principal.tenant, &model_id).await?))
}

/// Stores a profile under the hash of its bytes. Idempotent.
#[utoipa::path(put, path = routes::PROFILE, operation_id = "put_profile", tag = "profiles",
    params(("model_id" = ModelId, Path, description = "the model"),
           ("profile_hash" = ProfileHash, Path, description = "BLAKE3 of the body")),
    request_body(content = inline(kvasir_api::Binary), content_type = MEDIA_PROFILE),
    responses((status = 200, description = "it was already stored", body = ProfileInfo),
              (status = 201, description = "stored", body = ProfileInfo)))]
pub(in crate::handlers) async fn put(
    State(state): State<AppState>,
    principal: Principal,
    Path((model_id, profile_hash)): Path<(String, String)>,
    headers: HeaderMap,
    request_body: Body,
) -> Result<Response, ApiError> {
    let storage = state.storage()?;
    let (model_id, profile_hash) = (id("model_id", &model_id)?, id("profile_hash", &profile_hash)?);
    body::check_length(&headers, storage.settings().profile_bytes_max)?;
    let mut upload = body::upload(&state, request_body);
    let stored = async {
        let reservation = quota_reservation::reserve_body(&state, &principal, &headers).await?;
        let (ingest, tenant) = (storage.ingest(), &principal.tenant);
        let stored = ingest.put_profile(tenant, &model_id, &profile_hash, reservation, &mut upload).await?;
        Ok::<_, ApiError>(stored)
    };
    match stored.await {
        Ok((created, bytes)) => {
            if created {
                state.metrics().api().profile_stored();
            }
            Ok(body::created_or_ok(created, ProfileInfo { profile_hash, bytes, stored_at_ms: None }))
        }
        Err(error) => {
            body::drain(upload).await;
            Err(error)
        }
    }
}

/// A profile's bytes.
#[utoipa::path(get, path = routes::PROFILE, operation_id = "get_profile", tag = "profiles",
    params(("model_id" = ModelId, Path, description = "the model"),
           ("profile_hash" = ProfileHash, Path, description = "the profile")),
    responses((status = 200, description = "its bytes", body = inline(kvasir_api::Binary), content_type = MEDIA_PROFILE)))]
pub(in crate::handlers) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    Path((model_id, profile_hash)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let (model_id, profile_hash) = (id("model_id", &model_id)?, id("profile_hash", &profile_hash)?);
    let read = state.storage()?.catalog().read_profile(&principal.tenant, &model_id, &profile_hash).await?;
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

/// A profile's levels, as measured when it was made.
#[utoipa::path(get, path = routes::PROFILE_LEVELS, operation_id = "get_profile_levels", tag = "profiles",
    params(("model_id" = ModelId, Path, description = "the model"),
           ("profile_hash" = ProfileHash, Path, description = "the profile")),
    responses((status = 200, description = "its levels", body = ProfileLevels)))]
pub(in crate::handlers) async fn levels(
    State(state): State<AppState>,
    principal: Principal,
    Path((model_id, profile_hash)): Path<(String, String)>,
) -> Result<Json<ProfileLevels>, ApiError> {
    let (model_id, profile_hash) = (id("model_id", &model_id)?, id("profile_hash", &profile_hash)?);
    Ok(Json(state.storage()?.catalog().profile_levels(&principal.tenant, &model_id, &profile_hash).await?))
}
