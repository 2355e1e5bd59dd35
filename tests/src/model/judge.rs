//! The allowed answers.

use std::collections::BTreeSet;
use std::time::Duration;

use kvasir_api::{ChunkMatch, LookupResponse};
use kvasir_types::{BLOCK_TOKENS, ObjectDigest, SeqHash, TokenChain};

use super::{Interval, Model, Pin, Put, Removed, Replica, Segment};

/// The service's promise: how long another replica may offer data that a request removed. Tests may judge by a shorter time.
const REMOVAL_PROMISED: Duration = Duration::from_secs(30);

/// A lookup that was answered.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'a> {
    /// Who answered.
    pub by: Replica,
    /// When.
    pub at: Interval,
    /// Whether remembered misses were not to count.
    pub fresh: bool,
    /// Whether the replica reached the store with every request meanwhile.
    pub reached: bool,
    /// The hashes of the tokens.
    pub chain: &'a TokenChain,
    /// The tokens looked up.
    pub tokens: &'a [u32],
    /// The answer.
    pub answer: &'a LookupResponse,
}

impl Model {
    /// Judges a lookup: it offers chunks of these tokens in their order, nothing that is removed, and what is owed.
    ///
    /// # Errors
    /// What it must not have answered.
    pub fn lookup(&mut self, lookup: Lookup<'_>) -> Result<(), String> {
        let mut at = 0;
        for hit in &lookup.answer.chunks {
            self.is_of_these_tokens(&lookup, hit, at)?;
            at += u64::from(hit.matched_tokens);
        }
        if at != lookup.answer.matched_tokens {
            return Err(format!("{} tokens matched, its chunks have {at}", lookup.answer.matched_tokens));
        }
        for hit in &lookup.answer.chunks {
            let heard = |removal: &Removed, this: &Self| {
                let since = lookup.at.ended.saturating_sub(removal.at.begun);
                let is_old_enough = lookup.at.begun >= removal.at.ended;
                let asks = lookup.fresh && lookup.reached && is_old_enough && since < this.bounds.tombstone;
                asks || this.has_heard(lookup.by, lookup.at, removal)
            };
            self.is_not_removed(hit.seq_hash, hit.object_digest, lookup.at, heard)
                .map_err(|wrong| format!("a lookup by {} offers {wrong}", lookup.by))?;
        }
        let (owed, why) = if lookup.reached { self.owed_of(&lookup) } else { Default::default() };
        if lookup.answer.matched_tokens < owed {
            let Lookup { by, at, fresh, answer, .. } = lookup;
            let matched = answer.matched_tokens;
            let missed = why.iter().find(|segment| segment.first_token >= matched);
            let known = missed.map(|segment| self.known_of(segment)).unwrap_or_default();
            return Err(format!(
                "a lookup by {by} ({at:?}, fresh: {fresh}) matches {matched} tokens, {owed} are owed: {why:?}; {known}"
            ));
        }
        // A wrong answer may be judged again, by other bounds.
        self.count("lookup");
        if owed > 0 {
            self.count("lookup that owed something");
        }
        Ok(())
    }

