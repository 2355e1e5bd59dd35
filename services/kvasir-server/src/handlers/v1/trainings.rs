//! Reports of trainings: how attempts to make a model's next profile ended.

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    http::StatusCode,
};
use kvasir_api::{TRAINING_REASON_BYTES_MAX, TrainingList, TrainingOutcome, TrainingRecord, routes};
use kvasir_types::ModelId;

use super::{body, path::id};
use crate::{api_error::ApiError, auth::Principal, state::AppState};

/// Records how an attempt to make a model's next profile ended: only the trainer knows. Metrics count it, events tell
/// of those that stored none, and the latest reports are kept.
#[utoipa::path(post, path = routes::TRAININGS, operation_id = "report_training", tag = "profiles",
    request_body = TrainingRecord,
    params(("model_id" = ModelId, Path, description = "the model")),
    responses((status = 204, description = "recorded")))]
pub(in crate::handlers) async fn report(
    State(state): State<AppState>,
    principal: Principal,
    Path(model_id): Path<String>,
    request_body: Body,
) -> Result<StatusCode, ApiError> {
    let model_id: ModelId = id("model_id", &model_id)?;
    let record: TrainingRecord = body::json(request_body).await?;
    check(&record)?;
    let storage = state.storage()?;
    storage.catalog().model(&principal.tenant, &model_id).await?;
    // Of a profile that was stored, its upload told.
    if record.outcome != TrainingOutcome::Published {
        let outcome = record.outcome.as_str();
        storage.changes().tell_profile(&principal.tenant, model_id, record.trained, outcome);
    }
    state.metrics().api().training(record.outcome);
    state.trainings().keep(&principal.tenant, model_id, record);
    Ok(StatusCode::NO_CONTENT)
}

fn check(record: &TrainingRecord) -> Result<(), ApiError> {
    if record.reason.len() > TRAINING_REASON_BYTES_MAX {
        let detail =
            format!("the reason has {} bytes; send at most {TRAINING_REASON_BYTES_MAX}", record.reason.len());
        return Err(ApiError::bad_request(detail));
    }
    // Others' terminals show it.
    if record.reason.contains(char::is_control) {
        return Err(ApiError::bad_request("the reason must be one line, without control characters"));
    }
    let bits = [record.in_force_bits, record.trained_bits];
    if bits.iter().flatten().any(|bits| !bits.is_finite() || *bits < 0.0) {
        return Err(ApiError::bad_request("bits per element are finite numbers from 0 on"));
    }
    Ok(())
}

/// The latest trainings of a model that were reported to this replica.
#[utoipa::path(get, path = routes::TRAININGS, operation_id = "list_trainings", tag = "profiles",
    params(("model_id" = ModelId, Path, description = "the model")),
    responses((status = 200, description = "newest first", body = TrainingList)))]
pub(in crate::handlers) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Path(model_id): Path<String>,
) -> Result<Json<TrainingList>, ApiError> {
    let model_id: ModelId = id("model_id", &model_id)?;
    state.storage()?.catalog().model(&principal.tenant, &model_id).await?;
    Ok(Json(TrainingList { trainings: state.trainings().last(&principal.tenant, model_id) }))
}
