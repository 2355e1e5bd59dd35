//! The prefix of a sealed object: its data key, wrapped by a tenant key.
//!
//! `magic 8 · tenant key's id 16 · nonce 12 · wrapped data key 32 · tag 16 · zero 12`

use aws_lc_rs::aead::{Aad, NONCE_LEN, Nonce};
use zeroize::Zeroizing;

use super::segments::{KeyBytes, PLAIN_PREFIX_BYTES, gcm};

const MAGIC: &[u8; 8] = b"KVSEAL\x01\n";
const ID: std::ops::Range<usize> = 8..24;
const NONCE: std::ops::Range<usize> = 24..36;
const WRAPPED: std::ops::Range<usize> = 36..84;

/// Names a tenant key.
pub(super) type TenantKeyId = [u8; 16];

/// The prefix of a new object at `place`.
pub(super) fn write(
    id: &TenantKeyId,
    tenant_key: &KeyBytes,
    data_key: &KeyBytes,
    place: &str,
) -> [u8; PLAIN_PREFIX_BYTES as usize] {
    let mut prefix = [0; PLAIN_PREFIX_BYTES as usize];
    prefix[..8].copy_from_slice(MAGIC);
    prefix[ID].copy_from_slice(id);
    prefix[NONCE].copy_from_slice(&rand::random::<[u8; NONCE_LEN]>());
    let wrapped = wrap(tenant_key, data_key, &prefix[NONCE], place.as_bytes());
    prefix[WRAPPED].copy_from_slice(&wrapped);
    prefix
}

/// The tenant key that a prefix names; none where it is no prefix.
pub(super) fn tenant_key_id(prefix: &[u8]) -> Option<TenantKeyId> {
    let is_prefix =
        prefix.len() == PLAIN_PREFIX_BYTES as usize && prefix.starts_with(MAGIC) && prefix[84..] == [0; 12];
    is_prefix.then(|| prefix[ID].try_into().ok())?
}

/// The data key of the object at `place`; none where the prefix is not that object's.
pub(super) fn data_key(prefix: &[u8], tenant_key: &KeyBytes, place: &str) -> Option<KeyBytes> {
    tenant_key_id(prefix)?;
    unwrap(tenant_key, &prefix[WRAPPED], &prefix[NONCE], place.as_bytes())
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
