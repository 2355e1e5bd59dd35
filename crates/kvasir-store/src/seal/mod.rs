//! Encryption at rest: data of tenants that have a key is sealed between the storage core and the backend.
//!
//! ```text
//! key service (KMS, file)  ── wraps ───▶  tenant key, random, {tenant}/k/{id}/{wrapping key}
//! tenant key               ── derives ─▶  the key of a chunk object, from its place; a key for each kind of record
//! key of an object         ── seals ───▶  segments of 16 KiB, AES-256-GCM, nonce = number of the segment
//! key of a kind            ── seals ───▶  salts, contexts, a tenant's entries of a journal batch: boxes, random nonces
//! ```
//!
//! - **Ranged reads work**: plain offset `x` is in segment `x / 16 KiB`; a read fetches and opens whole
//!   segments.
//! - **Two writers of one object write the same bytes**: the path ends in the digest of the content, which
//!   was checked before, so one key seals one content, and no nonce is used for two contents. A reader caches
//!   nothing that can become stale.
//! - **Nothing can be swapped**: a key belongs to one path, and each segment is bound to its number and to
//!   whether it is the last one; moved, cut or patched data cannot be opened. Boxes are bound to their path.
//! - **Plain data is not used**: for a tenant with a key, a plain object does not count, a plain record is an
//!   error and a plain journal entry is skipped. A replica without the key of a sealed tenant writes nothing
//!   for it.
//! - **Rotation rewrites no payload**: a new wrapping key wraps the tenant keys again, a few hundred bytes
//!   per tenant.
//!
//! Paths are relative to the layout's version, so a bucket may be copied whole. Segments of equal size are
//! found without a directory, so this layer does not depend on the chunk format. Sealed objects end in
//! `.kvs`, so that a listing shows their sizes.

mod boxes;
mod ephemeral;
mod keyring;
mod keys;
mod plain_prefix;
mod segments;
mod store;
mod upload;

pub use boxes::{Purpose, derived_salt, is_box};
pub use ephemeral::Sealer;
pub use keyring::{Keyring, SealError};
pub use keys::{FileKeys, KeyService, KeyServiceError};
pub use segments::KeyBytes;
pub(crate) use store::SealedStore;

#[cfg(test)]
mod tests;
