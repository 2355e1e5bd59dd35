//! Usage, and jobs.

use std::collections::BTreeMap;

use kvasir_types::ModelId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// What a tenant keeps in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageResponse {
    /// Chunk objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that are removed and whose bytes go after the grace.
    pub removed_objects: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Profiles.
    pub profiles: u64,
    /// Their bytes.
    pub profile_bytes: u64,
    /// Versions of contexts.
    pub context_versions: u64,
    /// Uploads that wait for their commit.
    pub waiting_uploads: u64,
    /// Bytes of both.
    pub other_bytes: u64,
    /// Most objects that the tenant may have in the store, of all these kinds; no limit where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_objects_max: Option<u64>,
    /// Most bytes of them; no limit where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes_max: Option<u64>,
    /// Bytes by model.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub bytes_by_model: BTreeMap<ModelId, u64>,
    /// Age of the listing behind it.
    pub as_of_s_ago: u64,
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// A pass of the collector.
    Gc,
    /// Reads every object and compares it with its name.
    Scrub,
}

/// Starts a job on the replica that answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// What to do.
    pub kind: JobKind,
    /// Only count what would be removed or quarantined.
    #[serde(default)]
    pub dry_run: bool,
    /// Rate of a scrub; 0: as fast as it goes.
    #[serde(default)]
    pub bytes_per_second: u64,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Under way.
    Running,
    /// Done.
    Done,
    /// Ended early; `error` says why.
    Failed,
    /// Stopped by request.
    Cancelled,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// The job; known to the replica that runs it.
    pub job_id: Uuid,
    /// What it does.
    pub kind: JobKind,
    /// How far it is.
    pub state: JobState,
    /// Only counting.
    pub dry_run: bool,
    /// When it began, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// How long it has been, or was, under way.
    pub elapsed_ms: u64,
    /// Counts by name: objects, bytes, and what was done with them.
    pub counts: BTreeMap<String, u64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The jobs that this replica remembers, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// The jobs.
    pub jobs: Vec<Job>,
}
