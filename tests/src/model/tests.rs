//! For each promise, a history that the model must reject, and the closest one that it must accept.

use std::time::Duration;

use kvasir_api::{ChunkMatch, LookupResponse, Via};
use kvasir_types::{Medium, ObjectDigest, ProfileHash, RootHash, TokenChain};

use super::{Bounds, Interval, Lookup, Model, Outcome, Replica};
use crate::chunks::{self, Chunk};

const A: Replica = 1;
const B: Replica = 2;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// From one second to another.
fn at(begun: u64, ended: u64) -> Interval {
    Interval { begun: s(begun), ended: s(ended) }
}

struct History {
    model: Model,
    root: RootHash,
    chain: TokenChain,
    tokens: Vec<u32>,
    chunks: Vec<Chunk>,
}

/// A context of three chunks: 256, 256 and 100 tokens.
fn history(ttl: Option<u64>) -> History {
    let root = RootHash::derive("t", "n", b"salt", &chunks::spec().model_id());
    let tokens = chunks::tokens(1, 612);
    let chunks = chunks::context(root, &tokens, 256, 10);
    let bounds = Bounds {
        unknown: s(100),
        negative_ttl: s(2),
        removal: Some(s(30)),
        tombstone: s(200),
        ttl: ttl.map(s),
    };
    History { model: Model::new(bounds), root, chain: TokenChain::new(root, &tokens), tokens, chunks }
}

impl History {
    fn put(&mut self, by: Replica, when: Interval, n: usize) {
        let chunk = self.chunks[n].clone();
        self.puts(by, when, &chunk, Outcome::Acknowledged, Some(chunk.object_digest)).expect("its name");
    }

    fn remove(&mut self, by: Replica, when: Interval, n: usize, outcome: Outcome) {
        let removal = self.model.removal_begins(by, when.begun, self.chunks[n].seq_hash, None);
        self.model.removal_ends(removal, when.ended, outcome);
    }

    fn puts(
        &mut self,
        by: Replica,
        when: Interval,
        chunk: &Chunk,
        outcome: Outcome,
        object: Option<ObjectDigest>,
    ) -> Result<(), String> {
        let put = self.model.put_begins(by, when.begun, chunk);
        self.model.put_ends(put, when.ended, outcome, object)
    }

    fn hit(&self, n: usize) -> ChunkMatch {
        let first_token = n as u64 * 256;
        let tokens = (612 - first_token as u32).min(256);
        ChunkMatch {
            seq_hash: self.chunks[n].seq_hash,
            object_digest: self.chunks[n].object_digest,
            profile_hash: ProfileHash::of(chunks::PROFILE),
            first_token,
            tokens,
            matched_tokens: tokens,
            bytes: 1,
            head_bytes: 1,
            level_bytes: vec![1],
            kl_beneath: 0.0,
            errors: None,
            medium: Medium::Object,
            via: Via::Proxy,
        }
    }

    /// A fresh lookup that is answered with the first `count` chunks.
    fn looks(&mut self, by: Replica, when: Interval, count: usize) -> Result<(), String> {
        self.answers(by, when, true, (0..count).map(|n| self.hit(n)).collect())
    }

    fn answers(
        &mut self,
        by: Replica,
        at: Interval,
        reached: bool,
        chunks: Vec<ChunkMatch>,
    ) -> Result<(), String> {
        let matched_tokens = chunks.iter().map(|hit| u64::from(hit.matched_tokens)).sum();
        let answer = LookupResponse { matched_tokens, chunks };
        let (chain, tokens, answer) = (&self.chain, &self.tokens, &answer);
        self.model.lookup(Lookup { by, at, fresh: false, reached, chain, tokens, answer })
    }
}

#[test]
fn what_was_stored_is_found() {
    let mut h = history(None);
    (0..3).for_each(|n| h.put(A, at(0, 1), n));
    assert!(h.looks(A, at(1, 2), 2).is_err(), "the same replica at once");
    assert!(h.looks(B, at(2, 3), 0).is_ok(), "others may remember a miss");
    assert!(h.looks(B, at(3, 4), 2).is_err());
    assert!(h.looks(B, at(3, 4), 3).is_ok());
    assert!(h.answers(B, at(3, 4), false, Vec::new()).is_ok(), "it did not reach the store");
    assert_eq!(h.model.owed(s(1)).len(), 3);
}

