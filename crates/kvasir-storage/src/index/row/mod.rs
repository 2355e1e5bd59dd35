//! The index's row of a chunk object, and its encoding. Rows read back are verified, never trusted: the
//! database's own checksums do not detect truncation.

use std::sync::Arc;

use kvasir_api::ChunkErrors;
use kvasir_container::Head;
use kvasir_types::{
    BLOCK_TOKENS, CHUNK_TOKENS_MAX, LEVELS_MAX, Level, LevelError, ObjectDigest, ProfileHash, SeqHash,
};

use super::{
    IndexError,
    truncated::{BLOCK_BYTES, NAME_BYTES, short},
};

const VALUE_VERSION: u8 = 3;
/// The previous version: it ends with the levels.
const VALUE_VERSION_BEFORE: u8 = 2;
/// Set if a chunk's children are next to it, see [`RowPosition`](super::position::RowPosition).
const CONTINUES: u8 = 0x80;
/// Set if the block hashes follow the row: the chunk is alone at its position.
const BLOCKS: u8 = 0x40;
/// Position of the profile in a value.
pub(super) const PROFILE: std::ops::Range<usize> = {
    let start = 1 + 2 * (32 - NAME_BYTES);
    start..start + 32
};
/// Most blocks of a chunk.
pub(super) const BLOCKS_MAX: usize = CHUNK_TOKENS_MAX / BLOCK_TOKENS;

/// The index's data about a chunk object.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexRow {
    /// The chunk.
    pub seq_hash: SeqHash,
    /// The object.
    pub object_digest: ObjectDigest,
    /// Its profile.
    pub profile_hash: ProfileHash,
    /// Position of its first token.
    pub first_position: u64,
    /// Number of its tokens.
    pub token_count: u32,
    /// See `ChunkMatch::kl_beneath`.
    pub kl_beneath: f32,
    /// Size of header, directory and tokens.
    pub head_bytes: u32,
    /// Size of the object.
    pub object_bytes: u64,
    /// Length of the prefix that decodes to each level.
    pub level_bytes: Vec<u64>,
    /// Errors of its levels, if its encoder measured them.
    pub errors: Option<ChunkErrors>,
}

/// A chunk object as added to the index: the row, and its search keys.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexEntry {
    /// Hash of the block before the chunk, or the root; for an opaque object, a unique hash.
    pub parent_hash: [u8; 32],
    /// Leading bytes of the hash of each block.
    pub blocks: Vec<[u8; BLOCK_BYTES]>,
    /// The row.
    pub row: Arc<IndexRow>,
}

/// A decoded row.
#[derive(Debug, PartialEq)]
pub(super) struct Decoded<'a> {
    pub(super) row: IndexRow,
    /// Whether the chunk's children are next to it.
    pub(super) continues: bool,
    /// The chunk's blocks, if it is alone at its position; otherwise separate rows match them.
    pub(super) blocks: &'a [[u8; BLOCK_BYTES]],
}

impl IndexEntry {
    /// The entry of a verified head.
    pub(crate) fn of_head(head: &Head, object_digest: ObjectDigest) -> Self {
        let header = &head.header;
        let levels = (0..header.level_count).map(Level);
        let parent_hash =
            if header.is_opaque() { parent_of_opaque(&header.seq_hash) } else { header.parent_hash };
        Self {
            parent_hash,
            blocks: Self::short_blocks(head.block_hashes.iter().map(|hash| &hash[..])),
            row: Arc::new(IndexRow {
                seq_hash: header.seq_hash,
                object_digest,
                profile_hash: header.profile_hash,
                first_position: header.first_position,
                token_count: header.token_count,
                kl_beneath: header.kl_beneath,
                head_bytes: u32::try_from(header.head_bytes()).unwrap_or(u32::MAX),
                object_bytes: header.object_bytes(),
                level_bytes: levels.clone().filter_map(|level| head.level_bytes(level)).collect(),
                errors: head.measured().map(|measured| ChunkErrors {
                    levels: levels.map(|level| measured.error(level)).collect(),
                    beneath: measured.beneath,
                    hops: measured.hops,
                }),
            }),
        }
    }

    /// Whether it has the hash of each block of its chunk.
    pub(crate) fn has_all_blocks(&self) -> bool {
        self.blocks.len() == self.row.block_count() && self.blocks.len() <= BLOCKS_MAX
    }

    /// Truncates full block hashes, or the container's 8-byte ones, to the index's length.
    pub fn short_blocks<'a>(hashes: impl IntoIterator<Item = &'a [u8]>) -> Vec<[u8; BLOCK_BYTES]> {
        hashes.into_iter().map(short).collect()
    }
}

