//! Events of chunks, in the terms of prefix-aware routers, and of profiles.

use kvasir_types::{Level, Medium, ModelId, Name, ObjectDigest, ProfileHash, SeqHash};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventType {
    /// Blocks can be loaded from `medium`.
    Stored,
    /// Blocks can no longer be loaded from `medium`.
    Removed,
    /// All blocks of a namespace or model are gone, or the stream lost its position: discard the state built
    /// from earlier events.
    Cleared,
    /// A profile of the model was stored, or a training ended without one. Only from the replica that learned of it
    /// from the caller.
    Profile,
}

impl EventType {
    /// All types.
    pub const ALL: [Self; 4] = [Self::Stored, Self::Removed, Self::Cleared, Self::Profile];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Removed => "removed",
            Self::Cleared => "cleared",
            Self::Profile => "profile",
        }
    }
}

/// One event: the `data` of a server-sent event whose `event` is its type and whose `id` is its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Send it as `Last-Event-ID` to resume after this event.
    pub event_id: String,
    /// When the reporting replica learned of the event, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// Type of the event.
    pub event_type: EventType,
    /// The tenant.
    pub tenant_id: Name,
    /// The namespace, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Name>,
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<ModelId>,
    /// The model's weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Its adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_name: Option<String>,
    /// Tokens of a block.
    pub block_size: u32,
    /// The replica where it happened.
    pub backend_id: Name,
    /// Medium of the bytes, now or before.
    pub medium: Medium,
    /// Finest available level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// The chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_hash: Option<SeqHash>,
    /// The object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_digest: Option<ObjectDigest>,
    /// The profile that was stored, or that was trained and not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_hash: Option<ProfileHash>,
    /// Hash of the block before the chunk; for a first chunk, the value derived from the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_hash: Option<SeqHash>,
    /// Index of the first block in the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_block_idx: Option<u64>,
    /// The first 64 bits of each block's seq_hash, as 16 hex digits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block_hashes: Vec<String>,
    /// Reason: for a removal `removed`, `expired`, `evicted`, `duplicate` or `corrupt`; for a clearing
    /// `resumed_too_late`; for a profile `stored`, or why a training stored none: `refused`, `too_few_tokens`,
    /// `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The last event of a stream that the service ends because its reader was too slow and missed events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventsDropped {
    /// Number of missed events.
    pub missed: u64,
    /// What to do.
    pub detail: String,
}

/// Query of the event stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Only events of this namespace; excludes events whose namespace is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub namespace: Option<Name>,
    /// Only these types, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<String>,
    /// Resume after this event. The header `Last-Event-ID` has the same meaning and takes precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}
