//! Usage, reports of loads, and jobs.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    http::StatusCode,
};
use kvasir_api::{ErrorCode, Job, JobList, JobRequest, LoadRecord, Problem, UsageResponse, routes};

use super::{body, path::id};
use crate::{api_error::ApiError, auth::Principal, jobs, state::AppState};

/// What the caller's tenant keeps in the store, by a listing of it.
#[utoipa::path(get, path = routes::USAGE, operation_id = "get_usage", tag = "service",
    responses((status = 200, description = "objects and bytes", body = UsageResponse)))]
pub(in crate::handlers) async fn usage(
    State(state): State<AppState>,
    principal: Principal,
) -> Result<Json<UsageResponse>, ApiError> {
    let quota = state.authenticator().quota(&principal.tenant).stored();
    let usage = state.storage()?.changes().usage(&principal.tenant).await?;
    Ok(Json(UsageResponse { stored_objects_max: quota.objects, stored_bytes_max: quota.bytes, ..usage }))
}

/// Takes a client's word on how a load went, for metrics: only the client sees the end of it.
#[utoipa::path(post, path = routes::LOADS, operation_id = "report_load", tag = "service", request_body = LoadRecord,
    responses((status = 204, description = "counted")))]
pub(in crate::handlers) async fn report_load(
    State(state): State<AppState>,
    request_body: Body,
) -> Result<StatusCode, ApiError> {
    let record: LoadRecord = body::json(request_body).await?;
    state.metrics().api().load(&record);
    Ok(StatusCode::NO_CONTENT)
}

/// Starts a job on this replica. One of a kind runs at a time.
#[utoipa::path(post, path = routes::JOBS, operation_id = "start_job", tag = "admin", request_body = JobRequest,
    responses((status = 202, description = "started", body = Job)))]
pub(in crate::handlers) async fn start_job(
    State(state): State<AppState>,
    request_body: Body,
) -> Result<(StatusCode, Json<Job>), ApiError> {
    let request: JobRequest = body::json(request_body).await?;
    let (storage, metrics) = (Arc::clone(state.storage()?), Arc::clone(state.metrics()));
    let job = jobs::start(state.jobs(), storage, metrics, &request)?;
    Ok((StatusCode::ACCEPTED, Json(job)))
}

/// The jobs that this replica remembers.
#[utoipa::path(get, path = routes::JOBS, operation_id = "list_jobs", tag = "admin",
    responses((status = 200, description = "newest first", body = JobList)))]
pub(in crate::handlers) async fn list_jobs(State(state): State<AppState>) -> Json<JobList> {
    Json(JobList { jobs: state.jobs().list() })
}

/// A job and its progress.
#[utoipa::path(get, path = routes::JOB, operation_id = "get_job", tag = "admin",
    params(("job_id" = uuid::Uuid, Path, description = "the job")),
    responses((status = 200, description = "how far it is", body = Job)))]
pub(in crate::handlers) async fn get_job(
    State(state): State<AppState>,
    Path(job_id): Path<String>,
) -> Result<Json<Job>, ApiError> {
    let job_id = id("job_id", &job_id)?;
    let unknown = || {
        let detail =
            format!("job {job_id} is not known to this replica; it remembers the last few of its own");
        Problem::new(ErrorCode::UnknownJob, detail).into()
    };
    state.jobs().get(job_id).map(Json).ok_or_else(unknown)
}
