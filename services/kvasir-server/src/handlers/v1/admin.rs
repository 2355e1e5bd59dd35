//! Usage, jobs, and the audit log.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Path, Query, State, rejection::QueryRejection},
    http::StatusCode,
};
use kvasir_api::{
    AuditList, AuditQuery, ErrorCode, Job, JobList, JobRequest, Problem, Role, UsageResponse, routes,
};

use uuid::Uuid;

use super::{body, path::id};
use crate::{api_error::ApiError, auth::Principal, jobs, state::AppState};

/// Default number of calls in a response.
const AUDIT_CALLS: usize = 100;

/// The stored data of the caller's tenant, from a listing.
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

/// Starts a job on this replica. Only one job of each kind runs at a time.
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

/// The running and recent jobs of this replica.
#[utoipa::path(get, path = routes::JOBS, operation_id = "list_jobs", tag = "admin",
    responses((status = 200, description = "newest first", body = JobList)))]
pub(in crate::handlers) async fn list_jobs(State(state): State<AppState>) -> Json<JobList> {
    Json(JobList { jobs: state.jobs().list() })
}

/// A job and its progress.
#[utoipa::path(get, path = routes::JOB, operation_id = "get_job", tag = "admin",
    params(("job_id" = uuid::Uuid, Path, description = "the job")),
    responses((status = 200, description = "the job and its progress", body = Job)))]
pub(in crate::handlers) async fn get_job(
    State(state): State<AppState>,
    Path(job_id): Path<String>,
) -> Result<Json<Job>, ApiError> {
    let job_id = id("job_id", &job_id)?;
    state.jobs().get(job_id).map(Json).ok_or_else(|| unknown(job_id))
}

/// The latest changes that callers made through this replica, or were refused: of contexts, of chunks and
/// objects removed by hand, of salts, of trainings, of jobs.
#[utoipa::path(get, path = routes::AUDIT, operation_id = "list_audited_calls", tag = "admin", params(AuditQuery),
    responses((status = 200, description = "newest first", body = AuditList)))]
pub(in crate::handlers) async fn audit(
    State(state): State<AppState>,
    principal: Principal,
    query: Result<Query<AuditQuery>, QueryRejection>,
) -> Result<Json<AuditList>, ApiError> {
    let Query(query) = query.map_err(|e| ApiError::bad_request(e.to_string()))?;
    let tenant = match (principal.role, query.tenant) {
        (Role::Operator, tenant) => tenant,
        (_, Some(other)) if other != principal.tenant => {
            let detail = "changes of other tenants need the role operator";
            return Err(Problem::new(ErrorCode::Forbidden, detail).into());
        }
        _ => Some(principal.tenant),
    };
    let calls = state.audit().last(tenant.as_ref(), query.limit.unwrap_or(AUDIT_CALLS));
    Ok(Json(AuditList { calls }))
}

/// Asks a job to stop at its next safe point. Completed work is kept; a finished job stays as it is.
#[utoipa::path(post, path = routes::JOB_CANCEL, operation_id = "cancel_job", tag = "admin",
    params(("job_id" = uuid::Uuid, Path, description = "the job")),
    responses((status = 202, description = "asked to stop; its state becomes `cancelled` once it has stopped", body = Job)))]
pub(in crate::handlers) async fn cancel_job(
    State(state): State<AppState>,
    Path(job_id): Path<String>,
) -> Result<(StatusCode, Json<Job>), ApiError> {
    let job_id = id("job_id", &job_id)?;
    let job = state.jobs().cancel(job_id).ok_or_else(|| unknown(job_id))?;
    Ok((StatusCode::ACCEPTED, Json(job)))
}

fn unknown(job_id: Uuid) -> ApiError {
    let detail = format!("job {job_id} is not known to this replica, which only keeps its own latest jobs");
    Problem::new(ErrorCode::UnknownJob, detail).into()
}
