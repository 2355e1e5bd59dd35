//! Keys of the two kinds of rows, all in one sorted map.

use kvasir_types::{ModelId, Name, SeqHash};

use super::{IndexRow, place::Spot, runs::LineName};

/// Bytes of a block hash in a key.
pub(super) const BLOCK_BYTES: usize = 4;
/// Leading bytes of seq_hashes and digests in keys; where the rest is needed it is in the value.
pub(super) const NAME_BYTES: usize = 8;
/// What ends the block hashes: sorts before every block hash.
pub(super) const END: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
/// What a block hash of zeros becomes: the smallest one.
pub(super) const ONE: [u8; BLOCK_BYTES] = 1u32.to_be_bytes();
/// Bytes of a key before its block hashes: kind, scope, spot.
pub(super) const PREFIX_BYTES: usize = 1 + 8 + Spot::BYTES;

const INFO: u8 = b'i';
const MATCH: u8 = b'm';

/// Separates tenants and models in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope([u8; 8]);

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

impl Scope {
    pub(crate) fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

/// The scope's and the line's name, and the depth, of a row that is an object's.
pub(super) fn line_of_info(key: &[u8]) -> Option<(LineName, u32)> {
    let (&INFO, rest) = key.split_first()? else { return None };
    let (line, rest) = rest.split_first_chunk()?;
    let &[a, b, c] = rest.first_chunk()?;
    Some((*line, u32::from_be_bytes([0, a, b, c])))
}

fn at_spot(kind: u8, scope: Scope, spot: Spot) -> Vec<u8> {
    let mut key = Vec::with_capacity(PREFIX_BYTES + 2 * NAME_BYTES);
    key.push(kind);
    key.extend(scope.0);
    key.extend(spot.to_bytes());
    key
}

/// Leading bytes of a name.
pub(super) fn name(hash: &[u8; 32]) -> &[u8; NAME_BYTES] {
    hash.first_chunk().unwrap_or_else(|| unreachable!("8 of 32"))
}

/// `i · scope · spot`: the start of all rows at a spot.
pub(super) fn infos(scope: Scope, spot: Spot) -> Vec<u8> {
    at_spot(INFO, scope, spot)
}

/// `i · scope · spot · seq_hash 8`: the start of all objects of a chunk.
pub(super) fn infos_of(scope: Scope, spot: Spot, seq_hash: &SeqHash) -> Vec<u8> {
    let mut key = infos(scope, spot);
    key.extend(name(seq_hash.as_bytes()));
    key
}

/// `i · scope · spot · seq_hash 8 · digest 8`.
pub(super) fn info(scope: Scope, spot: Spot, row: &IndexRow) -> Vec<u8> {
    let mut key = infos_of(scope, spot, &row.seq_hash);
    key.extend(name(row.object_digest.as_bytes()));
    key
}

/// Whether a row of the map is an object's: these are counted.
pub(super) fn is_info(key: &[u8]) -> bool {
    key.first() == Some(&INFO)
}

/// `m · scope · spot`: the start of what matches blocks at a spot.
pub(super) fn matches(scope: Scope, spot: Spot) -> Vec<u8> {
    at_spot(MATCH, scope, spot)
}

/// `m · scope · spot · block hash 4 … · 00000000 · seq_hash 8`.
pub(super) fn matching(
    scope: Scope,
    spot: Spot,
    blocks: &[[u8; BLOCK_BYTES]],
    seq_hash: &SeqHash,
) -> Vec<u8> {
    let mut key = matches(scope, spot);
    key.extend(blocks.iter().flatten());
    key.extend(END);
    key.extend(name(seq_hash.as_bytes()));
    key
}

/// The objects of the chunk that a matching row names.
pub(super) fn infos_of_matching(matching: &[u8]) -> Option<Vec<u8>> {
    let place = matching.get(1..PREFIX_BYTES)?;
    let seq = matching.last_chunk::<NAME_BYTES>()?;
    Some([&[INFO][..], place, seq].concat())
}
