//! Namespaces: where token chains start.

use axum::{Json, body::Body, extract::State};
use kvasir_api::{NamespaceRequest, NamespaceResponse, routes};

use super::body;
use crate::{auth::Caller, handlers::ApiError, state::AppState};

/// The root of a namespace, where its token chains start. A namespace comes into being by being asked for.
#[utoipa::path(post, path = routes::NAMESPACES, operation_id = "open_namespace", tag = "namespaces",
    request_body = NamespaceRequest,
    responses((status = 200, description = "its root", body = NamespaceResponse)))]
pub(in crate::handlers) async fn post(
    State(state): State<AppState>,
    caller: Caller,
    request_body: Body,
) -> Result<Json<NamespaceResponse>, ApiError> {
    let NamespaceRequest { namespace, model_id } = body::json(request_body).await?;
    let root = state.storage()?.open_namespace(&caller.tenant, &namespace, &model_id).await?;
    Ok(Json(NamespaceResponse { root }))
}
