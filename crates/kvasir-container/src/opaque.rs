//! Writing opaque objects: bytes that somebody else gives a meaning, under a key.
//!
//! They are cut into pieces of [`OPAQUE_PIECE_BYTES`], each a section of its own, so that whatever reads, checks, caches and
//! seals chunk objects does the same with them.

use kvasir_types::{ChainKey, Level, ModelId, ObjectKey, ProfileHash};

use crate::{
    error::{ContainerError, Part},
    extensions::{self, Extension, KIND_CONTENT, KIND_KEY},
    fields::{put, wide},
    header::{ChunkHeader, FLAG_OPAQUE},
    limits::{
        BLOCK_HASH_BYTES, EXTENSION_ENTRY_BYTES, OPAQUE_PIECE_BYTES, PIECE_ENTRY_BYTES, SECTION_ENTRY_BYTES,
        SECTIONS_MAX,
    },
};

/// The description of an opaque object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opaque {
    key: ObjectKey,
    payload_digest: [u8; 32],
    written_ms: u64,
}

impl Opaque {
    /// Its key.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// BLAKE3 of its bytes, without the head.
    pub fn payload_digest(&self) -> &[u8; 32] {
        &self.payload_digest
    }

    /// When it was written, in milliseconds since 1970 by the store's clock, as far as its writer knew it.
    pub fn written_ms(&self) -> u64 {
        self.written_ms
    }

    /// Reads the extensions of an opaque object, which must have both kinds; other objects must have neither.
    /// They begin at offset `at`.
    pub(crate) fn of(
        header: &ChunkHeader,
        extensions: &[Extension],
        at: u64,
    ) -> Result<Option<Self>, ContainerError> {
        let data =
            |kind| extensions.iter().find(|extension| extension.kind == kind).map(|found| &found.data[..]);
        let bad = |field, rule, actual: usize| ContainerError::Field {
            offset: at,
            field,
            rule,
            actual: wide(actual),
        };
        match (data(KIND_KEY), data(KIND_CONTENT)) {
            (Some(key), Some(content)) if header.is_opaque() => {
                let parsed = str::from_utf8(key).ok().and_then(|text| text.parse().ok());
                let rule = "must be a key of 1 to 512 bytes of UTF-8";
                let key = parsed.ok_or(bad("extension.key", rule, key.len()))?;
                let fields = content.split_first_chunk::<32>().filter(|_| content.len() == CONTENT_BYTES);
                let fields = fields.and_then(|(digest, nonce)| Some((digest, nonce.first_chunk::<8>()?)));
                let (digest, written) =
                    fields.ok_or(bad("extension.content", "must have 48 bytes", content.len()))?;
                Ok(Some(Self { key, payload_digest: *digest, written_ms: u64::from_le_bytes(*written) }))
            }
            (None, None) if !header.is_opaque() => Ok(None),
            (key, _) => {
                let rule = "an opaque object must have a key and a content; other objects must have neither";
                Err(bad("extension", rule, usize::from(key.is_some())))
            }
        }
    }
}

/// The payload's digest, when it was written, and a number of its writer's.
const CONTENT_BYTES: usize = 32 + 8 + 8;

/// Makes the head of an opaque object from its bytes while they stream by; it holds none of them.
#[derive(Debug)]
pub struct OpaqueHead {
    header: ChunkHeader,
    /// The key; the content follows.
    extensions: Vec<u8>,
    /// Length and CRC32C of the pieces so far; the last one may be short of its end.
    pieces: Vec<(u32, u32)>,
    left: u64,
}

