//! Segments: conversion between plain and sealed offsets, and sealing and opening of a segment.

use std::ops::Range;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

/// Plain bytes per segment; the last of an object may be shorter, and is empty in an empty object.
pub(super) const SEGMENT_BYTES: u64 = 16 << 10;
/// GCM's tag after each segment.
pub(super) const TAG_BYTES: u64 = 16;
/// Bytes before the first segment.
pub(super) const PLAIN_PREFIX_BYTES: u64 = 32;
const STRIDE: u64 = SEGMENT_BYTES + TAG_BYTES;

/// Size of the sealed object for `plain` bytes.
pub(super) fn sealed_bytes(plain: u64) -> u64 {
    PLAIN_PREFIX_BYTES + plain + plain.div_ceil(SEGMENT_BYTES).max(1) * TAG_BYTES
}

/// Size of the plain object in a sealed one of `sealed` bytes; `None` if no sealed object has that size.
pub(super) fn plain_bytes(sealed: u64) -> Option<u64> {
    let body = sealed.checked_sub(PLAIN_PREFIX_BYTES)?;
    let plain = body.checked_sub(body.div_ceil(STRIDE) * TAG_BYTES)?;
    (sealed_bytes(plain) == sealed).then_some(plain)
}

/// The segments that contain a plain range, which must be non-empty or at the start of an empty object.
pub(super) fn covering(plain: &Range<u64>) -> Range<u64> {
    let first = plain.start / SEGMENT_BYTES;
    first..plain.end.div_ceil(SEGMENT_BYTES).max(first + 1)
}

/// The start of a segment in a sealed object; the prefix belongs to the first one.
pub(super) fn start(segment: u64) -> u64 {
    if segment == 0 { 0 } else { PLAIN_PREFIX_BYTES.saturating_add(segment.saturating_mul(STRIDE)) }
}

/// A 256-bit key, erased after use.
pub type KeyBytes = Zeroizing<[u8; 32]>;

/// Seals and opens the segments of one object.
#[derive(Debug)]
pub(super) struct Segments {
    key: LessSafeKey,
}

impl Segments {
    /// With the key derived for the object's place.
    pub(super) fn new(key: &KeyBytes) -> Self {
        Self { key: gcm(key) }
    }

    /// Appends `plain` sealed as segment `n` to `out`.
    pub(super) fn seal(&self, n: u64, last: bool, plain: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(plain);
        let sealed = &mut out[start..];
        let tag = self.key.seal_in_place_separate_tag(nonce(n), aad(last), sealed);
        out.extend_from_slice(tag.expect("a segment is far below GCM's limit").as_ref());
    }

    /// Opens segment `n` in place; `None` if it is not that segment of this object.
    pub(super) fn open<'a>(&self, n: u64, last: bool, sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        self.key.open_in_place(nonce(n), aad(last), sealed).ok().map(|plain| &*plain)
    }
}

fn aad(last: bool) -> Aad<[u8; 1]> {
    Aad::from([u8::from(last)])
}

/// AES-256-GCM under a key.
pub(super) fn gcm(key: &KeyBytes) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key[..]).expect("the key has 32 bytes"))
}

/// The number of a segment as a nonce: the only place where nonces of data keys are created.
fn nonce(n: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&n.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sizes_are_inverse(plain in 0u64..1 << 40) {
            prop_assert_eq!(plain_bytes(sealed_bytes(plain)), Some(plain));
        }

        #[test]
        fn no_two_plain_sizes_share_a_sealed_one(sealed in 0u64..200_000) {
            if let Some(plain) = plain_bytes(sealed) {
                prop_assert_eq!(sealed_bytes(plain), sealed);
            }
        }

        #[test]
        fn covering_segments_hold_the_range(start in 0u64..100_000, length in 1u64..100_000) {
            let range = start..start + length;
            let segments = covering(&range);
            prop_assert!(segments.start * SEGMENT_BYTES <= range.start);
            prop_assert!(segments.end * SEGMENT_BYTES >= range.end);
            prop_assert!((segments.end - 1) * SEGMENT_BYTES < range.end);
        }
    }

    /// Computed by another implementation (Python's `cryptography`): key 00..1f, nonce 7, AAD 01.
    #[test]
    fn a_known_answer() {
        let key = Zeroizing::new(std::array::from_fn(|i| i as u8));
        let mut sealed = Vec::new();
        Segments::new(&key).seal(7, true, b"kvasir", &mut sealed);
        let hex: String = sealed.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "8b1b726c7e65a8fcdefb7159e3cd6b7ca604e1f20cf0");
    }
}
