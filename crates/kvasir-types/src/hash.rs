//! 32-byte BLAKE3 identities, one type each, written as 64 lower-case hex digits.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A string that is not 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hex digits, found {found_chars} characters{}", if *.bad_digit { ", some of them not hex digits" } else { "" })]
pub struct ParseHashError {
    /// Number of characters found.
    pub found_chars: usize,
    /// Whether any of them was not a hex digit.
    pub bad_digit: bool,
}

fn parse_hex(s: &str) -> Result<[u8; 32], ParseHashError> {
    let (mut out, mut seen) = ([0; 32], 0);
    // A wrong digit is noted and does not end the loop, which so has no branch: a lookup has hundreds of hashes.
    for (byte, &[high, low]) in out.iter_mut().zip(s.as_bytes().as_chunks::<2>().0) {
        let (high, low) = (DIGITS_OF[usize::from(high)], DIGITS_OF[usize::from(low)]);
        *byte = high << 4 | low & 15;
        seen |= high | low;
    }
    if s.len() == 64 && seen < 16 {
        return Ok(out);
    }
    let bad_digit = !s.bytes().all(|b| b.is_ascii_hexdigit());
    Err(ParseHashError { found_chars: s.chars().count(), bad_digit })
}

/// What a character stands for; 255 for one that is no hex digit.
const DIGITS_OF: [u8; 256] = {
    let (mut digits, mut at) = ([u8::MAX; 256], 0);
    while at < digits.len() {
        if let Some(digit) = digit(at as u8) {
            digits[at] = digit;
        }
        at += 1;
    }
    digits
};

const fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        b'A'..=b'F' => Some(character - b'A' + 10),
        _ => None,
    }
}

/// The two lower-case hex digits of each byte.
static PAIRS_OF: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let (mut pairs, mut at) = ([[0; 2]; 256], 0);
    while at < pairs.len() {
        pairs[at] = [DIGITS[at >> 4], DIGITS[at & 15]];
        at += 1;
    }
    pairs
};

/// 64 lower-case hex digits. A lookup's response has hundreds of hashes: formatting them byte by byte with
/// `write!` would take half of its time.
struct Hex([u8; 64]);

impl Hex {
    fn of(bytes: &[u8; 32]) -> Self {
        let mut text = [0; 64];
        for (pair, byte) in text.as_chunks_mut().0.iter_mut().zip(bytes) {
            *pair = PAIRS_OF[usize::from(*byte)];
        }
        Self(text)
    }

    fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("hex digits are ASCII")
    }
}

/// Parses a hash from the borrowed text, without an intermediate string.
struct HexVisitor;

impl serde::de::Visitor<'_> for HexVisitor {
    type Value = [u8; 32];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("64 hex digits")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<[u8; 32], E> {
        parse_hex(text).map_err(E::custom)
    }
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

            /// 64 lower-case hex digits in ASCII, as in JSON.
            pub fn to_hex(&self) -> [u8; 64] {
                Hex::of(&self.0).0
            }
        }

        impl From<[u8; 32]> for $name {
            fn from(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(Hex::of(&self.0).as_str())
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
                serializer.serialize_str(Hex::of(&self.0).as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(HexVisitor).map(Self)
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
    /// Identity of a [`ModelSpec`](crate::ModelSpec): engines with equal ids may share bytes.
    ModelId
}
hash_type! {
    /// The root of a namespace's and model's token chains: binds tenant, namespace, server-held salt and
    /// model.
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

impl ModelId {
    pub(crate) const fn of_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
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

    pub(crate) fn keyed(key: &[u8; 32], domain: &str) -> Self {
        Self(blake3::Hasher::new_keyed(key)).field(domain.as_bytes())
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
        let text = format!("{:02X}", 0xab).repeat(31) + "0f";
        assert_eq!(text.parse::<ObjectDigest>().expect("upper case, too").to_string(), text.to_lowercase());
        for wrong in ["g", "/", ":", "@", "`", "G", " "] {
            assert!(
                (text[1..].to_owned() + wrong).parse::<ObjectDigest>().expect_err("not hex").bad_digit,
                "{wrong}"
            );
        }
        assert!("é".repeat(32).parse::<ObjectDigest>().expect_err("not hex").bad_digit);
    }

    #[test]
    fn fields_are_length_prefixed() {
        let joined = FieldHasher::new("t").field(b"ab").field(b"c").finish();
        assert_ne!(joined, FieldHasher::new("t").field(b"a").field(b"bc").finish());
    }
}
