//! Seals data on a replica's own disk for the lifetime of the process.

use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use zeroize::Zeroizing;

use super::segments::{TAG_BYTES, gcm};

/// Seals under a random private key, and numbers its messages: no nonce repeats before 2⁶⁴.
#[derive(Debug)]
pub struct Sealer {
    key: LessSafeKey,
    sealed: AtomicU64,
}

impl Sealer {
    /// Bytes that sealing adds.
    pub const OVERHEAD: usize = TAG_BYTES as usize + 8;

    /// With a new random key.
    pub fn random() -> Self {
        Self { key: gcm(&Zeroizing::new(rand::random())), sealed: AtomicU64::new(0) }
    }

    /// `plain` sealed, bound to `place`.
    pub fn seal(&self, place: &[u8], plain: &[u8]) -> Vec<u8> {
        let number = self.sealed.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let mut out = Vec::with_capacity(plain.len() + Self::OVERHEAD);
        out.extend_from_slice(plain);
        let tag = self.key.seal_in_place_separate_tag(nonce(number), Aad::from(place), &mut out);
        out.extend_from_slice(tag.expect("a frame is far below GCM's limit").as_ref());
        out.extend_from_slice(&number);
        out
    }

    /// Opens the output of [`seal`](Self::seal) in place and returns the plain bytes. `None` if it is not
    /// valid.
    pub fn open<'a>(&self, place: &[u8], sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        let (bytes, number) = sealed.split_last_chunk_mut::<8>()?;
        self.key.open_in_place(nonce(*number), Aad::from(place), bytes).ok().map(|plain| &*plain)
    }
}

fn nonce(number: [u8; 8]) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number);
    Nonce::assume_unique_for_key(bytes)
}