impl OpaqueHead {
    /// The head of an object of `payload_bytes` bytes.
    ///
    /// # Errors
    /// [`ContainerError::Field`] for more than an object may have.
    pub fn new(chain_key: ChainKey, key: &ObjectKey, payload_bytes: u64) -> Result<Self, ContainerError> {
        let mut extensions = Vec::new();
        let data = key.as_str().as_bytes().to_vec();
        extensions::write(&Extension { kind: KIND_KEY, required: true, data }, &mut extensions);
        let extension_bytes =
            extensions.len().saturating_add(EXTENSION_ENTRY_BYTES).saturating_add(CONTENT_BYTES);
        let sections = payload_bytes.div_ceil(u64::from(OPAQUE_PIECE_BYTES));
        let too_many = ContainerError::Field {
            offset: 6,
            field: "section_count",
            rule: "must be at most 16384",
            actual: sections,
        };
        let section_count = u16::try_from(sections).ok().filter(|&count| usize::from(count) <= SECTIONS_MAX);
        let mut header = ChunkHeader {
            flags: FLAG_OPAQUE,
            model_id: ModelId::OPAQUE,
            profile_hash: ProfileHash::from([0; 32]),
            parent_hash: [0; 32],
            chain_key,
            seq_hash: chain_key.object(key),
            first_position: 0,
            token_count: 0,
            preceding_token: None,
            section_count: section_count.ok_or(too_many)?,
            span_count: 1,
            level_count: 1,
            exact_tokens: 0,
            kl_beneath: 0.0,
            tokens_bytes: 0,
            extension_bytes: u32::try_from(extension_bytes).unwrap_or(u32::MAX),
            directory_crc: 0,
            tokens_crc: 0,
            object_bytes: 0,
        };
        header.object_bytes = header.head_bytes().saturating_add(payload_bytes);
        header.check()?;
        Ok(Self { header, extensions, pieces: Vec::new(), left: payload_bytes })
    }

    /// Bytes of the head, which precede the payload.
    pub fn head_bytes(&self) -> usize {
        usize::try_from(self.header.head_bytes()).unwrap_or(usize::MAX)
    }

    /// Takes the next bytes of the payload.
    ///
    /// # Errors
    /// [`ContainerError::Trailing`] for more than were announced.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), ContainerError> {
        self.left = self
            .left
            .checked_sub(wide(bytes.len()))
            .ok_or(ContainerError::Trailing { expected: self.header.object_bytes })?;
        while !bytes.is_empty() {
            let free = |&(length, _): &(u32, u32)| OPAQUE_PIECE_BYTES.saturating_sub(length);
            let free = match self.pieces.last().map(free) {
                Some(free) if free > 0 => free,
                _ => {
                    self.pieces.push((0, 0));
                    OPAQUE_PIECE_BYTES
                }
            };
            let taken = bytes.len().min(usize::try_from(free).unwrap_or(usize::MAX));
            let (now, later) = bytes.split_at_checked(taken).unwrap_or((bytes, &[]));
            if let Some((length, crc)) = self.pieces.last_mut() {
                *length = length.saturating_add(u32::try_from(taken).unwrap_or(u32::MAX));
                *crc = crc32c::crc32c_append(*crc, now);
            }
            bytes = later;
        }
        Ok(())
    }

    /// The bytes of the head. `payload_digest` is the BLAKE3 of the payload. `written_ms`, the store's time in milliseconds since 1970,
    /// and a random `nonce` make the object another one than all others of the same key and payload.
    ///
    /// # Errors
    /// [`ContainerError::Truncated`] where the payload is shorter than was announced.
    pub fn finish(
        mut self,
        payload_digest: [u8; 32],
        written_ms: u64,
        nonce: u64,
    ) -> Result<Vec<u8>, ContainerError> {
        if self.left > 0 {
            let (section, expected) = (self.pieces.len().saturating_sub(1), self.header.object_bytes);
            let (part, actual) = (Part::Piece { section, span: 0 }, expected.saturating_sub(self.left));
            return Err(ContainerError::Truncated { part, expected, actual });
        }
        let entries = SECTION_ENTRY_BYTES.saturating_add(PIECE_ENTRY_BYTES).saturating_mul(self.pieces.len());
        let mut directory = Vec::with_capacity(entries.saturating_add(BLOCK_HASH_BYTES));
        directory.extend(self.header.seq_hash.as_bytes().iter().take(BLOCK_HASH_BYTES));
        for number in 0..self.header.section_count {
            let mut entry = [0; SECTION_ENTRY_BYTES];
            put(&mut entry, 0, &number.to_le_bytes());
            put(&mut entry, 3, &[Level::BASE.0]);
            directory.extend(entry);
        }
        for (bytes, crc) in &self.pieces {
            directory.extend(bytes.to_le_bytes());
            directory.extend(crc.to_le_bytes());
        }
        let data = [&payload_digest[..], &written_ms.to_le_bytes(), &nonce.to_le_bytes()].concat();
        extensions::write(&Extension { kind: KIND_CONTENT, required: true, data }, &mut self.extensions);
        directory.append(&mut self.extensions);
        self.header.directory_crc = crc32c::crc32c(&directory);
        Ok([&self.header.to_bytes()[..], &directory].concat())
    }
}

