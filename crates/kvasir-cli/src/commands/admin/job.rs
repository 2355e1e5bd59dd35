//! Starts jobs of a running service and follows them to their end.

use std::time::Duration;

use kvasir_api::{ErrorCode, Job, JobRequest, JobState};
use kvasir_client::rest::Client;

use crate::{
    error::{CliError, CliResult, Exit},
    progress::Step,
    service::{AddressArguments, client, client_error, runtime},
};

/// Interval between two polls of a job's state.
const PAUSE: Duration = Duration::from_millis(250);

/// Starts a job and follows it.
pub(super) fn watch(
    service: &AddressArguments,
    request: &JobRequest,
    name: &str,
    summary: impl Fn(&dyn Fn(&str) -> u64) -> String,
) -> CliResult<Job> {
    let client = client(service)?;
    let step = Step::start(name);
    let show = |job: &Job| summary(&|name| job.counts.get(name).copied().unwrap_or(0));
    let job = runtime()?.block_on(follow(&client, request, |job| step.count(&show(job))))?;
    match job.state {
        JobState::Failed => {
            let why = job.error.unwrap_or_default();
            Err(CliError::new(
                Exit::Unavailable,
                format!("the job ended early: {why}"),
                "Run the command again; it resumes.",
            ))
        }
        JobState::Cancelled => Err(CliError::new(
            Exit::Unavailable,
            "the job was cancelled",
            "Run the command again; it resumes.",
        )),
        JobState::Running | JobState::Done => {
            step.done(&show(&job));
            Ok(job)
        }
    }
}

async fn follow(client: &Client, request: &JobRequest, progress: impl Fn(&Job)) -> CliResult<Job> {
    let mut job = client.start_job(request).await.map_err(client_error)?;
    while job.state == JobState::Running {
        progress(&job);
        tokio::time::sleep(PAUSE).await;
        job = client.job(&job.job_id).await.map_err(|error| match error.code() {
            Some(ErrorCode::UnknownJob) => CliError::new(
                Exit::Unavailable,
                format!("job {} can no longer be followed: its replica restarted, or another replica answers", job.job_id),
                "It may still run. Give --url of one replica, not of a balancer; GET /v1/admin/jobs of that replica lists it.",
            ),
            _ => client_error(error),
        })?;
    }
    Ok(job)
}
