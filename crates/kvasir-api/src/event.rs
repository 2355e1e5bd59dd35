//! What happens to chunks, in the words of prefix-aware routers.

use kvasir_types::{Level, Medium, ModelId, Name, ObjectDigest, SeqHash};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventType {
    /// Blocks can be loaded from `medium`.
    Stored,
    /// Blocks cannot be loaded from `medium` any more.
    Removed,
    /// All blocks of a namespace or model are gone; or the stream lost its place: forget what was heard before.
    Cleared,
}

impl EventType {
    /// All types.
    pub const ALL: [Self; 3] = [Self::Stored, Self::Removed, Self::Cleared];

    /// As on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Removed => "removed",
            Self::Cleared => "cleared",
        }
    }
}

/// One event: the `data` of a server-sent event whose `event` is its type and whose `id` is its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Give it back as `Last-Event-ID` to go on after it.
    pub event_id: String,
    /// When the replica that says so learned of it, in milliseconds since 1970.
    pub timestamp_ms: u64,
    /// What happened.
    pub event_type: EventType,
    /// Whose.
    pub tenant_id: Name,
    /// The namespace, where it is known.
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
    /// Where the bytes are, or were.
    pub medium: Medium,
    /// Finest level that is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// The chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_hash: Option<SeqHash>,
    /// The object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_digest: Option<ObjectDigest>,
    /// Hash of the block before the chunk; of a first chunk, what the root derives for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_hash: Option<SeqHash>,
    /// Index in the context of the first block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_block_idx: Option<u64>,
    /// The first 64 bits of each block's seq_hash, as 16 hex digits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block_hashes: Vec<String>,
    /// Why: of a removal `removed`, `expired`, `evicted`, `duplicate`, `corrupt`; of a clearing `resumed_too_late`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The last event of a stream that the service ends: its reader was too slow and missed events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventsDropped {
    /// Events that are lost to it.
    pub missed: u64,
    /// What to do.
    pub detail: String,
}

/// Query of the event stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Only of this namespace; events whose namespace is not known are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub namespace: Option<Name>,
    /// Only these types, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Option<String>,
    /// Go on after this event; as the header `Last-Event-ID`, which wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}
