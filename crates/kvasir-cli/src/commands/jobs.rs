//! `kvasir gc` and `kvasir scrub`: jobs on a running service, watched to their end.

use std::time::Duration;

use clap::Args;
use kvasir_api::{Job, JobKind, JobRequest, JobState};
use kvasir_client::Client;

use super::serve::runtime;
use crate::{
    args::ServiceArguments,
    error::{CliError, CliResult, Exit},
    output::{bytes, print_json},
    progress::Step,
    remote::{client, client_error},
};

/// Pause between two looks at a job.
const PAUSE: Duration = Duration::from_millis(250);

/// Arguments of `kvasir gc`.
#[derive(Debug, Args)]
pub(crate) struct GcArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// Only count what would be deleted.
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `kvasir scrub`.
#[derive(Debug, Args)]
pub(crate) struct ScrubArguments {
    /// The service.
    #[command(flatten)]
    service: ServiceArguments,
    /// Read at most so many bytes a second; 0: as fast as it goes.
    #[arg(long, value_name = "N", default_value_t = 0)]
    bytes_per_second: u64,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// One pass of the collector.
pub(crate) fn gc(arguments: &GcArguments) -> CliResult {
    let name = if arguments.dry_run { "counting garbage" } else { "collecting garbage" };
    let request = JobRequest { kind: JobKind::Gc, dry_run: arguments.dry_run, bytes_per_second: 0 };
    let job = watch(&arguments.service, &request, name, |count| {
        format!(
            "{} objects ({}), {} deleted ({}), {} expired, {} duplicates, {} evicted, {} pinned",
            count("objects"),
            bytes(count("bytes")),
            count("deleted"),
            bytes(count("deleted_bytes")),
            count("expired"),
            count("duplicates"),
            count("evicted"),
            count("pinned"),
        )
    })?;
    if arguments.json {
        print_json(&job)?;
    }
    if job.counts.get("led") == Some(&0) {
        return Err(CliError::new(
            Exit::Nothing,
            "another replica is collecting",
            "Its pass does the same work.",
        ));
    }
    Ok(())
}

/// Reads every object and compares it with its name.
pub(crate) fn scrub(arguments: &ScrubArguments) -> CliResult {
    let request =
        JobRequest { kind: JobKind::Scrub, dry_run: false, bytes_per_second: arguments.bytes_per_second };
    let job = watch(&arguments.service, &request, "scrubbing", |count| {
        format!(
            "{} objects ({}) read, {} quarantined, {} unreadable",
            count("objects"),
            bytes(count("bytes")),
            count("quarantined"),
            count("unread"),
        )
    })?;
    if arguments.json {
        print_json(&job)?;
    }
    match job.counts.get("quarantined") {
        None | Some(0) => Ok(()),
        Some(count) => Err(CliError::new(
            Exit::Data,
            format!("{count} objects were corrupt in the store and are quarantined"),
            "They are misses now and will be stored again when they are needed; look after the store.",
        )),
    }
}

/// Starts a job and follows it.
fn watch(
    service: &ServiceArguments,
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
                "Run it again; it goes on.",
            ))
        }
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
        job = client.job(&job.job_id).await.map_err(client_error)?;
    }
    Ok(job)
}
