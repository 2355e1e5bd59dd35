//! Markers of opaque objects: objects are named by hashes, but a list needs their keys, in order.

use data_encoding::BASE32HEX_NOPAD;
use kvasir_types::{Name, ObjectDigest, ObjectKey};
use object_store::path::Path;

use super::Layout;

/// Marks an opaque object as listed under its key.
///
/// A path contains the key in base32hex without padding, whose digits sort like the bytes, split into
/// segments that file systems accept, and then a hyphen and the object. A slash and a hyphen sort before all
/// digits, so paths sort like their keys, also where a key fills its last segment.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListedKey {
    /// The tenant.
    pub tenant: Name,
    /// The namespace.
    pub namespace: Name,
    /// The key.
    pub key: ObjectKey,
    /// The object. Its name is never reused, so once it is gone the marker may be deleted, whatever else is
    /// written in the meantime.
    pub object_digest: ObjectDigest,
}

/// Digits per segment; a file name may have 255 bytes.
const SEGMENT_DIGITS: usize = 200;

impl ListedKey {
    pub(super) fn path(&self, layout: &Layout) -> Path {
        Self::key_prefix(layout, &self.tenant, &self.namespace, self.key.as_str())
            .join(format!("-{}", self.object_digest))
    }

    /// Prefix of the markers of `key`, or of the first key that begins with it; only markers of smaller keys
    /// sort before it.
    pub fn key_prefix(layout: &Layout, tenant: &Name, namespace: &Name, key: &str) -> Path {
        let digits = BASE32HEX_NOPAD.encode(key.as_bytes());
        let segments = digits.as_bytes().chunks(SEGMENT_DIGITS).map(String::from_utf8_lossy);
        segments.fold(layout.listed_prefix(tenant, namespace), |path, segment| path.join(segment.as_ref()))
    }

    pub(super) fn parse(tenant: &str, namespace: &str, segments: &[&str], object: &str) -> Option<Self> {
        let key = BASE32HEX_NOPAD.decode(segments.concat().as_bytes()).ok()?;
        Some(Self {
            tenant: tenant.parse().ok()?,
            namespace: namespace.parse().ok()?,
            key: String::from_utf8(key).ok()?.parse().ok()?,
            object_digest: object.strip_prefix('-')?.parse().ok()?,
        })
    }
}
