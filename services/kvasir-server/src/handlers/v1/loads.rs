//! Reports of loads.

use axum::{
    Json,
    body::Body,
    extract::{Query, State, rejection::QueryRejection},
    http::StatusCode,
};
use kvasir_api::{LOAD_TIMELINE_MAX, LoadList, LoadRecord, LoadsQuery, routes};

use super::body;
use crate::{api_error::ApiError, auth::Principal, limits, state::AppState};

/// Records a client's report of a load: only the client sees its end. Metrics count it, and the latest
/// reports are kept.
#[utoipa::path(post, path = routes::LOADS, operation_id = "report_load", tag = "service", request_body = LoadRecord,
    responses((status = 204, description = "counted")))]
pub(in crate::handlers) async fn report(
    State(state): State<AppState>,
    principal: Principal,
    request_body: Body,
) -> Result<StatusCode, ApiError> {
    let record: LoadRecord = body::json(request_body).await?;
    let parts =
        record.timeline.as_ref().map_or(0, |timeline| timeline.chunks.len().max(timeline.bandwidth.len()));
    if parts > LOAD_TIMELINE_MAX {
        let detail = format!(
            "the timeline has {parts} parts; join neighbours until there are at most {LOAD_TIMELINE_MAX}"
        );
        return Err(ApiError::bad_request(detail));
    }
    let by_level = record.bytes_by_level.values().chain(record.tokens_by_level.values()).copied();
    let others = [record.loaded_tokens, record.recomputed_tokens, record.direct_bytes, record.saved_gpu_ms];
    if by_level.chain(others).any(|count| count > limits::LOAD_COUNT_MAX) {
        let most = limits::LOAD_COUNT_MAX;
        return Err(ApiError::bad_request(format!("a count of the load is larger than {most}")));
    }
    state.metrics().api().load(&record);
    state.loads().keep(&principal.tenant, record);
    Ok(StatusCode::NO_CONTENT)
}

/// The latest loads of the caller's tenant that were reported to this replica.
#[utoipa::path(get, path = routes::LOADS, operation_id = "list_loads", tag = "service", params(LoadsQuery),
    responses((status = 200, description = "newest first", body = LoadList)))]
pub(in crate::handlers) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    query: Result<Query<LoadsQuery>, QueryRejection>,
) -> Result<Json<LoadList>, ApiError> {
    let Query(query) = query.map_err(|e| ApiError::bad_request(e.to_string()))?;
    Ok(Json(LoadList { loads: state.loads().last(&principal.tenant, query) }))
}