#[cfg(test)]
mod tests {
    use kvasir_types::RootHash;
    use proptest::prelude::*;

    use super::*;
    use crate::{Head, ObjectVerifier, limits::HEADER_BYTES};

    fn key(text: &str) -> ObjectKey {
        text.parse().expect("a key")
    }

    fn object(text: &str, payload: &[u8], cut: usize) -> Vec<u8> {
        let chain_key = RootHash::from([7; 32]).chain_key();
        let mut head = OpaqueHead::new(chain_key, &key(text), wide(payload.len())).expect("fits");
        let head_bytes = head.head_bytes();
        payload.chunks(cut).for_each(|part| head.push(part).expect("as announced"));
        let head = head.finish([5; 32], 6, 7).expect("whole");
        assert_eq!(head.len(), head_bytes);
        [&head[..], payload].concat()
    }

    fn verified(bytes: &[u8]) -> Result<Head, ContainerError> {
        let mut verifier = ObjectVerifier::new();
        verifier.push(bytes)?;
        let head = verifier.finish()?;
        head.verify_chain()?;
        Ok(head)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Whatever the cuts, the object is the same, verifies, and every flipped bit is noticed.
        #[test]
        fn objects_verify_and_damage_is_noticed(
            bytes in 0usize..3_000_000, cut in 1usize..700_000, text in "[ -~]{1,80}",
            at in any::<prop::sample::Index>(), bit in 0u8..8,
        ) {
            let payload: Vec<u8> = (0..bytes).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect();
            let whole = object(&text, &payload, cut);
            prop_assert_eq!(&whole, &object(&text, &payload, 4_096));
            let head = verified(&whole).expect("sound");
            let opaque = head.opaque().expect("is one");
            prop_assert_eq!((opaque.key().as_str(), opaque.payload_digest()), (&text[..], &[5; 32]));
            prop_assert_eq!(opaque.written_ms(), 6);
            prop_assert_eq!(&whole[head.header.head_bytes() as usize..], &payload[..]);
            prop_assert_eq!(head.level_bytes(Level::BASE), Some(wide(whole.len())));
            let mut flipped = whole;
            let length = flipped.len();
            flipped[at.index(length)] ^= 1 << bit;
            prop_assert!(verified(&flipped).is_err());
        }
    }

    #[test]
    fn a_payload_is_as_long_as_announced() {
        let chain_key = RootHash::from([7; 32]).chain_key();
        let mut head = OpaqueHead::new(chain_key, &key("a"), 3).expect("fits");
        head.push(b"ab").expect("fits");
        assert!(matches!(head.push(b"cd"), Err(ContainerError::Trailing { .. })));
        let mut head = OpaqueHead::new(chain_key, &key("a"), 3).expect("fits");
        head.push(b"ab").expect("fits");
        assert!(matches!(head.finish([0; 32], 0, 0), Err(ContainerError::Truncated { .. })));
        assert!(OpaqueHead::new(chain_key, &key("a"), 6 << 30).is_err());
    }

    /// Only opaque objects have keys, and they have no other extensions.
    #[test]
    fn a_key_makes_an_opaque_object() {
        let whole = object("a", b"bytes", 9);
        let reheaded = |at: usize, field: &[u8]| {
            let mut changed = whole.clone();
            changed[at..at + field.len()].copy_from_slice(field);
            let crc = crc32c::crc32c(&changed[..HEADER_BYTES - 4]);
            changed[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
            verified(&changed)
        };
        assert!(reheaded(8, &[2]).is_ok(), "unchanged");
        for (at, field) in
            [(8, &[3][..]), (8, &[0]), (8, &[6]), (12, &[1]), (16, &[0]), (48, &[1]), (80, &[1]), (162, &[2])]
        {
            assert!(reheaded(at, field).is_err(), "{at}");
        }
        // Of another key: the name does not follow.
        let mut other = whole.clone();
        let at = HEADER_BYTES + BLOCK_HASH_BYTES + SECTION_ENTRY_BYTES + PIECE_ENTRY_BYTES + 8;
        other[at] = b'b';
        let head_bytes = at + 1 + EXTENSION_ENTRY_BYTES + CONTENT_BYTES;
        let crc = crc32c::crc32c(&other[HEADER_BYTES..head_bytes]);
        other[168..172].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c::crc32c(&other[..HEADER_BYTES - 4]);
        other[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(verified(&other), Err(ContainerError::Chain { block: 0 }));
    }
}
