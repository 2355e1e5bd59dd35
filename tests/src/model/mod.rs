//! The promises of the service as a model in memory, which judges every answer.
//!
//! A test tells it what it asked for, when each request began and ended, and how it ended; the model says whether the answer may
//! be. It judges an answer by the requests that ended before it began. A request whose outcome is unknown widens what is legal: it
//! may take effect until [`Bounds::unknown`] after its end, where a test says so [later](Model::settle), or never.
//!
//! The collector may hide what an age ([`Bounds::ttl`]) or a longer chunk gives it a right to. A chunk that several objects hold is
//! there while one of them is. What no pin holds and what a request removed owes nothing.

mod judge;
mod keys;
mod late;
#[cfg(test)]
mod tests;
mod truth;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kvasir_types::{ObjectDigest, SeqHash};

use self::truth::Truth;
pub use self::{judge::Lookup, keys::Keys, late::slowest};
use crate::chunks::Chunk;

/// One life of one replica: a process that starts again is another.
pub type Replica = u64;

/// Who is none of the replicas.
const NOBODY: Replica = Replica::MAX;

/// When a request began and ended, since the history began.
#[derive(Debug, Clone, Copy)]
pub struct Interval {
    /// Before it was sent.
    pub begun: Duration,
    /// After its answer, or after its client stopped waiting for one.
    pub ended: Duration,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// With a success.
    Acknowledged,
    /// With an answer that reports that nothing was done.
    Refused,
    /// Without an answer, or with one that leaves it open.
    Unknown,
}

/// Times that the promises name.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// How long after its end a request of unknown outcome may take effect.
    pub unknown: Duration,
    /// How long another replica may remember a miss.
    pub negative_ttl: Duration,
    /// How long another replica may offer data that a request removed; `None`: until it has heard
    /// ([`Model::heard`]).
    pub removal: Option<Duration>,
    /// How long a tombstone stays at least, for fresh lookups to find it.
    pub tombstone: Duration,
    /// Age at which the collector may remove data without a pin; `None`: never.
    pub ttl: Option<Duration>,
}

/// A chunk with its beginning: objects of one `SeqHash` end at one block, but may begin at different ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Segment {
    first_token: u64,
    seq_hash: SeqHash,
}

#[derive(Debug)]
struct Put {
    segment: Segment,
    /// The name, if it was acknowledged.
    object: Option<ObjectDigest>,
    /// The sent object.
    sent: ObjectDigest,
    by: Replica,
    at: Interval,
    /// The latest time at which it can take effect; unbounded while it runs.
    settled: Duration,
    /// It was executed after the concurrent removals that had ended by then: a replica that knew of them
    /// offered it.
    outlived: Duration,
}

#[derive(Debug)]
struct Removed {
    seq_hash: SeqHash,
    /// None: all of the chunk.
    object: Option<ObjectDigest>,
    by: Replica,
    at: Interval,
    is_acknowledged: bool,
    settled: Duration,
}

impl Removed {
    fn covers(&self, seq_hash: &SeqHash, object: Option<ObjectDigest>) -> bool {
        self.seq_hash == *seq_hash && (self.object.is_none() || self.object == object)
    }
}

#[derive(Debug)]
struct Pin {
    segments: Vec<Segment>,
    at: Interval,
    /// When its end was requested.
    until: Option<Duration>,
}

#[derive(Debug, Default)]
struct OfChunk {
    puts: Vec<usize>,
    removals: Vec<usize>,
}

/// The promises and the history so far.
#[derive(Debug)]
pub struct Model {
    bounds: Bounds,
    truth: Truth,
    puts: Vec<Put>,
    removals: Vec<Removed>,
    /// Which of them are of a chunk.
    of_chunk: BTreeMap<SeqHash, OfChunk>,
    pins: BTreeMap<u64, Pin>,
    /// When the adversary changed bytes of a chunk.
    damaged: BTreeMap<SeqHash, Vec<Duration>>,
    /// Names that the adversary gave to objects of a chunk.
    planted: BTreeSet<(SeqHash, ObjectDigest)>,
    /// Until then no replica need have heard of any removal: the journal was tampered with.
    unheard_until: Duration,
    /// Looks at all removals that a replica brought to an end.
    heard: BTreeMap<Replica, Vec<Interval>>,
    judged: BTreeMap<&'static str, u64>,
}