impl IndexRow {
    /// The row of a chunk of 16 tokens and 1,000 bytes, for tests.
    #[cfg(test)]
    pub(crate) fn example(seq_hash: SeqHash, object_digest: ObjectDigest) -> Self {
        Self {
            seq_hash,
            object_digest,
            profile_hash: [0; 32].into(),
            first_position: 0,
            token_count: 16,
            kl_beneath: 0.0,
            head_bytes: 300,
            object_bytes: 1000,
            level_bytes: vec![1000],
            errors: None,
        }
    }

    /// Number of the chunk's blocks. An opaque object has no tokens, and counts as one block.
    pub fn block_count(&self) -> usize {
        (self.token_count as usize).div_ceil(BLOCK_TOKENS).max(1)
    }

    /// Encodes everything except the names in the key; the checksum covers the key as well.
    pub(super) fn value(&self, key: &[u8], continues: bool, blocks: &[[u8; BLOCK_BYTES]]) -> Vec<u8> {
        let flag = |set, flag| if set { flag } else { 0 };
        let mut value = vec![VALUE_VERSION | flag(continues, CONTINUES) | flag(!blocks.is_empty(), BLOCKS)];
        self.write_rest(&mut value, NAME_BYTES);
        value.extend(blocks.as_flattened());
        value.extend(checksum(key, &value).to_le_bytes());
        value
    }

    /// A self-contained row for the journal, which has its own checksum.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![VALUE_VERSION];
        self.write_rest(&mut out, 0);
        out
    }

    /// Appends the form that [`unpack`](Self::unpack) reads: only for memory, so without a checksum, and
    /// without the profile if it equals the one `before`.
    pub(super) fn pack(&self, out: &mut Vec<u8>, before: Option<&ProfileHash>) {
        out.extend(self.seq_hash.as_bytes());
        out.extend(self.object_digest.as_bytes());
        let is_new = before != Some(&self.profile_hash);
        out.push(u8::from(is_new));
        if is_new {
            out.extend(self.profile_hash.as_bytes());
        }
        self.write_numbers(out);
    }

    /// Takes a packed row off the front of `bytes`.
    pub(super) fn unpack(bytes: &mut &[u8], before: Option<&ProfileHash>) -> Option<Self> {
        let mut reader = ByteReader(bytes);
        let (seq, digest) = (reader.take::<32>()?, reader.take::<32>()?);
        let profile_hash = match (reader.take::<1>()?, before) {
            ([0], Some(before)) => *before,
            _ => reader.take::<32>()?.into(),
        };
        let row = Self::read_numbers(&mut reader, VALUE_VERSION, seq.into(), digest.into(), profile_hash);
        *bytes = reader.0;
        row
    }

    fn write_rest(&self, out: &mut Vec<u8>, cut: usize) {
        out.extend(&self.seq_hash.as_bytes()[cut..]);
        out.extend(&self.object_digest.as_bytes()[cut..]);
        out.extend(self.profile_hash.as_bytes());
        self.write_numbers(out);
    }

    fn write_numbers(&self, out: &mut Vec<u8>) {
        out.extend(self.kl_beneath.to_le_bytes());
        varint(out, self.token_count.into());
        varint(out, self.first_position);
        varint(out, self.head_bytes.into());
        varint(out, self.object_bytes);
        out.push(self.level_bytes.len() as u8);
        self.level_bytes.iter().for_each(|&bytes| varint(out, bytes));
        let Some(errors) = &self.errors else { return out.push(0) };
        out.extend([1, errors.beneath.to_byte(), errors.hops]);
        // One per level, whatever made the row.
        let known = errors.levels.iter().copied().chain(std::iter::repeat(LevelError::UNKNOWN));
        out.extend(known.take(self.level_bytes.len()).map(LevelError::to_byte));
    }

    /// Decodes a row. The key ends with the leading bytes of seq_hash and digest.
    pub(super) fn decode<'a>(key: &[u8], value: &'a [u8]) -> Result<Decoded<'a>, IndexError> {
        let corrupt =
            |what: &str| IndexError::Corrupt { what: format!("row of {} bytes: {what}", value.len()) };
        let (body, crc) = value.split_last_chunk::<4>().ok_or_else(|| corrupt("too short"))?;
        if checksum(key, body) != u32::from_le_bytes(*crc) {
            return Err(corrupt("checksum"));
        }
        let parsed = || {
            let (version, rest) = body.split_first()?;
            let (key, digest) = key.split_last_chunk::<NAME_BYTES>()?;
            let (_, seq) = key.split_last_chunk::<NAME_BYTES>()?;
            let mut reader = ByteReader(rest);
            let (continues, has_blocks) = (version & CONTINUES != 0, version & BLOCKS != 0);
            let row = Self::read_rest(&mut reader, version & !(CONTINUES | BLOCKS), seq, digest)?;
            let (blocks, rest) = reader.0.as_chunks();
            let expected = if has_blocks { row.block_count() } else { 0 };
            (rest.is_empty() && blocks.len() == expected).then_some(Decoded { row, continues, blocks })
        };
        parsed().ok_or_else(|| corrupt("form"))
    }

    /// Decodes the output of [`to_bytes`](Self::to_bytes).
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let mut reader = ByteReader(rest);
        let row = Self::read_rest(&mut reader, *version, &[], &[])?;
        reader.0.is_empty().then_some(row)
    }

    fn read_rest(reader: &mut ByteReader<'_>, version: u8, seq: &[u8], digest: &[u8]) -> Option<Self> {
        let (seq, digest) = (reader.hash(seq)?, reader.hash(digest)?);
        let profile_hash = reader.take::<32>()?.into();
        Self::read_numbers(reader, version, seq.into(), digest.into(), profile_hash)
    }

    fn read_numbers(
        reader: &mut ByteReader<'_>,
        version: u8,
        seq_hash: SeqHash,
        object_digest: ObjectDigest,
        profile_hash: ProfileHash,
    ) -> Option<Self> {
        let mut row = Self {
            seq_hash,
            object_digest,
            profile_hash,
            kl_beneath: f32::from_le_bytes(reader.take()?),
            token_count: reader.varint()?.try_into().ok()?,
            first_position: reader.varint()?,
            head_bytes: reader.varint()?.try_into().ok()?,
            object_bytes: reader.varint()?,
            level_bytes: {
                let [levels] = reader.take::<1>()?;
                let levels = usize::from(levels);
                if levels > LEVELS_MAX {
                    return None;
                }
                // Of its length: a lookup reads hundreds of rows.
                let mut level_bytes = Vec::with_capacity(levels);
                for _ in 0..levels {
                    level_bytes.push(reader.varint()?);
                }
                level_bytes
            },
            errors: None,
        };
        row.errors = match version {
            VALUE_VERSION_BEFORE => None,
            VALUE_VERSION => reader.errors(row.level_bytes.len())?,
            _ => return None,
        };
        Some(row)
    }
}

