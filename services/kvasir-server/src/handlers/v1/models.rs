//! Models.

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    response::Response,
};
use kvasir_api::{ModelList, RegisteredModel, Role, routes};
use kvasir_storage::{Catalog, CatalogError};
use kvasir_types::{ModelId, ModelSpec};

use super::{body, path::id};
use crate::{api_error::ApiError, auth::Principal, quota_reservation, state::AppState};

/// Registers a model. Idempotent.
#[utoipa::path(post, path = routes::MODELS, operation_id = "register_model", tag = "models", request_body = ModelSpec,
    responses((status = 200, description = "it was already registered", body = RegisteredModel),
              (status = 201, description = "registered", body = RegisteredModel)))]
pub(in crate::handlers) async fn register(
    State(state): State<AppState>,
    principal: Principal,
    request_body: Body,
) -> Result<Response, ApiError> {
    let spec: ModelSpec = body::json(request_body).await?;
    let (storage, model_id) = (state.storage()?, spec.model_id());
    // Readers, and tenants without room, may refer to a model that is there; only writers may add one.
    match storage.catalog().model(&principal.tenant, &model_id).await {
        Ok(_) => return Ok(body::created_or_ok(false, RegisteredModel { model_id, created: false })),
        Err(CatalogError::UnknownModel { .. }) if principal.role >= Role::Write => {}
        Err(error) => return Err(error.into()),
    }
    let reservation = quota_reservation::reserve(&state, &principal, Catalog::spec_bytes(&spec)?).await?;
    let registered = storage.ingest().register_model(&principal.tenant, spec, reservation).await?;
    Ok(body::created_or_ok(registered.created, registered))
}

/// The models of the caller's tenant.
#[utoipa::path(get, path = routes::MODELS, operation_id = "list_models", tag = "models",
    responses((status = 200, description = "by id", body = ModelList)))]
pub(in crate::handlers) async fn list(
    State(state): State<AppState>,
    principal: Principal,
) -> Result<Json<ModelList>, ApiError> {
    Ok(Json(state.storage()?.catalog().models(&principal.tenant).await?))
}

/// The spec of a registered model.
#[utoipa::path(get, path = routes::MODEL, operation_id = "get_model", tag = "models",
    params(("model_id" = ModelId, Path, description = "the model")),
    responses((status = 200, description = "its spec", body = ModelSpec)))]
pub(in crate::handlers) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    Path(model_id): Path<String>,
) -> Result<Json<ModelSpec>, ApiError> {
    let model_id = id("model_id", &model_id)?;
    let spec = state.storage()?.catalog().model(&principal.tenant, &model_id).await?;
    Ok(Json(ModelSpec::clone(&spec)))
}
