//! Namespaces: where token chains start.

use axum::{Json, body::Body, extract::State};
use kvasir_api::{NamespaceRequest, NamespaceResponse};

use super::body;
use crate::{auth::Caller, handlers::ApiError, state::AppState};

pub(in crate::handlers) async fn post(
    State(state): State<AppState>,
    caller: Caller,
    request_body: Body,
) -> Result<Json<NamespaceResponse>, ApiError> {
    let NamespaceRequest { namespace, model_id } = body::json(request_body).await?;
    let root = state.storage()?.root(&caller.tenant, &namespace, &model_id).await?;
    Ok(Json(NamespaceResponse { root }))
}
