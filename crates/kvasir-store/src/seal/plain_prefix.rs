//! The plain prefix of a sealed object: names the tenant key from which the object's key is derived. Also
//! wrapping of keys.
//!
//! `magic 8 · tenant key's id 16 · zero 8`

use aws_lc_rs::aead::{Aad, Nonce};
use zeroize::Zeroizing;

use super::segments::{KeyBytes, PLAIN_PREFIX_BYTES, gcm};

const MAGIC: &[u8; 8] = b"KVSEAL\x02\n";

/// Names a tenant key.
pub(super) type TenantKeyId = [u8; 16];

/// The prefix of an object whose key is derived from a tenant key.
pub(super) fn write(id: &TenantKeyId) -> [u8; PLAIN_PREFIX_BYTES as usize] {
    let mut prefix = [0; PLAIN_PREFIX_BYTES as usize];
    prefix[..8].copy_from_slice(MAGIC);
    prefix[8..24].copy_from_slice(id);
    prefix
}

/// The tenant key named by a prefix; `None` if it is not a prefix.
pub(super) fn tenant_key_id(prefix: &[u8]) -> Option<TenantKeyId> {
    let id = prefix.get(8..24)?.try_into().ok()?;
    (prefix == write(&id)).then_some(id)
}

/// Wraps `key` under `by`: 32 bytes and a tag. Nonces are random: a key wraps far fewer than 2³² others.
pub(super) fn wrap(by: &KeyBytes, key: &KeyBytes, nonce: &[u8], bound_to: &[u8]) -> [u8; 48] {
    let mut wrapped = [0; 48];
    wrapped[..32].copy_from_slice(&key[..]);
    let nonce = Nonce::try_assume_unique_for_key(nonce).expect("12 bytes");
    let tag = gcm(by).seal_in_place_separate_tag(nonce, Aad::from(bound_to), &mut wrapped[..32]);
    wrapped[32..].copy_from_slice(tag.expect("32 bytes are below GCM's limit").as_ref());
    wrapped
}

/// The key in `wrapped`; `None` if it was not wrapped by `by` for that purpose.
pub(super) fn unwrap(by: &KeyBytes, wrapped: &[u8], nonce: &[u8], bound_to: &[u8]) -> Option<KeyBytes> {
    let mut bytes = Zeroizing::new(wrapped.to_vec());
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let key = gcm(by).open_in_place(nonce, Aad::from(bound_to), &mut bytes).ok()?;
    Some(Zeroizing::new(key[..].try_into().ok()?))
}
