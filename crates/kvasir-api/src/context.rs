//! Named contexts: which chunks belong together, under a uuid.

use std::collections::BTreeMap;

use kvasir_types::{ModelId, Name, SeqHash};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// Most chunks of a context: 1 M tokens in the smallest chunks.
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
    /// Its chunks from the root on; each follows the one before.
    pub chunks: Vec<SeqHash>,
    /// Labels, for lists.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    pub labels: Labels,
    /// Life of this version from its creation on; absent: until it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// Whether the collector spares its chunks while the context is there.
    #[serde(default)]
    pub pinned: bool,
}

/// Changes a context: writes its next version. What is absent stays.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ContextChange {
    /// Other chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Vec<SeqHash>>,
    /// Other labels, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub labels: Option<Labels>,
    /// Another life, from now on; 0: until it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// Pin or unpin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
}

/// One version of a context. Versions never change; the newest wins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Context {
    /// The context.
    pub context_id: Uuid,
    /// This version, from 1 on.
    pub version: u64,
    /// The model.
    pub model_id: ModelId,
    /// The namespace.
    pub namespace: Name,
    /// Its chunks, in order.
    pub chunks: Vec<SeqHash>,
    /// Tokens of all its chunks.
    pub tokens: u64,
    /// Labels.
    #[schema(value_type = BTreeMap<String, String>)]
    pub labels: Labels,
    /// When this version was written, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// Whether the collector spares its chunks.
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
    /// Only contexts whose id begins with this, or that have it in the name or value of a label, in whatever case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(max_length = 256)]
    pub search: Option<String>,
    /// Contexts of a page; 100 unless told, at most 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Uuid>,
}

/// Query of one context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ContextQuery {
    /// Another version than the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// A page of contexts, in the order of their ids, the newest version of each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContextList {
    /// The contexts.
    pub contexts: Vec<Context>,
    /// What to give as `after` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Uuid>,
}

/// The versions of a context that are still there, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContextVersions {
    /// Their numbers.
    pub versions: Vec<u64>,
}
