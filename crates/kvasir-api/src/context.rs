//! Named contexts: chains of chunks under a UUID.

use std::collections::BTreeMap;

use kvasir_types::{ModelId, Name, SeqHash};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// Maximum number of chunks of a context: 1 M tokens in the smallest chunks.
pub const CONTEXT_CHUNKS_MAX: usize = 4_096;
/// Most labels of a context.
pub const CONTEXT_LABELS_MAX: usize = 32;
/// Longest label value.
pub const LABEL_VALUE_BYTES_MAX: usize = 256;
/// Most contexts of a page.
pub const CONTEXTS_PAGE_MAX: usize = 500;

/// Labels of a context.
pub type Labels = BTreeMap<Name, String>;

/// Creates a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ContextRequest {
    /// The model.
    pub model_id: ModelId,
    /// The namespace.
    pub namespace: Name,
    /// Its chunks in order, starting at the root.
    pub chunks: Vec<SeqHash>,
    /// Labels, for filtering lists.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    pub labels: Labels,
    /// Lifetime of this version from its creation, in seconds; absent: no expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// Whether its chunks are protected from garbage collection while the context exists.
    #[serde(default)]
    pub pinned: bool,
}

/// Changes a context by writing a new version. Absent fields stay the same.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ContextChange {
    /// New list of chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Vec<SeqHash>>,
    /// New set of labels; replaces all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub labels: Option<Labels>,
    /// New lifetime from now, in seconds; 0: no expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// Pin or unpin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
}

impl ContextChange {
    /// Whether it lets go of a pin and changes nothing else.
    pub fn only_unpins(&self) -> bool {
        *self == Self { pinned: Some(false), ..Self::default() }
    }
}

/// One version of a context. Versions are immutable; the newest is current.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Context {
    /// The context.
    pub context_id: Uuid,
    /// Number of this version, from 1.
    pub version: u64,
    /// The model.
    pub model_id: ModelId,
    /// The namespace.
    pub namespace: Name,
    /// Its chunks, in order.
    pub chunks: Vec<SeqHash>,
    /// Number of tokens in all its chunks.
    pub tokens: u64,
    /// Labels.
    #[schema(value_type = BTreeMap<String, String>)]
    pub labels: Labels,
    /// When this version was written, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// Time of expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// Whether its chunks are protected from garbage collection.
    pub pinned: bool,
}

/// Query of a list of contexts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ContextsQuery {
    /// Only contexts with these labels: `name=value`, several separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<String>,
    /// Only contexts whose id begins with this text, or with a label whose name or value contains it,
    /// ignoring case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(max_length = 256)]
    pub search: Option<String>,
    /// Contexts per page; default 100, at most 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `next` of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Uuid>,
}

/// Query of one context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ContextQuery {
    /// A version other than the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// A page of contexts, in the order of their ids, the newest version of each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContextList {
    /// The contexts.
    pub contexts: Vec<Context>,
    /// Value of `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Uuid>,
}

/// The remaining versions of a context, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContextVersions {
    /// Their numbers.
    pub versions: Vec<u64>,
}
