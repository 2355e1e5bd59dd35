//! The sent bytes, under every name that they may have.

use std::collections::BTreeMap;

use kvasir_container::{HEADER_BYTES, Head, reissue_header};
use kvasir_types::{ObjectDigest, SeqHash};

use super::Segment;
use crate::chunks::Chunk;

/// Names under which an object is searched: it gets the next one if its name was removed.
const INCARNATIONS_MAX: u16 = 1_000;

/// One object as it was sent.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) segment: Segment,
    pub(super) parent_hash: [u8; 32],
    pub(super) tokens: Vec<u32>,
    bytes: Vec<u8>,
    /// Its names so far, by incarnation.
    names: Vec<ObjectDigest>,
}

impl Sent {
    fn incarnation(&self, n: u16) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let header = bytes.first_chunk_mut::<HEADER_BYTES>().expect("was parsed");
        reissue_header(header, n).expect("was parsed");
        bytes
    }
}

#[derive(Debug, Default)]
pub(super) struct Truth {
    /// By the digest of the bytes that were sent.
    objects: BTreeMap<ObjectDigest, Sent>,
    of_chunk: BTreeMap<SeqHash, Vec<ObjectDigest>>,
}

impl Truth {
    pub(super) fn learn(&mut self, chunk: &Chunk) -> Segment {
        if let Some(known) = self.objects.get(&chunk.object_digest) {
            return known.segment;
        }
        let head = Head::parse(&chunk.bytes).expect("made by a test");
        let segment = Segment { first_token: head.header.first_position, seq_hash: chunk.seq_hash };
        let sent = Sent {
            segment,
            parent_hash: head.header.parent_hash,
            tokens: head.tokens,
            bytes: chunk.bytes.clone(),
            names: vec![chunk.object_digest],
        };
        self.objects.insert(chunk.object_digest, sent);
        self.of_chunk.entry(chunk.seq_hash).or_default().push(chunk.object_digest);
        segment
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &Sent> {
        self.objects.values()
    }

    /// The objects of a chunk that were sent, by the digest of their bytes.
    pub(super) fn of(&self, seq_hash: &SeqHash) -> Vec<(Segment, ObjectDigest)> {
        let sent = self.of_chunk.get(seq_hash).into_iter().flatten();
        sent.map(|digest| (self.objects[digest].segment, *digest)).collect()
    }

    /// The bytes as they were sent that `name` names, by their digest.
    pub(super) fn sent_as(&mut self, seq_hash: &SeqHash, name: &ObjectDigest) -> Option<ObjectDigest> {
        let sent = self.of_chunk.get(seq_hash)?.clone();
        let known = |this: &Self, sent: &ObjectDigest| this.objects[sent].names.contains(name);
        if let Some(found) = sent.iter().find(|sent| known(self, sent)) {
            return Some(*found);
        }
        // Mostly the next name, of one of few objects.
        for n in 1..=INCARNATIONS_MAX {
            for digest in &sent {
                let object = self.objects.get_mut(digest)?;
                if object.names.len() == usize::from(n) {
                    object.names.push(ObjectDigest::of(&object.incarnation(n)));
                    if object.names.last() == Some(name) {
                        return Some(*digest);
                    }
                }
            }
        }
        None
    }

    pub(super) fn object(&mut self, seq_hash: &SeqHash, name: &ObjectDigest) -> Option<&Sent> {
        let sent = self.sent_as(seq_hash, name)?;
        self.objects.get(&sent)
    }

    /// An object of a chunk, by any name, that begins at a token.
    pub(super) fn beginning_at(&self, seq_hash: &SeqHash, first_token: u64) -> Option<&Sent> {
        let sent = self.of_chunk.get(seq_hash)?.iter().map(|digest| &self.objects[digest]);
        sent.into_iter().find(|sent| sent.segment.first_token == first_token)
    }

    /// Whether `bytes`, which follow the header, belong to some object of a chunk from `first` on.
    pub(super) fn has(&self, seq_hash: &SeqHash, first: u64, bytes: &[u8]) -> bool {
        let range = first as usize..first as usize + bytes.len();
        let mut sent = self.of_chunk.get(seq_hash).into_iter().flatten().map(|digest| &self.objects[digest]);
        first >= HEADER_BYTES as u64 && sent.any(|sent| sent.bytes.get(range.clone()) == Some(bytes))
    }

    /// The bytes of an object from `first` on, as many as `count`.
    pub(super) fn bytes(
        &mut self,
        seq_hash: &SeqHash,
        name: &ObjectDigest,
        first: u64,
        count: usize,
    ) -> Option<Vec<u8>> {
        let object = self.object(seq_hash, name)?;
        let first = usize::try_from(first).ok()?;
        let range = first..first.checked_add(count)?;
        if first >= HEADER_BYTES {
            return Some(object.bytes.get(range)?.to_vec());
        }
        let n = object.names.iter().position(|known| known == name)?;
        let bytes = if n == 0 { object.bytes.clone() } else { object.incarnation(n as u16) };
        Some(bytes.get(range)?.to_vec())
    }
}
