//! The capability probe.

use axum::{Json, extract::State};
use kvasir_api::{ConfigResponse, LOOKUP_TOKENS_MAX, StoreCapabilities, routes};
use kvasir_types::BLOCK_TOKENS;

use crate::{api_error::ApiError, auth::Principal, state::AppState};

/// Returns this service's capabilities and limits.
#[utoipa::path(get, path = routes::CONFIG, operation_id = "get_config", tag = "service",
    responses((status = 200, description = "capabilities and limits", body = ConfigResponse)))]
pub(in crate::handlers) async fn get(
    State(state): State<AppState>,
    principal: Principal,
) -> Result<Json<ConfigResponse>, ApiError> {
    let storage = state.storage()?;
    let (major, minor) = kvasir_storage::FORMAT_VERSION;
    Ok(Json(ConfigResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        format_versions: vec![format!("{major}.{minor}")],
        block_tokens: BLOCK_TOKENS as u32,
        chunk_bytes_max: storage.settings().chunk_bytes_max,
        lookup_tokens_max: LOOKUP_TOKENS_MAX as u64,
        store: StoreCapabilities {
            kind: storage.store().kind().as_str().to_owned(),
            conditional_create: storage.abilities().conditional_create,
            direct: storage.direct_reads().is_direct(&principal.tenant),
            checksums: storage.direct_reads().has_checksums(),
        },
    }))
}
