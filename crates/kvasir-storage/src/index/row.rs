//! Encoding of a row. Bytes that come back are checked, never trusted: the database has no checksum of its own that
//! holds under truncation.

use kvasir_types::{
    BLOCK_TOKENS, CHUNK_TOKENS_MAX, LEVELS_MAX, ModelId, Name, ObjectDigest, ProfileHash, SeqHash,
};

use super::IndexError;

/// Bytes of a key before its block hashes.
pub(super) const PREFIX_BYTES: usize = 8 + 32;
/// Bytes of a block hash in a key.
pub(super) const BLOCK_BYTES: usize = 3;
/// What ends the block hashes: sorts before every block hash.
pub(super) const END: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
/// What a block hash of zeros becomes: the smallest one.
pub(super) const ONE: [u8; BLOCK_BYTES] = [0, 0, 1];
/// Leading bytes of the object's digest in a key; the others are in the value.
const OBJECT_BYTES: usize = 8;
const VALUE_VERSION: u8 = 1;
const FIXED_VALUE_BYTES: usize = 1 + 4 + 8 + 4 + 4 + 8 + 32 * 3 - OBJECT_BYTES + 1;
/// Most blocks of a chunk.
pub(super) const BLOCKS_MAX: usize = CHUNK_TOKENS_MAX / BLOCK_TOKENS;

/// Separates tenants and models in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope(pub(super) [u8; 8]);

impl Scope {
    /// The scope of a tenant's model.
    pub fn new(tenant: &Name, model_id: &ModelId) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(model_id.as_bytes()).update(tenant.as_str().as_bytes());
        let mut scope = [0; 8];
        hasher.finalize_xof().fill(&mut scope);
        Self(scope)
    }
}

/// Everything the index knows of a chunk object.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexRow {
    /// Hash of the block before the chunk, or the root.
    pub parent_hash: [u8; 32],
    /// Leading bytes of the hash of each block.
    pub blocks: Vec<[u8; BLOCK_BYTES]>,
    /// The chunk.
    pub seq_hash: SeqHash,
    /// The object.
    pub object_digest: ObjectDigest,
    /// Its profile.
    pub profile_hash: ProfileHash,
    /// Position of its first token.
    pub first_position: u64,
    /// Its tokens.
    pub token_count: u32,
    /// See `ChunkMatch::kl_beneath`.
    pub kl_beneath: f32,
    /// Bytes of header, directory and tokens.
    pub head_bytes: u32,
    /// Bytes of the object.
    pub object_bytes: u64,
    /// Prefix that decodes to each level.
    pub level_bytes: Vec<u64>,
}

/// A block hash as keys hold it.
pub(super) fn short(hash: &[u8]) -> [u8; BLOCK_BYTES] {
    match hash.first_chunk::<BLOCK_BYTES>() {
        Some(&END) | None => ONE,
        Some(&bytes) => bytes,
    }
}

/// `scope · parent`, the start of all keys of chunks that follow `parent`.
pub(super) fn key_prefix(scope: Scope, parent: &[u8; 32]) -> Vec<u8> {
    [&scope.0[..], parent].concat()
}

impl IndexRow {
    /// Cuts full block hashes, or the container's 8-byte ones, to the index's length.
    pub fn short_blocks<'a>(hashes: impl IntoIterator<Item = &'a [u8]>) -> Vec<[u8; BLOCK_BYTES]> {
        hashes.into_iter().map(short).collect()
    }

    pub(crate) fn key(&self, scope: Scope) -> Vec<u8> {
        let mut key = key_prefix(scope, &self.parent_hash);
        key.extend(self.blocks.iter().flatten());
        key.extend(END);
        key.extend(&self.object_digest.as_bytes()[..OBJECT_BYTES]);
        key
    }

    pub(crate) fn value(&self, key: &[u8]) -> Vec<u8> {
        let mut value = Vec::with_capacity(FIXED_VALUE_BYTES + 8 * self.level_bytes.len() + 4);
        value.push(VALUE_VERSION);
        value.extend(self.token_count.to_le_bytes());
        value.extend(self.first_position.to_le_bytes());
        value.extend(self.kl_beneath.to_le_bytes());
        value.extend(self.head_bytes.to_le_bytes());
        value.extend(self.object_bytes.to_le_bytes());
        value.extend(self.seq_hash.as_bytes());
        value.extend(&self.object_digest.as_bytes()[OBJECT_BYTES..]);
        value.extend(self.profile_hash.as_bytes());
        value.push(self.level_bytes.len() as u8);
        value.extend(self.level_bytes.iter().flat_map(|b| b.to_le_bytes()));
        value.extend(checksum(key, &value).to_le_bytes());
        value
    }

    pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Self, IndexError> {
        let corrupt =
            |what: &str| IndexError::Corrupt { what: format!("row of {} bytes: {what}", value.len()) };
        let (body, crc) = value.split_last_chunk::<4>().ok_or_else(|| corrupt("too short"))?;
        if checksum(key, body) != u32::from_le_bytes(*crc) {
            return Err(corrupt("checksum"));
        }
        let mut cursor = Cursor(body);
        let parsed = cursor.take::<1>().filter(|v| *v == [VALUE_VERSION]).and_then(|_| {
            Some(Self {
                token_count: u32::from_le_bytes(cursor.take()?),
                first_position: u64::from_le_bytes(cursor.take()?),
                kl_beneath: f32::from_le_bytes(cursor.take()?),
                head_bytes: u32::from_le_bytes(cursor.take()?),
                object_bytes: u64::from_le_bytes(cursor.take()?),
                seq_hash: cursor.take::<32>()?.into(),
                object_digest: {
                    let (front, back) =
                        (key.last_chunk::<OBJECT_BYTES>()?, cursor.take::<{ 32 - OBJECT_BYTES }>()?);
                    let whole: [u8; 32] = [&front[..], &back].concat().try_into().ok()?;
                    whole.into()
                },
                profile_hash: cursor.take::<32>()?.into(),
                level_bytes: {
                    let [levels] = cursor.take()?;
                    let levels = Some(usize::from(levels)).filter(|&l| l <= LEVELS_MAX)?;
                    (0..levels).map(|_| cursor.take().map(u64::from_le_bytes)).collect::<Option<_>>()?
                },
                parent_hash: *key.get(8..)?.first_chunk()?,
                blocks: key_blocks(key)?,
            })
        });
        parsed.filter(|_| cursor.0.is_empty()).ok_or_else(|| corrupt("form"))
    }
}

