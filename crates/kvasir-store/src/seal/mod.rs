//! Encryption at rest: what is stored of tenants that have a key is sealed between the storage core and the backend.
//!
//! ```text
//! key service (KMS, file)  ── wraps ───▶  tenant key, random, {tenant}/k/{id}/{wrapping key}
//! tenant key               ── derives ─▶  the key of a chunk object, from its place; a key for each kind of record
//! key of an object         ── seals ───▶  segments of 16 KiB, AES-256-GCM, nonce = number of the segment
//! key of a kind            ── seals ───▶  salts, contexts, a tenant's entries of a journal batch: boxes, random nonces
//! ```
//!
//! - **Ranged reads work**: plain offset `x` lies in segment `x / 16 KiB`; a read fetches and opens whole segments.
//! - **Two writers of one object write the same bytes**: the place ends in the digest of the content, which was checked before,
//!   so one key seals one content, and no nonce is used for two. Nothing that a reader remembers can go stale.
//! - **Nothing can be swapped**: a key belongs to one place, and each segment is bound to its number and to whether it is the
//!   last; what is moved, cut or patched does not open. Boxes are bound to where they lie.
//! - **Nothing in the clear is used**: of a tenant with a key a plain object is none, a plain record is an error and a plain
//!   journal entry is left out. Who lacks the key of a sealed tenant writes nothing of it.
//! - **Rotation rewrites no payload**: a new wrapping key wraps the tenant keys anew, a few hundred bytes a tenant.
//!
//! Places count from below the layout's version: a bucket may be copied whole. Segments of equal size need no directory to be
//! found, so this layer knows nothing of chunks. Sealed objects end in `.kvs`, so that a listing tells their sizes.

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
