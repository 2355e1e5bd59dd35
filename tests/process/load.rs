//! Clients of a process that may be killed during requests, and the record of acknowledged data.

use std::{collections::BTreeMap, sync::Mutex};

use kvasir_api::{StoredChunk, routes};
use kvasir_tests::{
    chunks::{self, Chunk},
    faulty::Dice,
    service::Api,
};
use kvasir_types::{ModelId, ObjectDigest, RootHash, SeqHash};
use reqwest::{Method, StatusCode};

/// Acknowledged data whose removal was never requested, by its chunk, with its tokens.
#[derive(Debug, Default)]
pub(crate) struct Book {
    kept: Mutex<BTreeMap<SeqHash, (Vec<u32>, ObjectDigest)>>,
    /// Requests that were answered with a success.
    pub(crate) answered: Mutex<BTreeMap<&'static str, u64>>,
}

impl Book {
    fn keep(&self, tokens: Vec<u32>, stored: &StoredChunk) {
        let mut kept = self.kept.lock().expect("not poisoned");
        kept.insert(stored.seq_hash, (tokens, stored.object_digest));
    }

    fn count(&self, what: &'static str) {
        *self.answered.lock().expect("not poisoned").entry(what).or_default() += 1;
    }

    /// Chunks that must be there.
    pub(crate) fn len(&self) -> usize {
        self.kept.lock().expect("not poisoned").len()
    }

    /// One of them, not to be counted on any more.
    fn give_up(&self, dice: &mut Dice) -> Option<SeqHash> {
        let mut kept = self.kept.lock().expect("not poisoned");
        let at = dice.below(kept.len());
        let seq_hash = *kept.keys().nth(at)?;
        kept.remove(&seq_hash);
        Some(seq_hash)
    }

    /// Reads up to `most` of what must be there, the newest first, from lookup to the last byte.
    ///
    /// # Panics
    /// When anything is lost or wrong.
    pub(crate) async fn verify(&self, api: &Api, model_id: &ModelId, most: usize) {
        let kept = self.kept.lock().expect("not poisoned").clone();
        let step = kept.len().div_ceil(most.max(1)).max(1);
        for (seq_hash, (tokens, object)) in kept.iter().step_by(step) {
            let found = api.lookup_tokens(*model_id, tokens).await;
            assert_eq!(found.matched_tokens, tokens.len() as u64, "lost: {seq_hash} {object}");
            assert_eq!(found.chunks[0].object_digest, *object, "another object: {seq_hash}");
            let path = routes::chunk_object(model_id, seq_hash, object);
            let response = api.get(&path, &[]).await;
            assert_eq!(response.status(), StatusCode::OK, "lost: {seq_hash}");
            let bytes = response.bytes().await.expect("reads");
            assert_eq!(ObjectDigest::of(&bytes), *object, "wrong: {seq_hash}");
        }
    }
}

/// The actions of one client until the process ends.
#[derive(Debug)]
pub(crate) struct Client<'a> {
    pub(crate) api: Api,
    pub(crate) model_id: ModelId,
    pub(crate) root: RootHash,
    pub(crate) book: &'a Book,
    pub(crate) dice: Dice,
    /// Whether failures end it; otherwise it continues, for a store that fails while the process lives.
    pub(crate) ends: bool,
    /// The most requests it makes.
    pub(crate) requests: usize,
}

impl Client<'_> {
    fn chunk(&mut self) -> (Vec<u32>, Chunk) {
        let count = 16 + self.dice.below(500);
        let tokens = chunks::tokens(self.dice.number(), count);
        // One in eight goes in parts.
        let piece_bytes = if self.dice.chance(125) { 2_400_000 } else { 1 + self.dice.below(4_000) };
        let chunk = chunks::chunk(self.root, &tokens, 0, count, piece_bytes);
        (tokens, chunk)
    }

    /// Stores, removes, reads.
    pub(crate) async fn run(mut self) {
        for _ in 0..self.requests {
            let answered = match self.dice.below(10) {
                0 => self.remove().await,
                1..=4 => self.read().await,
                _ => self.store().await,
            };
            if !answered && self.ends {
                return;
            }
        }
    }

    async fn store(&mut self) -> bool {
        let (tokens, chunk) = self.chunk();
        let path = routes::chunk(&self.model_id, &chunk.seq_hash);
        let Ok(response) = self.api.try_send(Method::PUT, &path, chunk.bytes).await else { return false };
        let stores = response.status().is_success();
        // An acknowledgement that did not arrive is none.
        let Ok(text) = response.text().await else { return false };
        if stores {
            let stored: StoredChunk = serde_json::from_str(&text).expect("its JSON");
            // No chunk is sent twice, so no object of it was removed before.
            assert_eq!((stored.seq_hash, stored.object_digest), (chunk.seq_hash, chunk.object_digest));
            self.book.keep(tokens, &stored);
            self.book.count("stored");
        }
        stores
    }

    async fn remove(&mut self) -> bool {
        let Some(seq_hash) = self.book.give_up(&mut self.dice) else { return true };
        let path = routes::chunk(&self.model_id, &seq_hash);
        let answer = self.api.try_send(Method::DELETE, &path, "").await;
        let removed = answer.is_ok_and(|response| response.status().is_success());
        if removed {
            self.book.count("removed");
        }
        removed
    }

    /// Every received object must match its name, or be cut off.
    async fn read(&mut self) -> bool {
        let wanted = {
            let kept = self.book.kept.lock().expect("not poisoned");
            let at = self.dice.below(kept.len());
            kept.iter().nth(at).map(|(seq_hash, (_, object))| (*seq_hash, *object))
        };
        let Some((seq_hash, object)) = wanted else { return true };
        let path = routes::chunk_object(&self.model_id, &seq_hash, &object);
        let Ok(response) = self.api.try_send(Method::GET, &path, "").await else { return false };
        if response.status() != StatusCode::OK {
            return !response.status().is_server_error();
        }
        let Ok(bytes) = response.bytes().await else { return false };
        let head = kvasir_container::Head::parse(&bytes);
        if ObjectDigest::of(&bytes) == object {
            self.book.count("read");
            return true;
        }
        // A client checks every piece; a wrong one must not pass.
        let Ok(head) = head else { return true };
        for (section, span, entry) in head.pieces() {
            let range = entry.range.start as usize..entry.range.end as usize;
            let Some(piece) = bytes.get(range) else { continue };
            if head.check_piece(section, span, piece).is_ok() {
                let level = head.sections()[section].level.0;
                let truth = chunks::piece(level, span, piece.len());
                assert!(piece == truth, "wrong bytes passed their checksum: {seq_hash}");
            }
        }
        true
    }
}
