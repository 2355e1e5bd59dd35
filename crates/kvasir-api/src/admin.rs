//! Usage, and jobs.

use std::collections::BTreeMap;

use kvasir_types::{ModelId, Name};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// A tenant's usage of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageResponse {
    /// Chunk objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Removed objects whose bytes are deleted after the grace period.
    pub removed_objects: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Profiles.
    pub profiles: u64,
    /// Their bytes.
    pub profile_bytes: u64,
    /// Versions of contexts.
    pub context_versions: u64,
    /// Uploads waiting for their commit.
    pub waiting_uploads: u64,
    /// Model specs, and records of namespaces.
    #[serde(default)]
    pub records: u64,
    /// Bytes of context versions, uploads and model specs; records of namespaces are empty.
    pub other_bytes: u64,
    /// Maximum number of objects of all these kinds; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_objects_max: Option<u64>,
    /// Maximum number of their bytes; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes_max: Option<u64>,
    /// Bytes by model.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub bytes_by_model: BTreeMap<ModelId, u64>,
    /// Seconds since the listing behind these numbers began: it takes minutes where there are millions of objects.
    pub as_of_s_ago: u64,
}

/// Kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// A garbage collection pass.
    Gc,
    /// Reads every object and verifies it against its name.
    Scrub,
    /// Moves a tenant whose data is stored unencrypted to its first key: it gets a new salt, and what lies unencrypted is removed.
    /// Every replica must already have the key.
    Seal,
    /// Adds every chunk of the store to the hot index of this replica, under traffic.
    RebuildIndex,
}

/// Starts a job on the replica that receives the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// Kind of the job.
    pub kind: JobKind,
    /// Only count what would be removed or quarantined; `seal` and `rebuild_index` have no dry run.
    #[serde(default)]
    pub dry_run: bool,
    /// Rate limit of a scrub; 0: none.
    #[serde(default)]
    pub bytes_per_second: u64,
    /// The tenant of a `seal`; other kinds work on all tenants, and refuse it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
}

impl JobRequest {
    /// A job of all tenants, at full speed.
    pub const fn new(kind: JobKind) -> Self {
        Self { kind, dry_run: false, bytes_per_second: 0, tenant: None }
    }
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Running.
    Running,
    /// Completed.
    Done,
    /// Ended early; `error` has the cause.
    Failed,
    /// Stopped by request.
    Cancelled,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Id of the job; only the replica that runs it knows it.
    pub job_id: Uuid,
    /// Kind of the job.
    pub kind: JobKind,
    /// State of the job.
    pub state: JobState,
    /// Whether the job only counts.
    pub dry_run: bool,
    /// The tenant that a `seal` moves to its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
    /// When it began, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// Running time so far, or in total.
    pub elapsed_ms: u64,
    /// Counts by name: objects, bytes, and actions.
    pub counts: BTreeMap<String, u64>,
    /// The cause of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The running and recent jobs of this replica, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// The jobs.
    pub jobs: Vec<Job>,
}
