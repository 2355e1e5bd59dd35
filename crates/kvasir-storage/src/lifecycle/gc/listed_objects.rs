//! Which objects a pass has listed. Under a tombstone whose object is not among them there is nothing to delete. Tombstones
//! are kept for a day, and a request for each of them in each pass would be most of what the collector sends.
//!
//! An object that was listed sets two bits, which its digest names. So an object that was not listed may look as if it was,
//! and cost a request. The other way round no mistake is possible.

use kvasir_store::layout::ChunkKey;
use kvasir_types::ObjectDigest;

use super::{super::Lifecycle, GcPass};
use crate::limits;

const WORD_BITS: usize = u64::BITS as usize;

/// The objects in a pass's units that it has listed, and a few others.
pub(super) struct ListedObjects(Vec<u64>);

impl ListedObjects {
    fn with_bits(bits: usize) -> Self {
        Self(vec![0; bits / WORD_BITS])
    }

    /// The bits of an object.
    fn places(&self, object: &ObjectDigest) -> [usize; 2] {
        let bits = self.0.len() * WORD_BITS;
        let [a, b, c, d, e, f, g, h, ..] = *object.as_bytes();
        [[a, b, c, d], [e, f, g, h]].map(|half| u32::from_be_bytes(half) as usize % bits)
    }

    fn insert(&mut self, object: &ObjectDigest) {
        for place in self.places(object) {
            self.0[place / WORD_BITS] |= 1 << (place % WORD_BITS);
        }
    }

    fn may_have(&self, object: &ObjectDigest) -> bool {
        let is_set = |place: usize| (self.0[place / WORD_BITS] >> (place % WORD_BITS)) & 1 == 1;
        self.places(object).into_iter().all(is_set)
    }
}

impl Lifecycle {
    /// No objects yet. `None` if a tombstone may be listed before its object: a store lists by key, objects first, and units
    /// are listed in this order as well, but a walk of folders takes them as they come.
    pub(super) fn no_objects_listed(&self, lists_all: bool) -> Option<ListedObjects> {
        let has_order = !lists_all || self.bucket.lists_in_order();
        has_order.then(|| ListedObjects::with_bits(limits::GC_LISTED_BITS))
    }
}

impl GcPass<'_> {
    /// An object was listed.
    pub(super) fn note_listed(&mut self, key: &ChunkKey) {
        let is_own = self.owns(key);
        if let Some(listed) = self.listed.as_mut().filter(|_| is_own) {
            listed.insert(&key.object_digest);
        }
    }

    /// Whether the object of a listed tombstone in this pass's units may have been listed.
    pub(super) fn may_have_listed(&self, key: &ChunkKey) -> bool {
        self.listed.as_ref().is_none_or(|listed| listed.may_have(&key.object_digest))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::storage_at, *};

    fn digest(n: u32) -> ObjectDigest {
        ObjectDigest::of(&n.to_le_bytes())
    }

    #[test]
    fn what_was_listed_is_known_and_little_else() {
        // As full as the bits of a pass with a sixteenth of 10⁹ objects.
        let mut listed = ListedObjects::with_bits(1 << 16);
        (0..15_259).for_each(|n| listed.insert(&digest(n)));
        assert!((0..15_259).all(|n| listed.may_have(&digest(n))));
        let others = (100_000..110_000).filter(|n| listed.may_have(&digest(*n))).count();
        assert!((1_100..1_700).contains(&others), "{others} of 10,000, one in seven expected");
    }

    #[tokio::test]
    async fn a_walk_of_folders_says_nothing_of_what_it_has_not_listed_yet() {
        let directory = tempfile::tempdir().expect("a directory");
        let files = format!("file://{}", directory.path().display());
        for (url, known) in [("memory://", [true, true]), (files.as_str(), [false, true])] {
            let storage = storage_at(url).await;
            let knows = |lists_all| storage.lifecycle().no_objects_listed(lists_all).is_some();
            assert_eq!([true, false].map(knows), known, "{url}");
        }
    }
}
