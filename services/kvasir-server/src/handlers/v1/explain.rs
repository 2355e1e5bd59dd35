//! Why a lookup missed.

use axum::{Json, body::Body, extract::State};
use kvasir_api::{ExplainRequest, ExplainResponse, LOOKUP_TOKENS_MAX, routes};

use super::body;
use crate::{api_error::ApiError, auth::Principal, limits, state::AppState};

/// Reports how many of these tokens a lookup matches, and why it stops there.
#[utoipa::path(post, path = routes::EXPLAIN, operation_id = "explain", tag = "chunks",
    request_body = ExplainRequest,
    responses((status = 200, description = "the causes, the most informative first", body = ExplainResponse)))]
pub(in crate::handlers) async fn post(
    State(state): State<AppState>,
    principal: Principal,
    request_body: Body,
) -> Result<Json<ExplainResponse>, ApiError> {
    let request: ExplainRequest = body::json_within(request_body, limits::LOOKUP_JSON_BYTES_MAX).await?;
    if request.tokens.len() > LOOKUP_TOKENS_MAX {
        return Err(ApiError::bad_request(format!(
            "more than {LOOKUP_TOKENS_MAX} tokens; send several requests"
        )));
    }
    Ok(Json(state.caught_up_storage().await?.explain(&principal.tenant, &request).await?))
}
