//! Keys of opaque objects, chosen by callers.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{ChainKey, ModelId, OBJECT_KEY_BYTES_MAX, SeqHash, hash::FieldHasher};

/// Key of an opaque object in its namespace: 1 to [`OBJECT_KEY_BYTES_MAX`] bytes of UTF-8, compared byte by byte. Not `.` and `..`,
/// which paths of addresses lose.
///
/// ```
/// use kvasir_types::ObjectKey;
///
/// assert!("page/7f3a:0:12".parse::<ObjectKey>().is_ok());
/// assert!("".parse::<ObjectKey>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectKey(String);

/// A key that is empty, too long, or one of the two path segments that URLs drop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "an object's key must have 1 to {OBJECT_KEY_BYTES_MAX} bytes and not be . or ..; this one has {bytes} bytes"
)]
pub struct ObjectKeyError {
    /// Length found.
    pub bytes: usize,
}

impl ObjectKey {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ObjectKey {
    type Error = ObjectKeyError;

    fn try_from(key: String) -> Result<Self, ObjectKeyError> {
        let bytes = key.len();
        let is_fit = (1..=OBJECT_KEY_BYTES_MAX).contains(&bytes) && !matches!(key.as_str(), "." | "..");
        if is_fit { Ok(Self(key)) } else { Err(ObjectKeyError { bytes }) }
    }
}

impl FromStr for ObjectKey {
    type Err = ObjectKeyError;

    fn from_str(key: &str) -> Result<Self, ObjectKeyError> {
        Self::try_from(key.to_owned())
    }
}

impl From<ObjectKey> for String {
    fn from(key: ObjectKey) -> Self {
        key.0
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ModelId {
    /// Replaces a model's id for objects that are named by keys and belong to no model. It is text and cannot
    /// be the id of a spec: those are hashes.
    pub const OPAQUE: Self = Self::of_bytes(*b"kvasir/2: objects named by keys.");
}

impl ChainKey {
    /// Identity of the opaque object with this key: `H keyed by self("kvasir/2/object", key)`. As with block
    /// hashes, a guessed key can only be checked with the namespace's root.
    pub fn object(&self, key: &ObjectKey) -> SeqHash {
        FieldHasher::keyed(self.as_bytes(), "kvasir/2/object").field(key.as_str().as_bytes()).finish().into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for ObjectKey {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        crate::schema::text("Key of an object: 1 to 512 bytes of UTF-8.", "^[\\s\\S]{1,512}$")
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for ObjectKey {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RootHash;

    #[test]
    fn keys_are_counted_in_bytes() {
        assert!("ä".repeat(256).parse::<ObjectKey>().is_ok());
        assert_eq!("ä".repeat(257).parse::<ObjectKey>(), Err(ObjectKeyError { bytes: 514 }));
        assert!(serde_json::from_str::<ObjectKey>("\"\"").is_err());
        assert!(["", ".", ".."].iter().all(|key| key.parse::<ObjectKey>().is_err()));
        assert!("...".parse::<ObjectKey>().is_ok());
    }

    /// FORMAT.md 3.9, computed by another implementation (Python's `blake3`).
    #[test]
    fn known_answer_of_a_key() {
        let key: ObjectKey = "page/7f3a:0:12".parse().expect("a key");
        let hash = RootHash::from([7; 32]).chain_key().object(&key);
        assert_eq!(hash.to_string(), "a1207f7ae08b98e35024260db65bafea783f1dd397334c026be6ae425840d43e");
        let other = RootHash::from([8; 32]).chain_key().object(&key);
        assert_ne!(hash, other, "a namespace has its own");
    }
}
