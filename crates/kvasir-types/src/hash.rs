//! 32-byte BLAKE3 identities, one type each, written as 64 lower-case hex digits.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A string that is not 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hex digits, found {found_chars} characters{}", if *.bad_digit { ", some of them no hex digits" } else { "" })]
pub struct ParseHashError {
    /// Length of what was found.
    pub found_chars: usize,
    /// Whether a character was no hex digit.
    pub bad_digit: bool,
}

fn parse_hex(s: &str) -> Result<[u8; 32], ParseHashError> {
    let bad_digit = !s.bytes().all(|b| b.is_ascii_hexdigit());
    let error = ParseHashError { found_chars: s.chars().count(), bad_digit };
    if s.len() != 64 || bad_digit {
        return Err(error);
    }
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(s.as_bytes().chunks_exact(2)) {
        let digits = str::from_utf8(pair).map_err(|_| error.clone())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| error.clone())?;
    }
    Ok(out)
}

macro_rules! hash_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// The 32 bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl From<[u8; 32]> for $name {
            fn from(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = ParseHashError;

            fn from_str(s: &str) -> Result<Self, ParseHashError> {
                parse_hex(s).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                crate::schema::text(concat!("64 lower-case hex digits: a ", stringify!($name), "."), "^[0-9a-fA-F]{64}$")
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}
    };
}

hash_type! {
    /// Identity of a [`ModelSpec`](crate::ModelSpec): engines that agree on it may share bytes.
    ModelId
}
hash_type! {
    /// Start of a token chain: binds tenant, namespace, server-held salt and model.
    RootHash
}
hash_type! {
    /// Rolling identity of a block *and of everything before it*; a chunk's is its last block's.
    SeqHash
}
hash_type! {
    /// BLAKE3 of a chunk object's bytes; it names the object, so a name is never reused for other bytes.
    ObjectDigest
}
hash_type! {
    /// BLAKE3 of a profile's bytes; bitstreams name their profile by it.
    ProfileHash
}

impl ObjectDigest {
    /// The digest of a whole object.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl ProfileHash {
    /// The hash of a whole profile file.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

/// BLAKE3 over length-prefixed fields, so that no two field lists collide by concatenation.
pub(crate) struct FieldHasher(blake3::Hasher);

impl FieldHasher {
    pub(crate) fn new(domain: &str) -> Self {
        Self(blake3::Hasher::new()).field(domain.as_bytes())
    }

    pub(crate) fn field(mut self, bytes: &[u8]) -> Self {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips_and_rejects() {
        let digest = ObjectDigest::of(b"kvasir");
        assert_eq!(digest.to_string().parse::<ObjectDigest>(), Ok(digest));
        assert_eq!("ab".parse::<ObjectDigest>(), Err(ParseHashError { found_chars: 2, bad_digit: false }));
        assert!("é".repeat(32).parse::<ObjectDigest>().expect_err("not hex").bad_digit);
    }

    #[test]
    fn fields_are_length_prefixed() {
        let joined = FieldHasher::new("t").field(b"ab").field(b"c").finish();
        assert_ne!(joined, FieldHasher::new("t").field(b"a").field(b"bc").finish());
    }
}
