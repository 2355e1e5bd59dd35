//! A tenant's records besides chunks: models, profiles, namespaces, and the salts of its chains.

mod models;
mod namespaces;
mod salt_rotation;
mod salts;

use std::{sync::Arc, time::Duration};

use kvasir_store::cache::BoundedMap;
use kvasir_types::{ModelId, ModelSpec, Name, ProfileHash};

use self::salt_rotation::CachedRotations;
pub(crate) use self::salts::Salt;
pub use self::salts::salt_record;
use crate::{bucket::Bucket, index::Scope, limits};

/// Models, profiles, namespaces and salts: read from the bucket, and cached.
#[derive(Debug)]
pub struct Catalog {
    bucket: Arc<Bucket>,
    models: BoundedMap<(Name, ModelId), Arc<ModelSpec>>,
    profiles: BoundedMap<(Scope, ProfileHash), ()>,
    /// By tenant, and whether it was sealed when its salt was read: a tenant that gets a key gets another
    /// salt.
    salts: BoundedMap<(Name, bool), Salt>,
    salt_rotations: BoundedMap<(Name, Name, bool), CachedRotations>,
    /// Age at which the salts of a namespace are read again.
    salt_rotations_fresh: Duration,
    /// Namespaces with a record in the bucket.
    registered: BoundedMap<(Name, Name), ()>,
    /// Namespaces by the hashes known to be in them: their roots, and chunks in their chains.
    labels: BoundedMap<(Scope, [u8; 32]), Name>,
}

impl Catalog {
    pub(crate) fn new(bucket: Arc<Bucket>, salt_rotations_fresh: Duration) -> Self {
        Self {
            bucket,
            models: BoundedMap::new(limits::SPECS_CACHED_MAX, None),
            profiles: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            salts: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            salt_rotations: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            salt_rotations_fresh,
            registered: BoundedMap::new(limits::MODELS_CACHED_MAX, None),
            labels: BoundedMap::new(limits::LINEAGE_MAX, None),
        }
    }
}
