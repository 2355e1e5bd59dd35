//! Little-endian fields, read without indexing.

/// The field of `N` bytes at `at`, or zeros past the end (callers check lengths once, up front).
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Overwrites the field at `at`; does nothing if it does not fit (offsets are constants).
pub(crate) fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    if let Some(slot) = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..field.len())) {
        slot.copy_from_slice(field);
    }
}

/// A `usize` as `u64`: lossless on every target that Rust has.
pub(crate) fn wide(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
