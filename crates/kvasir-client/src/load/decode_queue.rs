//! Decodes verified chunks on blocking threads, a few units at a time, early layers first.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    sync::Arc,
    time::Duration,
};

use kvasir_codec::ChunkDecoder;
use kvasir_types::TokenRange;
use tokio::task::JoinSet;

use super::{
    assembly::VerifiedChunk,
    decode::{DecodeContext, DecodeOutcome, DecodeUnit, decode_units},
    token_ranges::{context_range, insert_range},
};
use crate::limits::DECODE_CONCURRENCY;

/// The decodes of a load.
pub(super) struct DecodeQueue {
    context: Arc<DecodeContext>,
    /// One per chunk of the load.
    decoders: Vec<Arc<dyn ChunkDecoder>>,
    /// In the order of [`DecodeUnit::key`].
    waiting: BinaryHeap<Reverse<QueuedUnit>>,
    /// At most [`DECODE_CONCURRENCY`]. Dropped with the load.
    running: JoinSet<DecodeOutcome>,
    /// Chunks with waiting or running units.
    chunks: BTreeMap<usize, ChunkDecode>,
}

/// The outcome of decoding a chunk, so far or in total.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ChunkDecode {
    units_left: usize,
    /// Time on decoding threads.
    pub(super) took: Duration,
    /// Tokens whose decode failed. They may be computed once no unit writes to this chunk's pages.
    pub(super) undecodable: Vec<TokenRange>,
}

impl DecodeQueue {
    pub(super) fn new(context: DecodeContext, decoders: Vec<Arc<dyn ChunkDecoder>>) -> Self {
        let (waiting, running, chunks) = (BinaryHeap::new(), JoinSet::new(), BTreeMap::new());
        Self { context: Arc::new(context), decoders, waiting, running, chunks }
    }

    /// Queues a chunk whose first token is the context's `first_token`. Returns the tokens that cannot be
    /// decoded at any level; `None` if that is all of them and nothing was queued.
    pub(super) fn push(
        &mut self,
        chunk: usize,
        first_token: u64,
        verified: &VerifiedChunk,
    ) -> Option<Vec<TokenRange>> {
        let units = decode_units((chunk, first_token), verified, &self.decoders[chunk], &self.context);
        if units.is_empty() {
            return None;
        }
        self.chunks.insert(chunk, ChunkDecode { units_left: units.len(), ..ChunkDecode::default() });
        self.waiting.extend(units.into_iter().map(|unit| Reverse(QueuedUnit(unit))));
        self.start();
        let damaged = verified.runs.iter().filter(|(_, level)| level.is_none());
        Some(damaged.map(|(tokens, _)| context_range(first_token, tokens)).collect())
    }

    pub(super) fn is_on_device(&self) -> bool {
        self.context.is_on_device()
    }

    /// Whether any chunk waits for its decode or is being decoded.
    pub(super) fn is_decoding(&self) -> bool {
        !self.chunks.is_empty()
    }

    /// Waits for the next unit to end. The last unit of a chunk also returns the chunk's outcome.
    /// Cancel-safe; waits forever if nothing is queued.
    pub(super) async fn next(&mut self) -> (DecodeOutcome, Option<ChunkDecode>) {
        loop {
            match self.running.join_next().await {
                Some(Ok(outcome)) => {
                    self.start();
                    let done = self.count(&outcome);
                    return (outcome, done);
                }
                Some(Err(_)) => {} // the runtime ends
                None => std::future::pending().await,
            }
        }
    }

    fn start(&mut self) {
        while self.running.len() < DECODE_CONCURRENCY
            && let Some(Reverse(QueuedUnit(unit))) = self.waiting.pop()
        {
            self.running.spawn(unit.run(Arc::clone(&self.context)));
        }
    }

    /// Counts a finished unit; returns the chunk's outcome with its last one.
    fn count(&mut self, outcome: &DecodeOutcome) -> Option<ChunkDecode> {
        let chunk = self.chunks.get_mut(&outcome.scope.chunk)?;
        chunk.took += outcome.took;
        if outcome.result.is_err() {
            insert_range(&mut chunk.undecodable, outcome.scope.tokens);
        }
        if chunk.units_left > 1 {
            chunk.units_left -= 1;
            return None;
        }
        self.chunks.remove(&outcome.scope.chunk)
    }
}

/// A queued unit, ordered by [`DecodeUnit::key`].
struct QueuedUnit(DecodeUnit);

