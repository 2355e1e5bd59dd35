//! Segments of paths that have several parts, and numbers in them.

use kvasir_types::ObjectDigest;

use super::{ChunkKey, PartKey, UploadKey};

pub(super) fn hex16(id: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

pub(super) fn chunk_key(tenant: &str, model: &str, seq: &str, object: &str) -> Option<ChunkKey> {
    Some(ChunkKey {
        tenant: tenant.parse().ok()?,
        model_id: model.parse().ok()?,
        seq_hash: seq.parse().ok()?,
        object_digest: object.parse().ok()?,
    })
}

pub(super) fn upload_key(
    tenant: &str,
    upload: &str,
    model: &str,
    seq: &str,
    file: &str,
) -> Option<UploadKey> {
    let (object, rest) = file.split_once('.')?;
    let (bytes, sha256) = rest.split_once('.')?;
    Some(UploadKey {
        chunk: chunk_key(tenant, model, seq, object)?,
        upload_id: upload.parse().ok()?,
        bytes: counter(bytes)?,
        sha256: *sha256.parse::<ObjectDigest>().ok()?.as_bytes(),
    })
}

pub(super) fn part_key(tenant: &str, upload: &str, file: &str) -> Option<PartKey> {
    let (number, rest) = file.split_once('.')?;
    let (bytes, digest) = rest.split_once('.')?;
    Some(PartKey {
        tenant: tenant.parse().ok()?,
        upload_id: upload.parse().ok()?,
        number: number.parse().ok()?,
        bytes: counter(bytes)?,
        digest: digest.parse().ok()?,
    })
}

pub(super) fn counter(digits: &str) -> Option<u64> {
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}
