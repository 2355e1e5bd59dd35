//! Opaque objects: bytes under keys.

use kvasir_types::ObjectKey;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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

/// Asks which objects there are.
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

/// The leading ones of the objects that were asked for, up to the first that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectsResponse {
    /// One for each key, in order, as far as they go.
    pub objects: Vec<ObjectInfo>,
}

/// An object that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectInfo {
    /// Its size.
    pub bytes: u64,
}