#[test]
fn what_was_not_acknowledged_owes_nothing() {
    let mut h = history(None);
    let chunk = h.chunks[0].clone();
    h.puts(A, at(0, 1), &chunk, Outcome::Unknown, None).expect("no name");
    assert!(h.looks(A, at(1, 2), 0).is_ok());
    assert!(h.looks(A, at(2, 3), 1).is_ok());
}

#[test]
fn a_name_is_of_the_bytes_that_were_sent() {
    let mut h = history(None);
    let (one, other) = (h.chunks[0].clone(), h.chunks[1].object_digest);
    assert!(h.puts(A, at(0, 1), &one, Outcome::Acknowledged, Some(other)).is_err());
}

#[test]
fn lookups_match_chunks_of_these_tokens_in_their_order() {
    let mut h = history(None);
    (0..3).for_each(|n| h.put(A, at(0, 1), n));
    let (first, second) = (h.hit(0), h.hit(1));
    assert!(h.answers(A, at(1, 2), false, vec![second.clone()]).is_err(), "it begins elsewhere");
    assert!(h.answers(A, at(1, 2), false, vec![ChunkMatch { tokens: 255, ..first.clone() }]).is_err());
    let other = ChunkMatch { object_digest: second.object_digest, ..first.clone() };
    assert!(h.answers(A, at(1, 2), false, vec![other]).is_err(), "an object of another chunk");
    let part = ChunkMatch { matched_tokens: 16, ..first.clone() };
    assert!(h.answers(A, at(1, 2), false, vec![part]).is_ok());
    h.tokens[3] ^= 1;
    assert!(h.answers(A, at(1, 2), false, vec![first]).is_err(), "other tokens");
}

/// A chunk that A removed from second 2 to 3.
fn removed() -> History {
    let mut h = history(None);
    h.put(A, at(0, 1), 0);
    h.remove(A, at(2, 3), 0, Outcome::Acknowledged);
    h
}

#[test]
fn what_was_removed_is_not_offered() {
    assert!(removed().looks(A, at(2, 4), 1).is_ok(), "it began before the answer");
    assert!(removed().looks(A, at(3, 4), 1).is_err());
    assert!(removed().looks(B, at(3, 4), 1).is_ok(), "others may not have heard of it");
    assert!(removed().looks(B, at(33, 34), 1).is_err(), "the removal bound");
    let mut h = removed();
    h.model.heard(B, at(5, 6));
    assert!(h.looks(B, at(7, 8), 1).is_err(), "it has heard of it");
    assert!(h.looks(B, at(6, 7), 1).is_ok(), "at the same moment");
    assert!(h.looks(B, at(5, 7), 1).is_ok(), "it looks meanwhile");
    let (seq_hash, object) = (h.chunks[0].seq_hash, h.chunks[0].object_digest);
    assert!(h.model.named(at(3, 4), seq_hash, object).is_err(), "tombstones are asked for");
    assert!(h.model.named(at(2, 4), seq_hash, object).is_ok());
}

#[test]
fn a_removal_of_unknown_outcome_decides_nothing() {
    let mut h = history(None);
    h.put(A, at(0, 1), 0);
    h.remove(A, at(2, 3), 0, Outcome::Unknown);
    assert!(h.looks(A, at(4, 5), 1).is_ok());
    assert!(h.looks(A, at(5, 6), 0).is_ok());
    h.put(A, at(102, 103), 0);
    assert!(h.looks(A, at(104, 105), 0).is_ok(), "it may have come through after the second one");
    h.put(A, at(104, 105), 0);
    assert!(h.looks(A, at(106, 107), 0).is_err());
}