    fn is_of_these_tokens(
        &mut self,
        lookup: &Lookup<'_>,
        hit: &ChunkMatch,
        expected_first: u64,
    ) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}: {hit:?}"));
        let object = if self.is_planted(&hit.seq_hash, &hit.object_digest) {
            self.truth.beginning_at(&hit.seq_hash, expected_first)
        } else {
            self.truth.object(&hit.seq_hash, &hit.object_digest)
        };
        let Some(object) = object else {
            return wrong("a lookup names an object that was never sent");
        };
        let first = hit.first_token as usize;
        let matched = lookup.tokens.get(first..first + hit.matched_tokens as usize);
        if hit.first_token != expected_first || hit.first_token != object.segment.first_token {
            return wrong("a chunk does not begin where the one before ends");
        }
        if lookup.chain.prefix_hash(first) != Some(object.parent_hash) {
            return wrong("a chunk does not follow these tokens");
        }
        let is_of = matched.is_some_and(|tokens| object.tokens.starts_with(tokens));
        if !is_of || hit.tokens as usize != object.tokens.len() || hit.matched_tokens == 0 {
            return wrong("a chunk is not of these tokens");
        }
        Ok(())
    }

    /// Whether a replica knows of a removal at the time of a request: it executed it, or has read of it.
    fn has_heard(&self, by: Replica, at: Interval, removal: &Removed) -> bool {
        let is_own = removal.by == by && at.begun >= removal.at.ended;
        // What ends and what begins at one moment of the simulation's clock may be in either order.
        let knows = |look: &Interval| look.begun >= removal.at.ended && look.ended < at.begun;
        let is_journal_sound = removal.at.begun > self.unheard_until;
        let is_heard = is_journal_sound && self.heard.get(&by).is_some_and(|looks| looks.iter().any(knows));
        is_own || is_heard
    }

    /// Judges whatever else names an object of a chunk: a read without a digest, a URL, a context. These ask the store for tombstones.
    ///
    /// # Errors
    /// The object was removed before.
    pub fn named(&mut self, at: Interval, seq_hash: SeqHash, object: ObjectDigest) -> Result<(), String> {
        if !self.is_planted(&seq_hash, &object) && self.truth.object(&seq_hash, &object).is_none() {
            return Err(format!("{object} of {seq_hash} was never sent"));
        }
        let heard = |removal: &Removed, _: &Self| at.begun >= removal.at.ended;
        self.is_not_removed(seq_hash, object, at, heard)?;
        self.count("named");
        Ok(())
    }

    /// Whether an offered object was not removed by a removal that the replica has `heard` of, or must know after the bound, or was
    /// stored again.
    fn is_not_removed(
        &mut self,
        seq_hash: SeqHash,
        object: ObjectDigest,
        at: Interval,
        heard: impl Fn(&Removed, &Self) -> bool,
    ) -> Result<(), String> {
        if self.is_planted(&seq_hash, &object) {
            // Whoever put it there may put it there again.
            return Ok(());
        }
        let sent = self.truth.sent_as(&seq_hash, &object);
        let is_past = |removal: &Removed, bound: Duration| at.begun >= removal.at.ended + bound;
        let must_know = |removal: &Removed| {
            heard(removal, self) || self.bounds.removal.is_some_and(|bound| is_past(removal, bound))
        };
        let removals: Vec<&Removed> = self
            .removals_of(&seq_hash)
            .filter(|r| r.is_acknowledged && r.covers(&seq_hash, Some(object)) && must_know(r))
            .filter(|r| r.object.is_some() || self.is_listed(&seq_hash, object, r.at.begun))
            .collect();
        let Some(last) = removals.iter().map(|r| r.at.begun).max() else { return Ok(()) };
        let may_be = |put: &&Put| {
            let is_it = put.object.map_or(Some(put.sent) == sent, |name| name == object);
            put.segment.seq_hash == seq_hash && is_it && put.settled >= last
        };
        if !self.puts_of(&seq_hash).any(|put| may_be(&put)) {
            let removal = removals.iter().max_by_key(|r| r.at.begun);
            return Err(format!("{object} of {seq_hash} at {at:?}, after its removal {removal:?}"));
        }
        // What ran beside its removal, and is offered by who knows of both, came after it: from now on it is owed. Who is only
        // slower than a bound below the promise may know of one.
        let knows = |r: &&&Removed| heard(r, self) || is_past(r, REMOVAL_PROMISED);
        let done = removals.iter().filter(knows).map(|r| r.at.ended).max().unwrap_or_default();
        let of_chunk = self.of_chunk.get(&seq_hash).map(|of| of.puts.as_slice()).unwrap_or_default();
        for n in of_chunk {
            let put = &mut self.puts[*n];
            if put.object == Some(object)
                && put.at.ended <= at.begun
                && done <= at.begun
                && put.settled >= last
            {
                put.outlived = put.outlived.max(done);
            }
        }
        Ok(())
    }

    /// How many tokens must match at least, and by which chunks.
    fn owed_of(&self, lookup: &Lookup<'_>) -> (u64, Vec<Segment>) {
        let by = (!lookup.fresh).then_some(lookup.by);
        let ends = |segment: &Segment, tokens: usize| {
            let end = segment.first_token as usize + tokens;
            let blocks = lookup.chain.blocks();
            let hash = match end {
                _ if end == lookup.tokens.len() => blocks.last(),
                _ if end.is_multiple_of(BLOCK_TOKENS) => blocks.get((end / BLOCK_TOKENS).wrapping_sub(1)),
                _ => None,
            };
            (hash == Some(&segment.seq_hash)).then_some(end as u64)
        };
        let of_these = self.truth.objects().filter_map(|sent| {
            let end = ends(&sent.segment, sent.tokens.len())?;
            self.is_owed(&sent.segment, by, lookup.at).then_some((sent.segment, end))
        });
        let mut of_these: Vec<_> = of_these.collect();
        of_these.sort();
        let (mut owed, mut why) = (0, Vec::new());
        let mut reached = BTreeSet::from([0]);
        while let Some(at) = reached.pop_first() {
            owed = at;
            for (segment, end) in of_these.iter().filter(|(segment, _)| segment.first_token == at) {
                reached.insert(*end);
                why.push(*segment);
            }
        }
        (owed, why)
    }

    /// Whether a chunk must be found by `by` (`None`: by any replica without cached misses) throughout a
    /// request.
    pub(super) fn is_owed(&self, segment: &Segment, by: Option<Replica>, at: Interval) -> bool {
        if self.is_contained(segment) {
            return false;
        }
        let stored = self.puts_of(&segment.seq_hash).any(|put| {
            let found = match by {
                Some(by) if by != put.by => put.at.ended.saturating_add(self.bounds.negative_ttl),
                _ => put.at.ended,
            };
            put.segment == *segment && put.object.is_some() && found <= at.begun && self.stays(put, at)
        });
        // The pin may be of what was stored a moment ago, in place of what the collector had taken: whoever missed that then still
        // remembers it.
        let remembered = by.map_or(Duration::ZERO, |_| self.bounds.negative_ttl);
        let shows =
            |pin: &Pin| self.holds(pin, segment, at) && pin.at.ended.saturating_add(remembered) <= at.begun;
        stored && (self.is_young(segment, at) || self.pins.values().any(shows))
    }

    /// The history of a chunk, for the report of a wrong answer.
    fn known_of(&self, segment: &Segment) -> String {
        let puts: Vec<&Put> = self.puts_of(&segment.seq_hash).collect();
        let removals: Vec<&Removed> = self.removals_of(&segment.seq_hash).collect();
        let pins: Vec<&Pin> = self.pins.values().filter(|pin| pin.segments.contains(segment)).collect();
        format!("puts {puts:?}, removals {removals:?}, pins {pins:?}")
    }

    /// Whether no removal can have happened after `put`.
    fn stays(&self, put: &Put, at: Interval) -> bool {
        let after = |removal: &&Removed| {
            let ran_beside = removal.at.begun <= put.at.ended;
            removal.covers(&put.segment.seq_hash, put.object)
                && removal.settled >= put.at.begun
                && removal.at.begun <= at.ended
                && !(removal.at.ended <= put.outlived && ran_beside && removal.is_acknowledged)
        };
        !self.removals_of(&put.segment.seq_hash).any(|removal| after(&removal))
    }

    /// Whether a longer chunk holds all of it: the collector may take it.
    fn is_contained(&self, segment: &Segment) -> bool {
        let Some(own) = self.truth.objects().find(|sent| sent.segment == *segment) else { return false };
        self.truth.objects().any(|other| {
            other.parent_hash == own.parent_hash
                && other.tokens.len() > own.tokens.len()
                && other.tokens.starts_with(&own.tokens)
        })
    }

    /// Whether no age lets the collector take it.
    fn is_young(&self, segment: &Segment, at: Interval) -> bool {
        let first = self
            .puts_of(&segment.seq_hash)
            .filter(|put| put.segment == *segment)
            .map(|put| put.at.begun)
            .min();
        self.bounds.ttl.is_none_or(|ttl| first.is_some_and(|first| at.ended < first + ttl))
    }

    /// Whether a pin protects the bytes of a chunk throughout a request.
    fn holds(&self, pin: &Pin, segment: &Segment, at: Interval) -> bool {
        let removed = |removal: &Removed| {
            removal.covers(&segment.seq_hash, removal.object)
                && removal.settled >= pin.at.begun
                && removal.at.begun <= at.ended
        };
        pin.segments.contains(segment)
            && pin.at.ended <= at.begun
            && pin.until.is_none_or(|until| at.ended < until)
            && !self.removals_of(&segment.seq_hash).any(removed)
            && self.is_sound(segment, at.begun)
    }

    /// Whether the bucket lists an object, so that a removal of its chunk removes it: nothing else has
    /// removed it since it was last stored.
    fn is_listed(&self, seq_hash: &SeqHash, object: ObjectDigest, now: Duration) -> bool {
        self.last_damaged(seq_hash, now).is_none_or(|damaged| {
            self.puts_of(seq_hash)
                .any(|put| put.object == Some(object) && put.at.begun > damaged && put.at.ended <= now)
        })
    }

    /// When the adversary last changed the bytes of a chunk.
    fn last_damaged(&self, seq_hash: &SeqHash, now: Duration) -> Option<Duration> {
        self.damaged.get(seq_hash).into_iter().flatten().filter(|at| **at <= now).max().copied()
    }

    /// Whether a chunk was stored after the adversary's last change of its bytes.
    fn is_sound(&self, segment: &Segment, now: Duration) -> bool {
        self.last_damaged(&segment.seq_hash, now).is_none_or(|damaged| {
            self.puts_of(&segment.seq_hash).any(|put| {
                let is_whole = put.object.is_some() && put.segment == *segment;
                is_whole && put.at.begun > damaged && put.at.ended <= now
            })
        })
    }

    /// Judges bytes of an object that `by` gave, and that passed whatever checks their reader makes.
    ///
    /// # Errors
    /// They are not the object's, or a request had removed it.
    pub fn read(
        &mut self,
        (by, at): (Replica, Interval),
        seq_hash: &SeqHash,
        object: &ObjectDigest,
        first: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        if self.is_planted(seq_hash, object) {
            if !self.truth.has(seq_hash, first, bytes) {
                return Err(format!("{object} of {seq_hash}, planted, gives other bytes"));
            }
            self.count("read");
            return Ok(());
        }
        match self.truth.bytes(seq_hash, object, first, bytes.len()) {
            Some(truth) if truth == bytes => {}
            _ if self.is_of_exchanged(seq_hash, at, first, bytes) => {}
            Some(_) => return Err(format!("{} bytes of {object} from {first} on are wrong", bytes.len())),
            None => {
                return Err(format!("{object} of {seq_hash} has no {} bytes from {first} on", bytes.len()));
            }
        }
        self.is_not_removed(*seq_hash, *object, at, |removal, this| this.has_heard(by, at, removal))
            .map_err(|wrong| format!("a read by {by} gives {wrong}"))?;
        self.count("read");
        Ok(())
    }

    /// Whether bytes belong to another object of a chunk whose bytes the adversary changed: if two of its
    /// objects were exchanged, both are valid, and no part shows which object it belongs to.
    fn is_of_exchanged(&self, seq_hash: &SeqHash, at: Interval, first: u64, bytes: &[u8]) -> bool {
        self.last_damaged(seq_hash, at.ended).is_some() && self.truth.has(seq_hash, first, bytes)
    }

    /// Judges what the bucket holds: of each pinned chunk the bytes. `held` are the sound objects that are there at `at`.
    ///
    /// # Errors
    /// The pinned chunks that are not there.
    pub fn held(&mut self, at: Interval, held: &[(SeqHash, ObjectDigest)]) -> Result<(), String> {
        let mut there = BTreeSet::new();
        for (seq_hash, object) in held {
            there.extend(self.truth.object(seq_hash, object).map(|sent| sent.segment));
        }
        for (n, pin) in &self.pins {
            let lost = pin.segments.iter().find(|s| self.holds(pin, s, at) && !there.contains(s));
            if let Some(lost) = lost {
                return Err(format!(
                    "the bytes of {lost:?} are gone at {at:?}, pinned by {n} at {:?}",
                    pin.at
                ));
            }
        }
        self.count("bucket");
        Ok(())
    }
}
