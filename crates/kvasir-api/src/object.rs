//! Opaque objects: bytes under keys.

use kvasir_types::ObjectKey;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Cause, Problem};

/// Response to storing an object: it is now durable and visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredObject {
    /// Its key.
    pub key: ObjectKey,
    /// Its size.
    pub bytes: u64,
    /// False if the same bytes were already stored.
    pub created: bool,
}

/// Head of a request that stores several objects; their bytes follow in the same order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteObjectsRequest {
    /// The objects.
    #[schema(max_items = 256)]
    pub objects: Vec<NewObject>,
}

/// An object to be stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewObject {
    /// Its key.
    pub key: ObjectKey,
    /// Its size.
    pub bytes: u64,
}

/// Result for each object of a request, in the same order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WriteObjectsResponse {
    /// One entry per object.
    pub objects: Vec<WrittenObject>,
}

/// Result for one object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WrittenObject {
    /// False if the same bytes were already stored, or the object was refused.
    pub created: bool,
    /// Why it was not stored; null: it is durable and visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// Asks why objects are not found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectsRequest {
    /// Their keys, in order of use: each one is needed only if all previous ones are stored.
    #[schema(max_items = 256)]
    pub keys: Vec<ObjectKey>,
}

impl ObjectsRequest {
    /// Maximum number of keys in a request, of every route that takes several.
    pub const KEYS_MAX: usize = 256;
}

/// Requests the bytes of objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadObjectsRequest {
    /// Their keys, in order of use: each one is needed only if all previous ones are stored.
    #[schema(max_items = 256)]
    pub keys: Vec<ObjectKey>,
    /// What is read of each key's object, as many entries as keys; null: all of it. Absent: all of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 256)]
    pub ranges: Vec<Option<PayloadRange>>,
}

/// Bytes of an object, as far as it has them: none of an object that ends before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PayloadRange {
    /// Offset of the first one.
    pub first: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Requests the sizes of stored objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectsLookup {
    /// Their keys, in order of use.
    #[schema(max_items = 256)]
    pub keys: Vec<ObjectKey>,
    /// Whether keys after a missing one are of use as well. Each missing key costs a request to the store.
    #[serde(default)]
    pub gaps: bool,
}

/// The requested objects: the leading ones, up to the first missing one, or with `gaps` all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectsResponse {
    /// One entry per key, in order, as far as they reach; null for a gap.
    pub objects: Vec<Option<ObjectInfo>>,
}

/// How many of these keys are found, and why not more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExplainObjectsResponse {
    /// Number of keys in the request.
    pub keys: usize,
    /// Number of leading keys that have an object now.
    pub found: usize,
    /// The first key without an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ObjectKey>,
    /// Why it has none; the most informative cause first, never empty.
    pub causes: Vec<Cause>,
}

/// A stored object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectInfo {
    /// Its size.
    pub bytes: u64,
}
