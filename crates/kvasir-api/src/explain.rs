//! Why a lookup missed.

use kvasir_types::{Medium, ModelId, ModelSpec, Name, SeqHash};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Asks why a lookup of these tokens ends where it ends. Answers are about the caller's own tenant only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The model.
    pub model_id: ModelId,
    /// Its spec, where the model may not be registered: says in which field it differs from those that are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<ModelSpec>,
    /// The namespace.
    pub namespace: Name,
    /// The tokens.
    pub tokens: Vec<u32>,
}

/// Why nothing more matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissReason {
    /// Everything matched.
    Stored,
    /// Stored under another model.
    OtherModel,
    /// Stored in another namespace.
    OtherNamespace,
    /// It was there and was removed by request.
    Removed,
    /// It was there and its time to live ended.
    Expired,
    /// It was there and was evicted.
    Evicted,
    /// Its bytes were corrupt in the store.
    Quarantined,
    /// It was sent and not taken, or sent directly and not committed.
    NotAdmitted,
    /// The model matches only as a whole, and the request is not the whole.
    OnlyWhole,
    /// Nothing here ever heard of it; or so long ago that its traces are gone.
    NeverStored,
}

impl MissReason {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Stored,
        Self::OtherModel,
        Self::OtherNamespace,
        Self::Removed,
        Self::Expired,
        Self::Evicted,
        Self::Quarantined,
        Self::NotAdmitted,
        Self::OnlyWhole,
        Self::NeverStored,
    ];

    /// As on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::OtherModel => "other_model",
            Self::OtherNamespace => "other_namespace",
            Self::Removed => "removed",
            Self::Expired => "expired",
            Self::Evicted => "evicted",
            Self::Quarantined => "quarantined",
            Self::NotAdmitted => "not_admitted",
            Self::OnlyWhole => "only_whole",
            Self::NeverStored => "never_stored",
        }
    }
}

/// A field in which two model specs differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldDifference {
    /// The field, as a path: `kv_dtype`, `layers[3].layout.kv_heads`.
    pub field: String,
    /// In the request's model.
    pub asked: String,
    /// In the model that has it.
    pub stored: String,
}

/// One cause, the most telling first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cause {
    /// The cause.
    pub reason: MissReason,
    /// In words, with what to do.
    pub detail: String,
    /// Tokens that would match but for it.
    pub tokens: u64,
    /// The chunk it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_hash: Option<SeqHash>,
    /// When it happened, in milliseconds since 1970 by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
    /// Who did it: `request`, `collector`, `scrub`, `read`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The other model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<ModelId>,
    /// In which fields it differs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<FieldDifference>,
    /// The other namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Name>,
}

/// When and why a matched chunk was evicted from the memory or the disk of the replica that answers: it is slower to read
/// from where it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Departure)]
pub struct ChunkEviction {
    /// The chunk.
    pub seq_hash: SeqHash,
    /// What it left: `cpu` or `disk`.
    pub medium: Medium,
    /// Where its base is now.
    pub now_in: Medium,
    /// Why: `capacity` (its place was worth more to another), `not_admitted` (it was worth less than all that was there),
    /// `expired`, `corrupt`, `removed`.
    pub reason: String,
    /// The lowest level that went.
    pub level: u8,
    /// Bytes that went, as far back as is remembered.
    pub bytes: u64,
    /// How long ago the last of it went, in milliseconds.
    pub ago_ms: u64,
    /// How long that had been there.
    pub age_ms: u64,
    /// How long that had not been used.
    pub idle_ms: u64,
    /// Type of the requests that used it last; empty when unknown.
    pub request_type: String,
    /// Their turn, as a range.
    pub turn: String,
}

/// How far a lookup gets, and why no farther.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainResponse {
    /// Tokens asked about.
    pub tokens: u64,
    /// Tokens that a lookup matches now.
    pub matched_tokens: u64,
    /// Why no more; the most telling first, never empty.
    pub causes: Vec<Cause>,
    /// Of what matches and is not in memory, how it left; what never was there, or longer ago than is remembered, is not
    /// listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub departures: Vec<ChunkEviction>,
}
