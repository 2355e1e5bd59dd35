//! The front of a sealed object: its data key, wrapped by a tenant key.
//!
//! `magic 8 · tenant key's id 16 · nonce 12 · wrapped data key 32 · tag 16 · zero 12`

use aws_lc_rs::aead::{Aad, NONCE_LEN, Nonce};
use zeroize::Zeroizing;

use super::segments::{FRONT_BYTES, KeyBytes, gcm};

const MAGIC: &[u8; 8] = b"KVSEAL\x01\n";
const ID: std::ops::Range<usize> = 8..24;
const NONCE: std::ops::Range<usize> = 24..36;
const WRAPPED: std::ops::Range<usize> = 36..84;

/// Names a tenant key.
pub(super) type TenantKeyId = [u8; 16];

/// The front of a new object at `place`.
pub(super) fn write(
    id: &TenantKeyId,
    tenant_key: &KeyBytes,
    data_key: &KeyBytes,
    place: &str,
) -> [u8; FRONT_BYTES as usize] {
    let mut front = [0; FRONT_BYTES as usize];
    front[..8].copy_from_slice(MAGIC);
    front[ID].copy_from_slice(id);
    front[NONCE].copy_from_slice(&rand::random::<[u8; NONCE_LEN]>());
    let wrapped = wrap(tenant_key, data_key, &front[NONCE], place.as_bytes());
    front[WRAPPED].copy_from_slice(&wrapped);
    front
}

/// The tenant key that a front names; none where it is no front.
pub(super) fn tenant_key_id(front: &[u8]) -> Option<TenantKeyId> {
    let is_front = front.len() == FRONT_BYTES as usize && front.starts_with(MAGIC) && front[84..] == [0; 12];
    is_front.then(|| front[ID].try_into().ok())?
}

/// The data key of the object at `place`; none where the front is not that object's.
pub(super) fn data_key(front: &[u8], tenant_key: &KeyBytes, place: &str) -> Option<KeyBytes> {
    tenant_key_id(front)?;
    unwrap(tenant_key, &front[WRAPPED], &front[NONCE], place.as_bytes())
}

/// `key` under `by`: 32 bytes and a tag. Nonces are random: a key wraps far fewer than 2³² others.
pub(super) fn wrap(by: &KeyBytes, key: &KeyBytes, nonce: &[u8], bound_to: &[u8]) -> [u8; 48] {
    let mut wrapped = [0; 48];
    wrapped[..32].copy_from_slice(&key[..]);
    let nonce = Nonce::try_assume_unique_for_key(nonce).expect("12 bytes");
    let tag = gcm(by).seal_in_place_separate_tag(nonce, Aad::from(bound_to), &mut wrapped[..32]);
    wrapped[32..].copy_from_slice(tag.expect("32 bytes are below GCM's limit").as_ref());
    wrapped
}

/// The key in `wrapped`; none where it was not wrapped by `by` for that.
pub(super) fn unwrap(by: &KeyBytes, wrapped: &[u8], nonce: &[u8], bound_to: &[u8]) -> Option<KeyBytes> {
    let mut bytes = Zeroizing::new(wrapped.to_vec());
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let key = gcm(by).open_in_place(nonce, Aad::from(bound_to), &mut bytes).ok()?;
    Some(Zeroizing::new(key[..].try_into().ok()?))
}