/// The parent of an opaque object: a unique hash, so that it is found by its key alone and has no siblings.
/// Not its own hash: that is where its children would be.
pub(crate) fn parent_of_opaque(seq_hash: &SeqHash) -> [u8; 32] {
    seq_hash.as_bytes().map(|byte| !byte)
}

/// Whether readers prefer `a` to `b`: the smaller KL beneath, then the smaller digest. All replicas must
/// agree, or two collectors would delete each other's duplicate; rows of the previous version have no
/// measured errors, so these must not count.
pub(crate) fn prefer(a: &IndexRow, b: &IndexRow) -> bool {
    a.kl_beneath.total_cmp(&b.kl_beneath).then_with(|| a.object_digest.cmp(&b.object_digest)).is_lt()
}

/// CRC32C of a key and what precedes the checksum in its value.
pub(super) fn checksum(key: &[u8], value: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), value)
}

/// LEB128.
fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

struct ByteReader<'a>(&'a [u8]);

impl ByteReader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    /// The errors of this many levels, if present; `None` for invalid bytes.
    fn errors(&mut self, levels: usize) -> Option<Option<ChunkErrors>> {
        match self.take::<1>()? {
            [0] => Some(None),
            [1] => {
                let [beneath, hops] = self.take()?;
                let read = (0..levels).map(|_| self.take::<1>().map(|[byte]| LevelError::from_byte(byte)));
                let levels = read.collect::<Option<Vec<_>>>()?;
                Some(Some(ChunkErrors { levels, beneath: LevelError::from_byte(beneath), hops }))
            }
            _ => None,
        }
    }

    /// A hash with the known beginning `front`.
    fn hash(&mut self, front: &[u8]) -> Option<[u8; 32]> {
        let (back, tail) = self.0.split_at_checked(32usize.checked_sub(front.len())?)?;
        self.0 = tail;
        let mut hash = [0; 32];
        hash.get_mut(..front.len())?.copy_from_slice(front);
        hash.get_mut(front.len()..)?.copy_from_slice(back);
        Some(hash)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.take::<1>()?;
            let bits = u64::from(byte & 0x7f);
            // Only one bit of the tenth byte is used.
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
pub(crate) mod tests;