impl Model {
    /// Of an empty bucket.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            truth: Truth::default(),
            puts: Vec::new(),
            removals: Vec::new(),
            of_chunk: BTreeMap::new(),
            pins: BTreeMap::new(),
            damaged: BTreeMap::new(),
            planted: BTreeSet::new(),
            unheard_until: Duration::ZERO,
            heard: BTreeMap::new(),
            judged: BTreeMap::new(),
        }
    }

    /// From now on, a replica must know others' removals after `bound`. Returns the bound until then.
    pub fn set_removal_bound(&mut self, bound: Option<Duration>) -> Option<Duration> {
        std::mem::replace(&mut self.bounds.removal, bound)
    }

    /// How many answers of each kind were judged, and how many of them owed anything.
    pub fn judged(&self) -> &BTreeMap<&'static str, u64> {
        &self.judged
    }

    fn count(&mut self, what: &'static str) {
        *self.judged.entry(what).or_default() += 1;
    }

    fn settled(&self, ended: Duration, outcome: Outcome) -> Duration {
        if outcome == Outcome::Unknown { ended + self.bounds.unknown } else { ended }
    }

    /// A chunk is sent. Gives the number of the request.
    pub fn put_begins(&mut self, by: Replica, begun: Duration, chunk: &Chunk) -> usize {
        let segment = self.truth.learn(chunk);
        self.put(by, begun, segment, chunk.object_digest)
    }

    fn put(&mut self, by: Replica, begun: Duration, segment: Segment, sent: ObjectDigest) -> usize {
        let at = Interval { begun, ended: Duration::MAX };
        let (settled, outlived) = (Duration::MAX, Duration::ZERO);
        self.puts.push(Put { segment, object: None, sent, by, at, settled, outlived });
        let put = self.puts.len() - 1;
        self.of_chunk.entry(segment.seq_hash).or_default().puts.push(put);
        put
    }

    /// It was answered. `object` is the name that was acknowledged.
    ///
    /// # Errors
    /// The name is not one of the bytes that were sent.
    pub fn put_ends(
        &mut self,
        put: usize,
        ended: Duration,
        outcome: Outcome,
        object: Option<ObjectDigest>,
    ) -> Result<(), String> {
        self.count("put");
        let settled = self.settled(ended, outcome);
        let put = &mut self.puts[put];
        (put.at.ended, put.object) = (ended, object);
        put.settled = if outcome == Outcome::Refused { Duration::ZERO } else { settled };
        let (seq_hash, sent) = (put.segment.seq_hash, put.sent);
        match object {
            Some(object) if self.truth.sent_as(&seq_hash, &object) != Some(sent) => {
                Err(format!("{seq_hash} was acknowledged under {object}, which are other bytes"))
            }
            _ => Ok(()),
        }
    }

    /// A removal of a chunk, or of one object of it, was requested. Returns the number of the request.
    pub fn removal_begins(
        &mut self,
        by: Replica,
        begun: Duration,
        seq_hash: SeqHash,
        object: Option<ObjectDigest>,
    ) -> usize {
        let (at, settled) = (Interval { begun, ended: Duration::MAX }, Duration::MAX);
        self.removals.push(Removed { seq_hash, object, by, at, is_acknowledged: false, settled });
        let removal = self.removals.len() - 1;
        self.of_chunk.entry(seq_hash).or_default().removals.push(removal);
        removal
    }

    /// When each PUT and each removal ran. What runs has no end yet.
    pub fn requests(&self) -> impl Iterator<Item = Interval> {
        self.puts.iter().map(|put| put.at).chain(self.removals.iter().map(|removal| removal.at))
    }

    /// What ended with an unknown outcome may take effect for as long after its end as one of `requests` beside it took until
    /// `now`, if that is longer than [`Bounds::unknown`], but for 30 s at most.
    pub fn settle(&mut self, requests: &[Interval], now: Duration) {
        let puts = self.puts.iter_mut().map(|put| (put.at, &mut put.settled));
        let removals = self.removals.iter_mut().map(|removal| (removal.at, &mut removal.settled));
        late::settle(puts.chain(removals), requests, now);
    }

    /// What was asked about a chunk, for the report of a failure.
    pub fn record_of(&self, seq_hash: &SeqHash) -> String {
        let puts = self.puts_of(seq_hash).map(|put| (put.at.begun, format!("{put:?}")));
        let removals = self.removals_of(seq_hash).map(|removal| (removal.at.begun, format!("{removal:?}")));
        let mut all: Vec<_> = puts.chain(removals).collect();
        all.sort();
        all.into_iter().map(|(_, what)| what + "\n").collect()
    }

    fn puts_of(&self, seq_hash: &SeqHash) -> impl Iterator<Item = &Put> {
        self.of_chunk.get(seq_hash).into_iter().flat_map(|of| &of.puts).map(|n| &self.puts[*n])
    }

    fn removals_of(&self, seq_hash: &SeqHash) -> impl Iterator<Item = &Removed> {
        self.of_chunk.get(seq_hash).into_iter().flat_map(|of| &of.removals).map(|n| &self.removals[*n])
    }

    /// It was answered.
    pub fn removal_ends(&mut self, removal: usize, ended: Duration, outcome: Outcome) {
        self.count("removal");
        let settled = self.settled(ended, outcome);
        let removal = &mut self.removals[removal];
        removal.at.ended = ended;
        removal.is_acknowledged = outcome == Outcome::Acknowledged;
        removal.settled = if outcome == Outcome::Refused { Duration::ZERO } else { settled };
    }

    /// A replica has taken in all removals that were acknowledged before `at` began.
    pub fn heard(&mut self, by: Replica, at: Interval) {
        self.heard.entry(by).or_default().push(at);
    }

    /// A pin of chunks that follow each other from the root on was acknowledged.
    pub fn pin(&mut self, pin: u64, at: Interval, chunks: &[&Chunk]) {
        self.count("pin");
        let segments = chunks.iter().map(|chunk| self.truth.learn(chunk)).collect();
        self.pins.insert(pin, Pin { segments, at, until: None });
    }

    /// The end of a pin was requested, whatever its result.
    pub fn unpin(&mut self, pin: u64, begun: Duration) {
        if let Some(pin) = self.pins.get_mut(&pin) {
            pin.until = Some(begun);
        }
    }

    /// The adversary changed, at `at`, an object or a tombstone of a chunk: from then until `until` the
    /// object may be missing or restored. Bytes are still judged, and so are objects stored later.
    pub fn tampered(&mut self, seq_hash: SeqHash, at: Duration, until: Duration) {
        self.count("tampered chunk");
        let removal = self.removal_begins(NOBODY, at, seq_hash, None);
        self.removals[removal].at.ended = at;
        self.removals[removal].settled = until;
        for (segment, sent) in self.truth.of(&seq_hash) {
            let put = self.put(NOBODY, at, segment, sent);
            self.puts[put].at.ended = at;
            self.puts[put].settled = until;
        }
    }

    /// [`Model::tampered`], of the bytes themselves: a later pin protects nothing before the chunk is stored
    /// again. No replica need have noticed, and a valid copy may have been removed as the worse of two.
    pub fn damaged(&mut self, seq_hash: SeqHash, at: Duration, until: Duration) {
        self.tampered(seq_hash, at, until);
        self.damaged.entry(seq_hash).or_default().push(at);
    }

    /// The adversary stored an object under a name that no service gave it. Readers that find valid bytes of
    /// the chunk there may offer them: only a reader of the whole object verifies the name. The bytes are
    /// still judged.
    pub fn planted(&mut self, seq_hash: SeqHash, object: ObjectDigest) {
        if self.truth.object(&seq_hash, &object).is_none() {
            self.planted.insert((seq_hash, object));
        }
    }

    fn is_planted(&self, seq_hash: &SeqHash, object: &ObjectDigest) -> bool {
        self.planted.contains(&(*seq_hash, *object))
    }

    /// The adversary changed a batch of the journal at `at`: its original contents are not heard of, and its
    /// contents from then until `until` may name any chunk that was ever removed.
    pub fn tampered_journal(&mut self, at: Duration, until: Duration) {
        self.count("tampered journal");
        self.unheard_until = self.unheard_until.max(until);
        let removed: BTreeSet<SeqHash> = self.removals.iter().map(|removal| removal.seq_hash).collect();
        removed.into_iter().for_each(|seq_hash| self.tampered(seq_hash, at, until));
    }

    /// The chunks that must be there at `now`, for every replica that reaches the store.
    pub fn owed(&self, now: Duration) -> BTreeSet<SeqHash> {
        let segments: BTreeSet<Segment> = self.puts.iter().map(|put| put.segment).collect();
        let is_owed = |segment: &Segment| self.is_owed(segment, None, Interval { begun: now, ended: now });
        segments.into_iter().filter(is_owed).map(|segment| segment.seq_hash).collect()
    }
}
