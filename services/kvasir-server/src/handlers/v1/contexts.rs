//! Named contexts.

use axum::{
    Json,
    body::Body,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::StatusCode,
};
use kvasir_api::{
    Context, ContextChange, ContextList, ContextQuery, ContextRequest, ContextVersions, ContextsQuery,
    LABEL_VALUE_BYTES_MAX, Labels, routes,
};
use kvasir_storage::ContextFilter;

use super::{body, path::id};
use crate::{api_error::ApiError, auth::Principal, quota_reservation, state::AppState};

/// Default number of contexts per page.
const PAGE: usize = 100;

/// Creates a context from a chain of stored chunks.
#[utoipa::path(post, path = routes::CONTEXTS, operation_id = "create_context", tag = "contexts",
    request_body = ContextRequest,
    responses((status = 201, description = "its first version", body = Context)))]
pub(in crate::handlers) async fn create(
    State(state): State<AppState>,
    principal: Principal,
    request_body: Body,
) -> Result<(StatusCode, Json<Context>), ApiError> {
    let request: ContextRequest = body::json(request_body).await?;
    let _reservation = quota_reservation::reserve(&state, &principal, 0).await?;
    let context = state.storage()?.contexts().create(&principal.tenant, request).await?;
    Ok((StatusCode::CREATED, Json(context)))
}

/// Lists contexts in the order of their creation, filtered by labels, page by page.
#[utoipa::path(get, path = routes::CONTEXTS, operation_id = "list_contexts", tag = "contexts",
    params(ContextsQuery),
    responses((status = 200, description = "a page", body = ContextList)))]
pub(in crate::handlers) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    query: Result<Query<ContextsQuery>, QueryRejection>,
) -> Result<Json<ContextList>, ApiError> {
    let Query(query) = query.map_err(|e| ApiError::bad_request(e.to_string()))?;
    let labels = labels(query.labels.as_deref().unwrap_or_default())?;
    let search = query.search.unwrap_or_default();
    if search.len() > LABEL_VALUE_BYTES_MAX {
        return Err(ApiError::bad_request(format!(
            "a search may have at most {LABEL_VALUE_BYTES_MAX} bytes"
        )));
    }
    let (filter, limit) = (ContextFilter { labels, search }, query.limit.unwrap_or(PAGE));
    Ok(Json(state.storage()?.contexts().list(&principal.tenant, &filter, limit, query.after).await?))
}

fn labels(text: &str) -> Result<Labels, ApiError> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = name.parse().map_err(|e| ApiError::bad_request(format!("label {name:?}: {e}")))?;
        Ok((name, value.to_owned()))
    });
    pairs.collect()
}

/// A context: its newest version, or a given one.
#[utoipa::path(get, path = routes::CONTEXT, operation_id = "get_context", tag = "contexts",
    params(("context_id" = uuid::Uuid, Path, description = "the context"), ContextQuery),
    responses((status = 200, description = "the version", body = Context)))]
pub(in crate::handlers) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    Path(context_id): Path<String>,
    query: Result<Query<ContextQuery>, QueryRejection>,
) -> Result<Json<Context>, ApiError> {
    let Query(query) = query.map_err(|e| ApiError::bad_request(e.to_string()))?;
    let context_id = id("context_id", &context_id)?;
    Ok(Json(state.storage()?.contexts().get(&principal.tenant, context_id, query.version).await?))
}

/// Writes a new version of a context: other chunks, labels, lifetime or pin.
#[utoipa::path(patch, path = routes::CONTEXT, operation_id = "change_context", tag = "contexts",
    params(("context_id" = uuid::Uuid, Path, description = "the context")),
    request_body = ContextChange,
    responses((status = 200, description = "the new version", body = Context)))]
pub(in crate::handlers) async fn change(
    State(state): State<AppState>,
    principal: Principal,
    Path(context_id): Path<String>,
    request_body: Body,
) -> Result<Json<Context>, ApiError> {
    let context_id = id("context_id", &context_id)?;
    let change: ContextChange = body::json(request_body).await?;
    // A tenant that is full must be able to let go. A context that is not pinned gets no new version by that.
    let _reservation = match change.only_unpins() {
        true => None,
        false => quota_reservation::reserve(&state, &principal, 0).await?,
    };
    Ok(Json(state.storage()?.contexts().update(&principal.tenant, context_id, change).await?))
}

/// Deletes a context and its pin. Its chunks remain.
#[utoipa::path(delete, path = routes::CONTEXT, operation_id = "delete_context", tag = "contexts",
    params(("context_id" = uuid::Uuid, Path, description = "the context")),
    responses((status = 204, description = "deleted")))]
pub(in crate::handlers) async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    Path(context_id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let context_id = id("context_id", &context_id)?;
    state.storage()?.contexts().delete(&principal.tenant, context_id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The remaining versions of a context.
#[utoipa::path(get, path = routes::CONTEXT_VERSIONS, operation_id = "list_context_versions", tag = "contexts",
    params(("context_id" = uuid::Uuid, Path, description = "the context")),
    responses((status = 200, description = "their numbers, oldest first", body = ContextVersions)))]
pub(in crate::handlers) async fn versions(
    State(state): State<AppState>,
    principal: Principal,
    Path(context_id): Path<String>,
) -> Result<Json<ContextVersions>, ApiError> {
    let context_id = id("context_id", &context_id)?;
    let versions = state.storage()?.contexts().versions(&principal.tenant, context_id).await?;
    Ok(Json(ContextVersions { versions }))
}
