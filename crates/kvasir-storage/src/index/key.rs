//! Keys of the two kinds of rows, in one sorted map.

use kvasir_types::SeqHash;

use super::{
    position::{LineageId, RowPosition},
    removed::RemovedObject,
    row::IndexRow,
    scope::Scope,
    truncated::{BLOCK_BYTES, END, NAME_BYTES, name},
};

/// Bytes of a key before its block hashes: kind, scope, position.
pub(super) const PREFIX_BYTES: usize = 1 + 8 + RowPosition::BYTES;

const INFO: u8 = b'i';
const MATCH: u8 = b'm';

/// The lineage of an object's row, its depth, and the beginning of its chunk's seq_hash.
pub(super) fn place_of_info(key: &[u8]) -> Option<(LineageId, u32, [u8; NAME_BYTES])> {
    let (&INFO, rest) = key.split_first()? else { return None };
    let (lineage, rest) = rest.split_first_chunk()?;
    let (&[a, b, c], rest) = rest.split_first_chunk()?;
    Some((*lineage, u32::from_be_bytes([0, a, b, c]), *rest.first_chunk()?))
}

/// The start of all rows of objects.
pub(super) const ALL_INFOS: &[u8] = &[INFO];
/// The start of all rows that match blocks.
pub(super) const ALL_MATCHES: &[u8] = &[MATCH];

/// The object of a row, by scope and digest.
pub(super) fn object_of_info(info: &[u8]) -> Option<RemovedObject> {
    Some((*info.get(1..9)?.first_chunk()?, *info.get(PREFIX_BYTES + NAME_BYTES..)?.first_chunk()?))
}

/// The start of all objects of a row's chunk.
pub(super) fn chunk_of_info(info: &[u8]) -> Option<&[u8]> {
    info.get(..PREFIX_BYTES + NAME_BYTES)
}

fn at_position(kind: u8, scope: Scope, position: RowPosition) -> Vec<u8> {
    let mut key = Vec::with_capacity(PREFIX_BYTES + 2 * NAME_BYTES);
    key.push(kind);
    key.extend(scope.as_bytes());
    key.extend(position.to_bytes());
    key
}

/// `i · scope · position`: the start of all rows at a position.
pub(super) fn infos(scope: Scope, position: RowPosition) -> Vec<u8> {
    at_position(INFO, scope, position)
}

/// `i · scope · position · seq_hash 8`: the start of all objects of a chunk.
pub(super) fn infos_of(scope: Scope, position: RowPosition, seq_hash: &SeqHash) -> Vec<u8> {
    infos_of_name(scope, position, name(seq_hash.as_bytes()))
}

/// Like [`infos_of`], by the beginning of the chunk's seq_hash.
pub(super) fn infos_of_name(scope: Scope, position: RowPosition, name: &[u8; NAME_BYTES]) -> Vec<u8> {
    let mut key = infos(scope, position);
    key.extend(name);
    key
}

/// `i · scope · position · seq_hash 8 · digest 8`.
pub(super) fn info(scope: Scope, position: RowPosition, row: &IndexRow) -> Vec<u8> {
    let mut key = infos_of(scope, position, &row.seq_hash);
    key.extend(name(row.object_digest.as_bytes()));
    key
}

/// Whether a row of the map belongs to an object: these are counted.
pub(super) fn is_info(key: &[u8]) -> bool {
    key.first() == Some(&INFO)
}

/// `m · scope · position`: the start of the rows that match blocks at a position.
pub(super) fn matches(scope: Scope, position: RowPosition) -> Vec<u8> {
    at_position(MATCH, scope, position)
}

/// `m · scope · position · block hash 4 … · 00000000 · seq_hash 8`.
pub(super) fn matching(
    scope: Scope,
    position: RowPosition,
    blocks: &[[u8; BLOCK_BYTES]],
    seq_hash: &SeqHash,
) -> Vec<u8> {
    let mut key = matches(scope, position);
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
