//! Reports of trainings: how attempts to make a model's next profile ended.

use kvasir_types::ProfileHash;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Maximum number of trainings that a replica keeps per model.
pub const TRAININGS_KEPT_MAX: usize = 8;
/// Longest reason of a training's outcome, in bytes.
pub const TRAINING_REASON_BYTES_MAX: usize = 512;

/// How an attempt to make a model's next profile ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrainingOutcome {
    /// The trained profile was better than the one in force, and is stored.
    Published,
    /// The trained profile was compared with the one in force, and not stored.
    Refused,
    /// The sample was too small to train on.
    TooFewTokens,
    /// No profile could be trained, for example within the limit of its size, or it could not be compared or stored.
    Failed,
}

impl TrainingOutcome {
    /// All outcomes.
    pub const ALL: [Self; 4] = [Self::Published, Self::Refused, Self::TooFewTokens, Self::Failed];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Refused => "refused",
            Self::TooFewTokens => "too_few_tokens",
            Self::Failed => "failed",
        }
    }
}

/// A trainer's report, which the service cannot observe itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainingRecord {
    /// How it ended.
    pub outcome: TrainingOutcome,
    /// Why, as a sentence for people: one line of at most 512 bytes.
    pub reason: String,
    /// Chunks in the sample of what is stored.
    pub sampled_chunks: u64,
    /// Their tokens.
    pub sampled_tokens: u64,
    /// The profile in force, with which the trained one was compared.
    pub in_force: ProfileHash,
    /// The trained profile; absent if none was trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained: Option<ProfileHash>,
    /// Held-out chunks of the comparison.
    #[serde(default)]
    pub held_out_chunks: u64,
    /// Bits per element of these chunks at quality `transparent`, with the profile in force; absent if nothing was
    /// compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force_bits: Option<f32>,
    /// The same with the trained profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_bits: Option<f32>,
}

/// A training that was reported to this replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportedTraining {
    /// When it was reported, in milliseconds since 1970.
    pub received_at_ms: u64,
    /// How it ended.
    pub outcome: TrainingOutcome,
    /// Why, as a sentence for people.
    pub reason: String,
    /// Chunks in the sample of what is stored.
    pub sampled_chunks: u64,
    /// Their tokens.
    pub sampled_tokens: u64,
    /// The profile in force, with which the trained one was compared.
    pub in_force: ProfileHash,
    /// The trained profile; absent if none was trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained: Option<ProfileHash>,
    /// Held-out chunks of the comparison.
    pub held_out_chunks: u64,
    /// Bits per element of these chunks at quality `transparent`, with the profile in force; absent if nothing was
    /// compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force_bits: Option<f32>,
    /// The same with the trained profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_bits: Option<f32>,
}

impl ReportedTraining {
    /// A report that arrived at this time, in milliseconds since 1970.
    pub fn new(record: TrainingRecord, received_at_ms: u64) -> Self {
        Self {
            received_at_ms,
            outcome: record.outcome,
            reason: record.reason,
            sampled_chunks: record.sampled_chunks,
            sampled_tokens: record.sampled_tokens,
            in_force: record.in_force,
            trained: record.trained,
            held_out_chunks: record.held_out_chunks,
            in_force_bits: record.in_force_bits,
            trained_bits: record.trained_bits,
        }
    }
}

/// The latest trainings of a model that were reported to this replica, newest first, at most 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TrainingList {
    /// The trainings.
    pub trainings: Vec<ReportedTraining>,
}
