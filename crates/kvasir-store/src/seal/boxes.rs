//! Keys derived from tenant keys, and boxes: small records that are sealed as a whole.
//!
//! `magic 8 · tenant key's id 16 · nonce 12 · sealed · tag 16`, AES-256-GCM under a key for that purpose. A
//! box is bound to its path.

use aws_lc_rs::aead::{Aad, NONCE_LEN, Nonce};
use bytes::Bytes;
use kvasir_types::Name;
use object_store::Result;
use zeroize::Zeroizing;

use super::{
    keyring::{Keyring, SealError},
    segments::{KeyBytes, gcm},
};

const MAGIC: &[u8; 8] = b"KVSBOX\x02\n";
const SEALED_AT: usize = 8 + 16 + NONCE_LEN;

/// The purpose of a key. No key serves two purposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Chunk objects.
    Object,
    /// The salt of a tenant.
    Salt,
    /// Rotated salts of a namespace.
    SaltRotation,
    /// Records of contexts.
    Context,
    /// Entries of the journal.
    Journal,
}

impl Purpose {
    fn key(self, tenant_key: &KeyBytes) -> KeyBytes {
        let context = match self {
            Self::Object => "kvasir 2 seal object",
            Self::Salt => "kvasir 2 seal salt",
            Self::SaltRotation => "kvasir 2 seal salt rotation",
            Self::Context => "kvasir 2 seal context",
            Self::Journal => "kvasir 2 seal journal",
        };
        Zeroizing::new(blake3::derive_key(context, &tenant_key[..]))
    }
}

/// The key of the chunk object at `place`. The place ends in the digest of the object's bytes, so one key
/// seals one content, and every writer of the object writes the same bytes.
pub(super) fn object_key(tenant_key: &KeyBytes, place: &str) -> KeyBytes {
    let key = Purpose::Object.key(tenant_key);
    Zeroizing::new(*blake3::keyed_hash(&key, place.as_bytes()).as_bytes())
}

/// The salt of a tenant with unencrypted data, after its move to a key.
pub fn derived_salt(tenant_key: &KeyBytes, plain: &[u8]) -> [u8; 32] {
    let key = Zeroizing::new(blake3::derive_key("kvasir 2 salt of a moved tenant", &tenant_key[..]));
    *blake3::keyed_hash(&key, plain).as_bytes()
}

/// Whether bytes claim to be a box.
pub fn is_box(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

impl Keyring {
    /// Seals `plain` into a box of a tenant with a key, bound to `place`.
    pub async fn seal(&self, tenant: &Name, purpose: Purpose, place: &str, plain: &[u8]) -> Result<Vec<u8>> {
        let (id, tenant_key) = self.newest(tenant).await?;
        // Random: a key makes far fewer than 2³² boxes.
        let nonce: [u8; NONCE_LEN] = rand::random();
        let mut out = [&MAGIC[..], &id, &nonce, plain].concat();
        let sealed = &mut out[SEALED_AT..];
        let (key, nonce) = (gcm(&purpose.key(&tenant_key)), Nonce::assume_unique_for_key(nonce));
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(place.as_bytes()), sealed);
        out.extend_from_slice(tag.expect("a record is far below GCM's limit").as_ref());
        Ok(out)
    }

    /// Opens a tenant's box, if it has that purpose and place.
    pub async fn open(&self, tenant: &Name, purpose: Purpose, place: &str, sealed: &[u8]) -> Result<Bytes> {
        let id = sealed.strip_prefix(MAGIC).and_then(|rest| rest.first_chunk::<16>());
        let tenant_key = self.key(tenant, id.ok_or(SealError::Altered)?).await?;
        let nonce = sealed.get(SEALED_AT - NONCE_LEN..SEALED_AT).ok_or(SealError::Altered)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Altered)?;
        let mut plain = sealed[SEALED_AT..].to_vec();
        let key = gcm(&purpose.key(&tenant_key));
        let opened = key.open_in_place(nonce, Aad::from(place.as_bytes()), &mut plain);
        let length = opened.map_err(|_| SealError::Altered)?.len();
        plain.truncate(length);
        Ok(plain.into())
    }
}
