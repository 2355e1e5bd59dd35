//! Opaque objects: bytes under keys.

use kvasir_types::ObjectKey;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Cause, Problem};

/// Answer to storing an object: from here on it is durable and visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredObject {
    /// Its key.
    pub key: ObjectKey,
    /// Its size.
    pub bytes: u64,
    /// False when the very same bytes were there already.
    pub created: bool,
}

/// Head of a request that stores several objects, whose bytes follow it in the same order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteObjectsRequest {
    /// What they are.
    #[schema(max_items = 256)]
    pub objects: Vec<NewObject>,
}

/// An object that is to be stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewObject {
    /// Its key.
    pub key: ObjectKey,
    /// Its size.
    pub bytes: u64,
}

/// What became of each object of a request, in its order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WriteObjectsResponse {
    /// One for each.
    pub objects: Vec<WrittenObject>,
}

/// What became of an object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WrittenObject {
    /// False when the very same bytes were there already, or it was refused.
    pub created: bool,
    /// Why it was not stored; none: it is durable and visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// Asks for the bytes of objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectsRequest {
    /// Their keys, in the order in which they are of use: each as long as all before it are there.
    #[schema(max_items = 256)]
    pub keys: Vec<ObjectKey>,
}

impl ObjectsRequest {
    /// Most keys of a request.
    pub const KEYS_MAX: usize = 256;
}

/// Asks how large objects are, where they are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectsLookup {
    /// Their keys, in the order in which they are of use.
    #[schema(max_items = 256)]
    pub keys: Vec<ObjectKey>,
    /// Whether keys behind one that is not there are of use, too. Each that is not there costs a request to the store.
    #[serde(default)]
    pub gaps: bool,
}

/// The objects that were asked for: the leading ones, up to the first that is not there, or with gaps all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectsResponse {
    /// One for each key, in order, as far as they go; null for a gap.
    pub objects: Vec<Option<ObjectInfo>>,
}

/// How far a request for these keys gets, and why no farther.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExplainObjectsResponse {
    /// Keys asked about.
    pub keys: usize,
    /// Leading ones that have an object now.
    pub found: usize,
    /// The first that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ObjectKey>,
    /// Why it has none; the most telling first, never empty.
    pub causes: Vec<Cause>,
}

/// An object that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectInfo {
    /// Its size.
    pub bytes: u64,
}