#[test]
fn what_is_stored_after_a_removal_is_found_again() {
    let mut h = history(None);
    h.put(A, at(0, 1), 0);
    h.remove(A, at(2, 3), 0, Outcome::Acknowledged);
    assert!(h.looks(A, at(4, 5), 0).is_ok());
    h.put(A, at(4, 5), 0);
    assert!(h.looks(A, at(6, 7), 1).is_ok());
    assert!(h.looks(A, at(6, 7), 0).is_err());
    assert_eq!(h.model.judged()["lookup that owed something"], 1, "a wrong answer counts for nothing");
}

#[test]
fn a_put_beside_a_removal_came_before_or_after_it_and_stays_so() {
    let mut h = history(None);
    h.put(A, at(0, 5), 0);
    h.remove(A, at(2, 3), 0, Outcome::Acknowledged);
    assert!(h.looks(A, at(6, 7), 0).is_ok(), "it came before");
    assert!(h.looks(A, at(6, 7), 1).is_ok(), "it came after");
    assert!(h.looks(A, at(8, 9), 0).is_err(), "after, as was seen");
}

#[test]
fn an_offer_by_who_is_slower_than_a_bound_below_the_promise_shows_no_order() {
    let mut h = history(None);
    h.model.bounds.removal = Some(s(10));
    h.put(A, at(0, 5), 0);
    h.remove(A, at(2, 3), 0, Outcome::Acknowledged);
    assert!(h.looks(B, at(32, 33), 1).is_ok());
    assert!(h.looks(B, at(32, 33), 0).is_ok(), "it may not have heard of the removal before");
    assert!(h.looks(B, at(33, 34), 1).is_ok());
    assert!(h.looks(B, at(35, 36), 0).is_err(), "it must have");
}

#[test]
fn a_put_that_outlived_one_removal_may_have_come_before_the_next() {
    let mut h = removed();
    h.put(A, at(4, 7), 0);
    h.remove(B, at(6, 8), 0, Outcome::Acknowledged);
    assert!(
        h.looks(A, at(9, 10), 1).is_ok(),
        "it came after the first one, and of the second it has not heard"
    );
    assert!(h.looks(A, at(11, 12), 0).is_ok(), "now it has");
}

#[test]
fn an_age_lets_the_collector_take_what_no_pin_holds() {
    let mut h = history(Some(10));
    h.put(A, at(0, 1), 0);
    assert!(h.looks(A, at(5, 6), 0).is_err());
    assert!(h.looks(A, at(9, 10), 0).is_ok());
    h.model.pin(1, at(5, 6), &[&h.chunks[0]]);
    assert!(h.looks(A, at(20, 21), 0).is_err(), "it is pinned");
    h.model.unpin(1, s(30));
    assert!(h.looks(A, at(29, 31), 0).is_ok());
    h.model.pin(2, at(40, 41), &[&h.chunks[0]]);
    assert!(h.looks(A, at(42, 43), 0).is_ok(), "who missed it a moment ago remembers that");
    assert!(h.looks(A, at(43, 44), 0).is_err());
}

#[test]
fn pinned_bytes_stay_until_the_pin_ends() {
    let mut h = history(Some(10));
    h.put(A, at(0, 1), 0);
    let there = [(h.chunks[0].seq_hash, h.chunks[0].object_digest)];
    h.model.pin(1, at(2, 3), &[&h.chunks[0]]);
    assert!(h.model.held(at(50, 50), &there).is_ok());
    assert!(h.model.held(at(2, 50), &[]).is_ok(), "it was not acknowledged yet");
    assert!(h.model.held(at(50, 50), &[]).is_err());
    h.model.unpin(1, s(60));
    assert!(h.model.held(at(60, 60), &[]).is_ok());
}