impl PartialEq for QueuedUnit {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for QueuedUnit {}
impl PartialOrd for QueuedUnit {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for QueuedUnit {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.key().cmp(&other.0.key())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use kvasir_codec::{DecodeError, KvSink, container::Head};
    use kvasir_types::{KvDtype, KvLayout, LayerKv, Level, ModelSpec, Pairing, Reuse, Rope, SPAN_TOKENS};

    use super::{super::sample::SampleChunk, *};
    use crate::pages::HostPages;

    /// Decodes nothing; fails if a run begins at one of these tokens.
    struct FailingAt(Vec<usize>);

    impl ChunkDecoder for FailingAt {
        fn decode(
            &self,
            _: &Head,
            _: &[u8],
            level: Level,
            tokens: Range<usize>,
            _: &mut dyn KvSink,
        ) -> Result<(), DecodeError> {
            let fails = self.0.contains(&tokens.start);
            if fails { Err(DecodeError::NoSuchLevel { level, top: level }) } else { Ok(()) }
        }
    }

    /// A queue for chunks whose runs fail at these tokens.
    fn queue(failing: &[&[usize]]) -> DecodeQueue {
        let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 1, head_dim: 8 }, rope: Some(0) };
        let spec = ModelSpec {
            weights: "toy".into(),
            revision: "1".into(),
            adapter: None,
            kv_dtype: KvDtype::F16,
            ropes: vec![Rope::plain(Pairing::Half, 8, 10_000.0)],
            layers: vec![layer],
            thinning: None,
            reuse: Reuse::Prefix,
        };
        let tables = vec![HostPages::new(&spec, 16, 16).unwrap().table()];
        let context = DecodeContext::new(Arc::new(spec), tables, Arc::default());
        let decoder = |at: &&[usize]| Arc::new(FailingAt(at.to_vec())) as Arc<dyn ChunkDecoder>;
        DecodeQueue::new(context, failing.iter().map(decoder).collect())
    }

    /// A chunk with one span per run, at these levels.
    fn verified(levels: &[Option<u8>]) -> VerifiedChunk {
        let SampleChunk { head, bytes, .. } = SampleChunk::new();
        let run =
            |(i, level): (usize, &Option<u8>)| (i * SPAN_TOKENS..(i + 1) * SPAN_TOKENS, level.map(Level));
        VerifiedChunk { head, bytes: bytes.into(), runs: levels.iter().enumerate().map(run).collect() }
    }

    const fn span(context_span: u64) -> TokenRange {
        let tokens = SPAN_TOKENS as u64;
        TokenRange { start: context_span * tokens, end: (context_span + 1) * tokens }
    }

    #[tokio::test]
    async fn a_chunk_ends_with_its_last_unit_and_says_what_failed() {
        let mut queue = queue(&[&[0, 256]]);
        let damaged = queue.push(0, span(4).start, &verified(&[Some(0), Some(1), Some(0), None])).unwrap();
        assert_eq!(damaged, [span(7)]);
        let mut ends = Vec::new();
        for _ in 0..3 {
            ends.push(queue.next().await);
        }
        let failed = ends.iter().filter(|(outcome, _)| outcome.result.is_err()).count();
        assert_eq!((failed, ends[0].1.is_none(), ends[1].1.is_none()), (2, true, true));
        let undecodable = &ends[2].1.as_ref().unwrap().undecodable;
        assert_eq!(undecodable[..], [TokenRange { start: span(4).start, end: span(5).end }]);
        assert_eq!(queue.count(&ends[0].0), None, "a unit of no chunk that is queued");
    }

    #[tokio::test]
    async fn a_chunk_of_which_nothing_is_verified_is_not_queued() {
        let mut queue = queue(&[&[]]);
        assert_eq!(queue.push(0, 0, &verified(&[None, None])), None);
        assert!(queue.running.is_empty() && queue.chunks.is_empty());
    }

    #[tokio::test]
    async fn few_units_run_at_a_time_and_earlier_chunks_go_first() {
        let mut queue = queue(&[&[], &[]]);
        queue.push(1, span(2).start, &verified(&[Some(0), Some(1), Some(0)])).unwrap();
        queue.push(0, 0, &verified(&[Some(0)])).unwrap();
        assert_eq!((queue.running.len(), queue.waiting.len()), (DECODE_CONCURRENCY, 2));
        let first = queue.waiting.peek().map(|Reverse(QueuedUnit(unit))| unit.chunk);
        assert_eq!(first, Some(0));
        for _ in 0..4 {
            queue.next().await;
        }
        assert!(queue.running.is_empty() && queue.waiting.is_empty() && queue.chunks.is_empty());
    }
}
