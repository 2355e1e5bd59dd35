//! The replicas that share the bucket.

use axum::{Json, extract::State};
use kvasir_api::{MembersResponse, routes};

use crate::{auth::Principal, state::AppState};

/// The replicas that share the bucket, so that a client sends each prompt to one that keeps it hot.
#[utoipa::path(get, path = routes::MEMBERS, operation_id = "get_members", tag = "service",
    responses((status = 200, description = "the members, as this replica knows them", body = MembersResponse)))]
pub(in crate::handlers) async fn get(
    State(state): State<AppState>,
    principal: Principal,
) -> Json<MembersResponse> {
    Json(state.cluster().describe(&principal.tenant))
}