#[test]
fn a_pin_of_damaged_bytes_holds_what_is_stored_anew() {
    let mut h = history(None);
    h.put(A, at(0, 1), 0);
    let chunk = h.chunks[0].clone();
    let there = [(chunk.seq_hash, chunk.object_digest)];
    h.model.damaged(chunk.seq_hash, s(2), s(4));
    h.model.pin(1, at(50, 51), &[&chunk]);
    assert!(h.model.held(at(60, 60), &[]).is_ok(), "nobody found out");
    h.put(A, at(70, 71), 0);
    assert!(h.model.held(at(70, 80), &[]).is_ok(), "not stored yet");
    assert!(h.model.held(at(80, 80), &there).is_ok());
    assert!(h.model.held(at(80, 80), &[]).is_err());
}

#[test]
fn a_removal_of_a_chunk_takes_what_the_bucket_lists() {
    let mut h = history(None);
    h.put(A, at(0, 1), 0);
    let chunk = h.chunks[0].clone();
    h.model.damaged(chunk.seq_hash, s(2), s(4));
    h.remove(A, at(50, 51), 0, Outcome::Acknowledged);
    assert!(h.looks(A, at(52, 53), 1).is_ok(), "it was gone");
    h.put(A, at(60, 61), 0);
    h.remove(A, at(62, 63), 0, Outcome::Acknowledged);
    assert!(h.looks(A, at(64, 65), 1).is_err());
}

#[test]
fn a_removal_of_a_chunk_does_not_take_an_object_for_another_that_is_stored_since() {
    let mut h = history(None);
    h.put(A, at(0, 1), 0);
    let first = h.chunks[0].clone();
    h.model.damaged(first.seq_hash, s(2), s(4));
    h.chunks[0] = chunks::variant(h.root, &h.tokens, 0, 256, 10, 1);
    h.put(A, at(50, 51), 0);
    h.remove(A, at(52, 53), 0, Outcome::Acknowledged);
    assert!(h.looks(A, at(54, 55), 1).is_err());
    h.chunks[0] = first;
    assert!(h.looks(A, at(54, 55), 1).is_ok(), "the bucket did not list it");
}

#[test]
fn exchanged_objects_of_a_chunk_give_each_other_s_bytes() {
    let mut h = history(None);
    h.put(A, at(0, 1), 0);
    let (first, other) = (h.chunks[0].clone(), chunks::variant(h.root, &h.tokens, 0, 256, 10, 1));
    h.puts(A, at(2, 3), &other, Outcome::Acknowledged, Some(other.object_digest)).expect("its name");
    let from = first.bytes.len() - 10;
    let read = |h: &mut History, bytes: &[u8]| {
        h.model.read((A, at(5, 6)), &first.seq_hash, &first.object_digest, from as u64, bytes)
    };
    assert!(read(&mut h, &first.bytes[from..]).is_ok() && read(&mut h, &other.bytes[from..]).is_err());
    h.model.damaged(first.seq_hash, s(4), s(5));
    assert!(read(&mut h, &other.bytes[from..]).is_ok() && read(&mut h, &[0; 10]).is_err());
}

#[test]
fn a_removal_takes_pinned_bytes_too() {
    let mut h = history(None);
    h.put(A, at(0, 1), 0);
    h.model.pin(1, at(2, 3), &[&h.chunks[0]]);
    h.remove(A, at(4, 5), 0, Outcome::Unknown);
    assert!(h.model.held(at(50, 50), &[]).is_ok());
}

#[test]
fn bytes_are_those_of_the_name() {
    let mut h = history(None);
    h.put(A, at(0, 1), 0);
    let Chunk { bytes, seq_hash, object_digest } = h.chunks[0].clone();
    let (by, other) = ((A, at(2, 3)), h.chunks[1].object_digest);
    assert!(h.model.read(by, &seq_hash, &object_digest, 300, &bytes[300..320]).is_ok());
    assert!(h.model.read(by, &seq_hash, &object_digest, 301, &bytes[300..320]).is_err());
    assert!(h.model.read(by, &seq_hash, &other, 300, &bytes[300..320]).is_err());
}

