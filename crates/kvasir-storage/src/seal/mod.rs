//! Encryption at rest: chunk objects of tenants that have a key are sealed between the storage core and the backend.
//!
//! ```text
//! key service (KMS, file)  ── wraps ─▶  tenant key, random, {tenant}/k/{id}/{wrapping key}
//! tenant key               ── wraps ─▶  data key, random, one for each write of an object, in the object's prefix
//! data key                 ── seals ─▶  segments of 16 KiB, AES-256-GCM, nonce = number of the segment
//! ```
//!
//! - **Ranged reads work**: plain offset `x` lies in segment `x / 16 KiB`; a read fetches and opens whole segments.
//! - **No nonce is used twice**: a data key is made for one write and numbers its segments. A second write of the same
//!   object makes another key.
//! - **Nothing can be swapped**: each segment is bound to the object's key in the store, its number, and whether it is
//!   the last; an object moved, cut or patched fails to open.
//! - **Rotation rewrites no payload**: a new wrapping key wraps the tenant keys anew, a few hundred bytes a tenant.
//! - **Two writers of one object** each write a whole object with its own data key; the last one stays, whole. A reader
//!   that remembers the key of the other one reads the prefix again.
//!
//! The design had one nonce for each piece. Segments of equal size need no directory to be found, so this layer knows
//! nothing of chunks. Sealed objects end in `.kvs`, so that a listing tells their sizes, and what a tenant stored before it had
//! a key is never taken for one of them.

mod ephemeral;
mod keyring;
mod keys;
mod plain_prefix;
mod segments;
mod store;
mod upload;

pub(crate) use ephemeral::Sealer;
pub(crate) use keyring::SealError;
pub use keys::{FileKeys, KeyService, KeyServiceError};
pub use segments::KeyBytes;
pub(crate) use store::SealedStore;

#[cfg(test)]
mod tests;
