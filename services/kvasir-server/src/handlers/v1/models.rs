//! Models.

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    response::Response,
};
use kvasir_api::{RegisteredModel, Role};
use kvasir_types::ModelSpec;

use super::{body, id};
use crate::{auth::Caller, handlers::ApiError, state::AppState};

pub(in crate::handlers) async fn register(
    State(state): State<AppState>,
    caller: Caller,
    request_body: Body,
) -> Result<Response, ApiError> {
    let spec: ModelSpec = body::json(request_body).await?;
    // Readers say which model they have; a new one is for writers to bring.
    if caller.role < Role::Write {
        let model_id = spec.model_id();
        state.storage()?.model(&caller.tenant, &model_id).await?;
        return Ok(body::created_or_ok(false, RegisteredModel { model_id, created: false }));
    }
    let registered = state.storage()?.register_model(&caller.tenant, spec).await?;
    Ok(body::created_or_ok(registered.created, registered))
}

pub(in crate::handlers) async fn get(
    State(state): State<AppState>,
    caller: Caller,
    Path(model_id): Path<String>,
) -> Result<Json<ModelSpec>, ApiError> {
    let model_id = id("model_id", &model_id)?;
    let spec = state.storage()?.model(&caller.tenant, &model_id).await?;
    Ok(Json(ModelSpec::clone(&spec)))
}