#[test]
fn a_name_of_somebody_elses_is_no_licence_for_other_bytes() {
    let mut h = history(None);
    h.put(A, at(0, 1), 0);
    h.put(A, at(0, 1), 1);
    let Chunk { bytes, seq_hash, .. } = h.chunks[0].clone();
    let (other, foreign) = (h.chunks[1].bytes.clone(), h.chunks[1].object_digest);
    assert!(h.model.named(at(2, 3), seq_hash, foreign).is_err());
    h.model.planted(seq_hash, foreign);
    assert!(h.model.named(at(2, 3), seq_hash, foreign).is_ok());
    let mut read = |bytes: &[u8]| h.model.read((A, at(2, 3)), &seq_hash, &foreign, 300, bytes);
    assert!(read(&bytes[300..340]).is_ok());
    assert!(read(&other[300..340]).is_err());
}

#[test]
fn who_knows_of_a_removal_gives_no_bytes_of_it() {
    let mut h = history(None);
    h.put(A, at(0, 1), 0);
    h.remove(A, at(2, 3), 0, Outcome::Acknowledged);
    let Chunk { bytes, seq_hash, object_digest } = h.chunks[0].clone();
    let mut read = |by, at| h.model.read((by, at), &seq_hash, &object_digest, 300, &bytes[300..320]);
    assert!(read(A, at(2, 4)).is_ok(), "it began before");
    assert!(read(A, at(3, 4)).is_err());
    assert!(read(B, at(32, 34)).is_ok(), "within the bound");
    assert!(read(B, at(33, 34)).is_err());
}

#[test]
fn a_longer_chunk_lets_the_collector_take_the_shorter() {
    let mut h = history(None);
    let root = h.root;
    let mut longer = h.tokens.clone();
    longer.extend(chunks::tokens(2, 50));
    let longer = chunks::context(root, &longer, 256, 10).pop().expect("some");
    h.put(A, at(0, 1), 0);
    h.put(A, at(0, 1), 1);
    h.put(A, at(0, 1), 2);
    assert!(h.looks(A, at(2, 3), 2).is_err());
    h.puts(A, at(2, 3), &longer, Outcome::Unknown, None).expect("no name");
    assert!(h.looks(A, at(3, 4), 2).is_ok());
    assert!(h.looks(A, at(3, 4), 1).is_err(), "the others are whole");
}

#[test]
fn requests_under_way_decide_nothing() {
    let mut h = history(None);
    h.put(A, at(0, 1), 0);
    h.remove(A, at(2, 3), 0, Outcome::Acknowledged);
    let chunk = h.chunks[0].clone();
    h.model.put_begins(A, s(4), &chunk);
    assert!(h.looks(A, at(5, 6), 1).is_ok() && h.looks(A, at(5, 6), 0).is_ok());
    h.put(B, at(7, 8), 1);
    h.put(B, at(7, 8), 0);
    assert!(h.looks(B, at(9, 10), 0).is_err());
    h.model.removal_begins(A, s(9), chunk.seq_hash, None);
    assert!(h.looks(B, at(9, 10), 0).is_ok());
}

#[test]
fn a_request_of_unknown_outcome_comes_no_later_than_the_slowest_beside_it_took() {
    // Whether a chunk is owed that is stored at a time, after a removal from second 2 to 3.
    let is_owed = |beside: &[Interval], now: u64, stored: u64| {
        let mut h = history(None);
        h.model.bounds.unknown = s(5);
        h.remove(A, at(2, 3), 0, Outcome::Unknown);
        h.model.settle(beside, s(now));
        h.put(A, at(stored, stored + 1), 0);
        h.looks(A, at(stored + 2, stored + 3), 0).is_err()
    };
    let runs = Interval { begun: s(7), ended: Duration::MAX };
    let cases: [(&[Interval], u64, u64); 5] = [
        (&[at(7, 9), at(9, 60)], 60, 8),
        (&[at(7, 19)], 60, 15),
        (&[at(7, 13), at(9, 18)], 60, 12),
        (&[runs], 19, 15),
        (&[at(7, 60)], 60, 33),
    ];
    for (beside, now, latest) in cases {
        assert!(!is_owed(beside, now, latest), "{beside:?}: it may come as late");
        assert!(is_owed(beside, now, latest + 1), "{beside:?}: it comes no later");
    }
}