fn checksum(key: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), body)
}

/// The block hashes in a key, up to their end; `None` where the key is of no row.
fn key_blocks(key: &[u8]) -> Option<Vec<[u8; BLOCK_BYTES]>> {
    let middle = key.get(PREFIX_BYTES..key.len().checked_sub(OBJECT_BYTES)?)?;
    let (blocks, rest) = middle.as_chunks::<BLOCK_BYTES>();
    let (last, blocks) = blocks.split_last()?;
    let sound = rest.is_empty() && *last == END && !blocks.contains(&END) && !blocks.is_empty();
    (sound && blocks.len() <= BLOCKS_MAX).then(|| blocks.to_vec())
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn any_row() -> impl Strategy<Value = IndexRow> {
        let hashes = (any::<[u8; 32]>(), any::<[u8; 32]>(), any::<[u8; 32]>(), any::<[u8; 32]>());
        let blocks = prop::collection::vec(any::<[u8; BLOCK_BYTES]>(), 1..130);
        let sizes = (any::<u64>(), any::<u32>(), 0f32..1.0, any::<u32>(), any::<u64>());
        (hashes, blocks, sizes, prop::collection::vec(any::<u64>(), 0..=LEVELS_MAX)).prop_map(
            |((parent_hash, seq, object, profile), blocks, sizes, level_bytes)| IndexRow {
                parent_hash,
                blocks: blocks.iter().map(|b| short(b)).collect(),
                seq_hash: seq.into(),
                object_digest: object.into(),
                profile_hash: profile.into(),
                first_position: sizes.0,
                token_count: sizes.1,
                kl_beneath: sizes.2,
                head_bytes: sizes.3,
                object_bytes: sizes.4,
                level_bytes,
            },
        )
    }

    proptest! {
        #[test]
        fn rows_round_trip_and_every_flipped_bit_is_noticed(row in any_row(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let scope = Scope([7; 8]);
            let key = row.key(scope);
            let value = row.value(&key);
            prop_assert_eq!(IndexRow::decode(&key, &value).expect("sound"), row);
            let (mut bad_key, mut bad_value) = (key.clone(), value.clone());
            let at = at.index(key.len() + value.len());
            match at.checked_sub(key.len()) {
                None => bad_key[at] ^= 1u8 << bit,
                Some(at) => bad_value[at] ^= 1u8 << bit,
            }
            prop_assert!(IndexRow::decode(&bad_key, &bad_value).is_err());
        }

        #[test]
        fn no_bytes_panic(key in prop::collection::vec(any::<u8>(), 0..200), value in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(IndexRow::decode(&key, &value).is_err());
        }
    }

    #[test]
    fn a_default_chunk_is_small() {
        let row = IndexRow {
            parent_hash: [1; 32],
            blocks: vec![[9; BLOCK_BYTES]; 96],
            seq_hash: [2; 32].into(),
            object_digest: [3; 32].into(),
            profile_hash: [4; 32].into(),
            first_position: 0,
            token_count: 1536,
            kl_beneath: 0.0,
            head_bytes: 4000,
            object_bytes: 1 << 20,
            level_bytes: vec![1, 2, 3, 4],
        };
        let key = row.key(Scope([0; 8]));
        assert_eq!(key.len() + row.value(&key).len(), 493);
    }
}
