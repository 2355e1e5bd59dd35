//! The hot tier as the storage core uses it: the frames, and the chunk objects and requests they belong to.

use std::sync::Arc;

use kvasir_container::Head;
use kvasir_store::{cache::BoundedMap, layout::ChunkKey};
use kvasir_types::ObjectDigest;

use crate::{index::Scope, limits};

use super::{HotObject, HotTier, RequestLog};

/// A hot tier with the requests and objects that it knows.
#[derive(Debug)]
pub struct HotCache {
    tier: Arc<HotTier>,
    requests: RequestLog,
    /// Objects whose division into frames is known.
    objects: BoundedMap<(Scope, ObjectDigest), Arc<HotObject>>,
}

impl HotCache {
    /// A cache over a tier.
    pub fn new(tier: Arc<HotTier>) -> Self {
        Self {
            tier,
            requests: RequestLog::default(),
            objects: BoundedMap::new(limits::HOT_OBJECTS_MAX, None),
        }
    }

    /// The frames.
    pub fn tier(&self) -> &Arc<HotTier> {
        &self.tier
    }

    /// The recent requests, and their classes.
    pub fn requests(&self) -> &RequestLog {
        &self.requests
    }

    pub(crate) fn object(&self, scope: Scope, digest: ObjectDigest) -> Option<Arc<HotObject>> {
        self.objects.get(&(scope, digest))
    }

    /// Registers how an object is divided into frames; `head` was verified.
    pub(crate) fn register_object(&self, key: &ChunkKey, head: &Head) -> Arc<HotObject> {
        let object = Arc::new(HotObject::new(key, head));
        if object.pieces() <= limits::HOT_OBJECT_PIECES_MAX {
            let scope = Scope::new(&key.tenant, &key.model_id);
            self.objects.insert((scope, key.object_digest), Arc::clone(&object));
        }
        object
    }

    /// Drops the frames of an object that is gone or damaged. Frames of an object that has not been read for
    /// long stay until their space is needed: no lookup offers them, and no read starts from them.
    pub(crate) fn forget(&self, scope: Scope, digest: ObjectDigest) {
        if let Some(object) = self.objects.get(&(scope, digest)) {
            self.tier.remove(&object);
            self.objects.remove(&(scope, digest));
        }
    }
}
