//! Namespaces: where token chains start.

use std::time::Duration;

use axum::{Json, body::Body, extract::State};
use kvasir_api::{NamespaceRequest, NamespaceResponse, NamespaceRotation, Role, routes};

use super::body;
use crate::{api_error::ApiError, auth::Principal, quota_reservation, state::AppState};

/// The root of a namespace, where its token chains start. The first request for a namespace creates it.
#[utoipa::path(post, path = routes::NAMESPACES, operation_id = "open_namespace", tag = "namespaces",
    request_body = NamespaceRequest,
    responses((status = 200, description = "its root", body = NamespaceResponse)))]
pub(in crate::handlers) async fn post(
    State(state): State<AppState>,
    principal: Principal,
    request_body: Body,
) -> Result<Json<NamespaceResponse>, ApiError> {
    let NamespaceRequest { namespace, model_id } = body::json(request_body).await?;
    let (storage, tenant) = (state.storage()?, &principal.tenant);
    // Readers may ask for a root; only writers leave a record of the namespace.
    let root = match principal.role < Role::Write {
        true => storage.catalog().root(tenant, &namespace, &model_id).await?,
        false => {
            let reservation = quota_reservation::reserve_namespace(&state, &principal, &namespace).await?;
            storage.ingest().open_namespace(tenant, &namespace, &model_id, reservation).await?
        }
    };
    Ok(Json(NamespaceResponse { root }))
}

/// Gives a namespace a new salt and returns its new root. Chunks stored before are found for another
/// `keep_s`, plus at most five seconds until all replicas agree; then the collector removes them.
#[utoipa::path(post, path = routes::NAMESPACE_ROTATION, operation_id = "rotate_namespace", tag = "namespaces",
    request_body = NamespaceRotation,
    responses((status = 200, description = "its new root", body = NamespaceResponse)))]
pub(in crate::handlers) async fn rotate(
    State(state): State<AppState>,
    principal: Principal,
    request_body: Body,
) -> Result<Json<NamespaceResponse>, ApiError> {
    let NamespaceRotation { namespace, model_id, keep_s } = body::json(request_body).await?;
    let keep = keep_s.unwrap_or(NamespaceRotation::KEEP_S_DEFAULT);
    if keep > NamespaceRotation::KEEP_S_MAX {
        let most = NamespaceRotation::KEEP_S_MAX;
        return Err(ApiError::bad_request(format!("keep_s is {keep}; the maximum is {most} (ten years)")));
    }
    let (storage, tenant) = (state.storage()?, &principal.tenant);
    let reservation = quota_reservation::reserve_namespace(&state, &principal, &namespace).await?;
    storage.ingest().open_namespace(tenant, &namespace, &model_id, reservation).await?;
    let keep = Duration::from_secs(keep);
    let root = storage.catalog().rotate_namespace(tenant, &namespace, &model_id, keep).await?;
    Ok(Json(NamespaceResponse { root }))
}
