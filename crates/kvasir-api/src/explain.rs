//! Why a lookup missed.

use kvasir_types::{LevelError, Medium, ModelId, ModelSpec, Name, ProfileHash, Quality, SeqHash};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Asks why a lookup of these tokens ends where it does. Only covers the caller's own tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The model.
    pub model_id: ModelId,
    /// Its spec, if the model may not be registered: reveals in which fields it differs from registered ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<ModelSpec>,
    /// The namespace.
    pub namespace: Name,
    /// The tokens.
    pub tokens: Vec<u32>,
}

/// Why no further token matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissReason {
    /// Everything matched.
    Stored,
    /// Stored under another model.
    OtherModel,
    /// Stored in another namespace.
    OtherNamespace,
    /// It was stored, and removed by request.
    Removed,
    /// It was stored, and its time to live expired.
    Expired,
    /// It was stored, and evicted.
    Evicted,
    /// Its bytes were corrupt in the store.
    Quarantined,
    /// It was sent and refused, or sent directly and not committed.
    NotAdmitted,
    /// The model's contexts match only as a whole, and the request is not the whole.
    OnlyWhole,
    /// It was never stored, or so long ago that no trace of it remains.
    NeverStored,
}

impl MissReason {
    /// All reasons.
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

    /// The name on the wire.
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
    /// Value in the request's model.
    pub asked: String,
    /// Value in the model with the stored chunk.
    pub stored: String,
}

/// One cause; the most informative comes first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cause {
    /// The cause.
    pub reason: MissReason,
    /// Explanation with advice.
    pub detail: String,
    /// Tokens that would match without this cause.
    pub tokens: u64,
    /// The affected chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_hash: Option<SeqHash>,
    /// When it happened, in milliseconds since 1970 by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
    /// Actor: `request`, `collector`, `scrub`, `read`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The other model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<ModelId>,
    /// The fields in which it differs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<FieldDifference>,
    /// The other namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Name>,
}

/// When and why a matched chunk was evicted from the memory or the disk of the responding replica: reads from
/// its present location are slower.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Departure)]
pub struct ChunkEviction {
    /// The chunk.
    pub seq_hash: SeqHash,
    /// Medium that it was evicted from: `cpu` or `disk`.
    pub medium: Medium,
    /// Present medium of its base.
    pub now_in: Medium,
    /// Reason: `capacity` (another frame was worth more), `not_admitted` (it was worth less than all cached
    /// frames), `expired`, `corrupt`, `removed`.
    pub reason: String,
    /// Lowest evicted level.
    pub level: u8,
    /// Evicted bytes, as far back as recorded.
    pub bytes: u64,
    /// Time since the last part was evicted, in milliseconds.
    pub ago_ms: u64,
    /// Its age at eviction.
    pub age_ms: u64,
    /// Time since its last use at eviction.
    pub idle_ms: u64,
    /// Type of the requests that last used it; empty if unknown.
    pub request_type: String,
    /// Turn of those requests, as a range.
    pub turn: String,
}

/// A profile of the matched chunks, and the quality that their encoders measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MatchedProfile {
    /// The profile.
    pub profile_hash: ProfileHash,
    /// Matched chunks that were encoded with it.
    pub chunks: u64,
    /// Their matched tokens.
    pub tokens: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The largest error of these chunks at their finest levels, including those of the KV beneath; null if one was not
    /// measured.
    pub error: LevelError,
    /// The best quality that this error satisfies; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    /// The longest chain of computations over lossy KV that a load of these chunks at their finest levels would be.
    pub hops: u8,
}

/// How much a lookup matches, and why it stops there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainResponse {
    /// Tokens in the request.
    pub tokens: u64,
    /// Tokens that a lookup matches now.
    pub matched_tokens: u64,
    /// Why it stops; the most informative first, never empty.
    pub causes: Vec<Cause>,
    /// How matched chunks that are not in memory left it. Chunks that were never in memory, or left it before
    /// the record begins, are not listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub departures: Vec<ChunkEviction>,
    /// The profiles of the matched chunks, in the order of their first chunks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<MatchedProfile>,
}
