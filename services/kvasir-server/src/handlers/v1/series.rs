//! The last hour of this replica.

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
};
use kvasir_api::{CurvePoint, HotTenant, SeriesNow, SeriesQuery, SeriesResponse, routes};
use kvasir_storage::hot::HotTier;

use crate::{api_error::ApiError, limits, state::AppState};

/// Activity of this replica in the last hour: several metrics over time, and each tenant's use of its hot
/// tier.
#[utoipa::path(get, path = routes::SERIES, operation_id = "get_series", tag = "service", params(SeriesQuery),
    responses((status = 200, description = "the series", body = SeriesResponse)))]
pub(in crate::handlers) async fn get(
    State(state): State<AppState>,
    query: Result<Query<SeriesQuery>, QueryRejection>,
) -> Result<Json<SeriesResponse>, ApiError> {
    let Query(query) = query.map_err(|e| ApiError::bad_request(e.to_string()))?;
    let (times_ms, series) = state.series().after(query.after_ms.unwrap_or_default());
    let tier = state.ready_storage().and_then(|storage| storage.tier()).map(|hot| hot.tier());
    Ok(Json(SeriesResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at_ms: state.series().started_at_ms(),
        step_s: limits::SERIES_STEP.as_secs(),
        times_ms,
        series,
        now: SeriesNow {
            hit_ratio_curve: tier.map(|tier| curve(tier)).unwrap_or_default(),
            hot_tenants: tier.map(|tier| tenants(tier)).unwrap_or_default(),
            breaker_open: state.metrics().breakers_open(),
        },
    }))
}

fn curve(tier: &HotTier) -> Vec<CurvePoint> {
    let ratios = kvasir_eviction::CURVE_SCALES.into_iter().zip(tier.hit_ratio_curve().into_iter().flatten());
    ratios.map(|(memory, hit_ratio)| CurvePoint { memory, hit_ratio }).collect()
}

fn tenants(tier: &HotTier) -> Vec<HotTenant> {
    let mut tenants = tier.usage_by_tenant();
    tenants.sort_by_key(|of| (std::cmp::Reverse(of.ram_bytes + of.disk_bytes), of.tenant.clone()));
    tenants.truncate(limits::HOT_TENANTS_LISTED_MAX);
    let tenant = |of: kvasir_storage::hot::HotTenantUsage| HotTenant {
        tenant: of.tenant,
        cpu_bytes: of.ram_bytes,
        disk_bytes: of.disk_bytes,
    };
    tenants.into_iter().map(tenant).collect()
}
