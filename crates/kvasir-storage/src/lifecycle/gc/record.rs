//! What the records that collectors leave for each other have in common: objects by eight bytes each, and a checksum.
//! Nothing rests on such a record.

use kvasir_types::ObjectDigest;

/// Bytes of the CRC32C behind a record.
pub(super) const CHECKSUM_BYTES: usize = size_of::<u32>();

/// The beginning of an object's digest: among 2³² objects, two have the same.
pub(super) type Beginning = [u8; 8];

pub(super) fn beginning(object: &ObjectDigest) -> Beginning {
    let [a, b, c, d, e, f, g, h, ..] = *object.as_bytes();
    [a, b, c, d, e, f, g, h]
}

/// A record with its checksum.
pub(super) fn finish(mut record: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c::crc32c(&record);
    record.extend(checksum.to_le_bytes());
    record
}

/// A record without its checksum; `None` if it is damaged.
pub(super) fn check(record: &[u8]) -> Option<&[u8]> {
    let (record, checksum) = record.split_last_chunk::<CHECKSUM_BYTES>()?;
    (crc32c::crc32c(record) == u32::from_le_bytes(*checksum)).then_some(record)
}
