//! Decodes verified chunks on blocking threads, a few units at a time, early layers first.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    sync::Arc,
    time::Duration,
};

use kvasir_codec::ChunkDecoder;
use kvasir_types::TokenRange;
use tokio::task::JoinSet;

use super::{
    assembly::VerifiedChunk,
    decode::{self, DecodeContext, DecodeOutcome, DecodeUnit, DecodedBy, decode_units, joins},
    device_promise::SlowDevices,
    token_ranges::{context_range, insert_range},
};
use crate::limits::DECODE_CONCURRENCY;

/// The decodes of a load.
pub(super) struct DecodeQueue {
    context: Arc<DecodeContext>,
    slow: SlowDevices,
    /// One per chunk of the load.
    decoders: Vec<Arc<dyn ChunkDecoder>>,
    /// In the order of [`DecodeUnit::key`].
    waiting: BinaryHeap<Reverse<QueuedUnit>>,
    /// At most [`DECODE_CONCURRENCY`]. Dropped with the load.
    running: JoinSet<Vec<DecodeOutcome>>,
    /// Units that ended together, those that were not returned yet.
    ended: VecDeque<DecodeOutcome>,
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
        Self {
            slow: SlowDevices::new(context.tables.len()),
            context: Arc::new(context),
            decoders,
            waiting: BinaryHeap::new(),
            running: JoinSet::new(),
            ended: VecDeque::new(),
            chunks: BTreeMap::new(),
        }
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
            if let Some(outcome) = self.ended.pop_front() {
                let done = self.count(&outcome);
                return (outcome, done);
            }
            match self.running.join_next().await {
                Some(Ok(outcomes)) => {
                    self.judge(&outcomes);
                    self.ended.extend(outcomes);
                    self.start();
                }
                Some(Err(_)) => {} // the runtime ends
                None => std::future::pending().await,
            }
        }
    }

    /// Whether a device whose turn ended was fast enough to be given more.
    fn judge(&mut self, outcomes: &[DecodeOutcome]) {
        let run = outcomes.iter().find_map(|outcome| outcome.on_device.as_ref());
        if let (Some(promise), Some(run)) = (&self.context.promise, run) {
            let units = self.waiting.iter().map(|Reverse(QueuedUnit(unit))| unit);
            let waiting = units.map(|unit| (unit.rank, unit.elements(&self.context)));
            self.slow.judge(promise, run, waiting);
        }
    }

    fn start(&mut self) {
        while self.running.len() < DECODE_CONCURRENCY
            && let Some(Reverse(QueuedUnit(unit))) = self.waiting.pop()
        {
            let on_cpu = if self.context.has_device_for(&unit) {
                self.slow.reason(unit.rank).map(DecodedBy::CpuIsFaster)
            } else {
                Some(DecodedBy::Cpu)
            };
            let mut units = vec![unit];
            while on_cpu.is_none()
                && let Some(Reverse(QueuedUnit(next))) = self.waiting.peek()
                && joins(&units, next)
                && let Some(Reverse(QueuedUnit(next))) = self.waiting.pop()
            {
                units.push(next);
            }
            self.running.spawn(decode::run(units, on_cpu, Arc::clone(&self.context)));
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
    use std::{ops::Range, sync::Mutex};

    use kvasir_codec::{CpuDecoder, DecodeError, KvBuffer, KvSink, container::Head, starter};
    use kvasir_types::{KvDtype, KvLayout, LayerKv, Level, ModelSpec, Pairing, Reuse, Rope, SPAN_TOKENS};
    use tokio::{
        runtime::Handle,
        time::{self, Instant},
    };

    use super::{
        super::{
            device_promise::{DevicePromise, DeviceRun},
            sample::SampleChunk,
        },
        *,
    };
    use crate::{
        limits::{DEVICE_FAULTS_MAX, DEVICE_TOKENS_MAX},
        pages::{
            BlockTable, DeviceBytes, DeviceDecode, DeviceDecoder, DevicePart, DeviceTimes, HostPages,
            PageRef, PageRows, PageStore, PartOutcome,
        },
    };

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

    /// One layer, which decodes alone.
    fn spec() -> ModelSpec {
        let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 1, head_dim: 8 }, rope: Some(0) };
        ModelSpec {
            weights: "toy".into(),
            revision: "1".into(),
            adapter: None,
            kv_dtype: KvDtype::F16,
            ropes: vec![Rope::plain(Pairing::Half, 8, 10_000.0)],
            layers: vec![layer],
            thinning: None,
            reuse: Reuse::Prefix,
        }
    }

    /// A queue for chunks whose runs fail at these tokens.
    fn queue(failing: &[&[usize]]) -> DecodeQueue {
        let spec = spec();
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

    /// A device that notes the pages of the parts that it is given together, one page a part, and decodes nothing.
    struct Noting {
        given: Mutex<Vec<Vec<u32>>>,
        answer: Answer,
        /// How long it says that it waited.
        waited: Mutex<Duration>,
    }

    /// What became of each of so many parts.
    type Answer = fn(usize) -> Vec<PartOutcome>;

    const MEMORY: DeviceBytes = DeviceBytes { scratch: 3, pinned: 2, profiles: 1 };

    impl PageStore for Noting {
        fn write(&self, _: PageRef, _: &PageRows<'_>) -> bool {
            false
        }

        fn device(&self) -> Option<&dyn DeviceDecoder> {
            Some(self)
        }
    }

    impl DeviceDecoder for Noting {
        fn decode(&self, parts: &[DevicePart<'_>]) -> Result<DeviceDecode, String> {
            let page = |part: &DevicePart<'_>| part.pages()[0].index;
            self.given.lock().unwrap().push(parts.iter().map(page).collect());
            let outcomes = (self.answer)(parts.len());
            let times = DeviceTimes { waited: *self.waited.lock().unwrap(), ..DeviceTimes::default() };
            Ok(DeviceDecode { outcomes, memory: MEMORY, times })
        }
    }

    /// A queue of `chunks` chunks of two spans for a device, and the device.
    fn device_queue(chunks: usize, answer: Answer) -> (DecodeQueue, Arc<Noting>) {
        let (spec, mut kv) = (Arc::new(spec()), KvBuffer::new(&spec(), 200));
        let values = kv.as_mut_slice().iter_mut().enumerate();
        values.for_each(|(index, value)| *value = ((index * 7919) % 1000) as f32 / 500.0 - 1.0);
        let profile = starter(&spec, &(0..200).collect::<Vec<u32>>(), 0, &kv).unwrap();
        let decoder = Arc::new(CpuDecoder::new(Arc::clone(&spec), Arc::new(profile)).unwrap());
        assert_eq!(decoder.layer_groups().len(), 1);
        let device = Arc::new(Noting { given: Mutex::default(), answer, waited: Mutex::default() });
        let pages: Vec<_> = (0..2 * chunks as u32).map(|index| PageRef { index, generation: 0 }).collect();
        let table = BlockTable::new(Arc::clone(&device) as _, pages, SPAN_TOKENS).unwrap();
        let context = DecodeContext::new(spec, vec![table], Arc::default());
        let decoders = (0..chunks).map(|_| Arc::clone(&decoder) as Arc<dyn ChunkDecoder>).collect();
        (DecodeQueue::new(context, decoders), device)
    }

    /// A chunk that comes while the device is free is not kept waiting for others. Those that had to wait go together, in
    /// bounded numbers.
    #[tokio::test]
    async fn what_waits_for_a_device_is_given_to_it_together() {
        let most = DEVICE_TOKENS_MAX / SPAN_TOKENS;
        let chunks = 3 + most / 2;
        let (mut queue, device) = device_queue(chunks, |parts| vec![PartOutcome::Decoded; parts]);
        for chunk in 0..chunks {
            queue.push(chunk, span(2 * chunk as u64).start, &verified(&[Some(0), Some(1)])).unwrap();
        }
        let mut ends = Vec::new();
        for _ in 0..2 * chunks {
            let (outcome, end) = queue.next().await;
            assert_eq!((outcome.by, outcome.result.unwrap()), (DecodedBy::Device(MEMORY), 0));
            ends.extend(end);
        }
        assert!(ends.len() == chunks && ends.iter().all(|end| end.undecodable.is_empty()));
        assert!(!queue.is_decoding() && queue.ended.is_empty());
        let mut given = std::mem::take(&mut *device.given.lock().unwrap());
        given.sort();
        let end = 4 + most as u32;
        let together = [0..2, 2..4, 4..end, end..end + 2];
        assert_eq!(given, together.map(|pages| pages.collect::<Vec<u32>>()));
    }

    /// The CPU is asked for the part that was refused, and finds that the chunk is of another model.
    #[tokio::test]
    async fn a_part_that_a_device_does_not_decode_takes_no_other_with_it() {
        let refused: Answer = |_| vec![PartOutcome::Decoded, PartOutcome::Refused("it is odd".into())];
        let forgotten: Answer = |_| vec![PartOutcome::Decoded];
        let stale: Answer = |_| vec![PartOutcome::Decoded, PartOutcome::Stale];
        let instead = |reason: &str| DecodedBy::CpuInstead(reason.into());
        for (answer, by, stale_rows) in [
            (refused, instead("it is odd"), None),
            (forgotten, instead("the device did not say what became of it"), None),
            (stale, DecodedBy::Nobody, Some(SPAN_TOKENS)),
        ] {
            let (mut queue, device) = device_queue(1, answer);
            queue.push(0, 0, &verified(&[Some(0), Some(1)])).unwrap();
            let (first, second) = (queue.next().await.0, queue.next().await.0);
            assert_eq!(*device.given.lock().unwrap(), [[0u32, 1]]);
            assert_eq!((first.by, first.result.ok()), (DecodedBy::Device(MEMORY), Some(0)));
            assert_eq!((second.by, second.result.ok()), (by, stale_rows));
        }
    }

    /// It would be asked three times, or four with another thread, if each of these parts were its fault.
    #[tokio::test]
    async fn a_device_that_refuses_one_part_of_several_is_asked_again() {
        let chunks = 3 + DEVICE_TOKENS_MAX / SPAN_TOKENS;
        let (mut queue, device) = device_queue(chunks, |parts| {
            let mut outcomes = vec![PartOutcome::Decoded; parts];
            outcomes[0] = PartOutcome::Refused("it is odd".into());
            outcomes
        });
        for chunk in 0..chunks {
            queue.push(chunk, span(2 * chunk as u64).start, &verified(&[Some(0), Some(1)])).unwrap();
        }
        for _ in 0..2 * chunks {
            queue.next().await;
        }
        let given = device.given.lock().unwrap();
        assert!(given.len() > DEVICE_FAULTS_MAX as usize + 1, "{given:?}");
        assert_eq!(given.concat().len(), 2 * chunks, "every part");
    }

    /// It takes a second for each batch, by the test's clock. Two chunks are with it at once, and a full batch behind the first
    /// that ends. If they really ran together they are slow once, and it gets another batch before it was slow twice.
    #[tokio::test(start_paused = true)]
    async fn a_slow_device_decodes_what_it_was_given_and_gets_no_more() {
        const LEFT: usize = 8;
        let most = DEVICE_TOKENS_MAX / SPAN_TOKENS;
        let chunks = (2 + 2 + most + most + LEFT) / 2;
        let slow: Answer = |parts| {
            Handle::current().block_on(time::advance(Duration::from_secs(1)));
            vec![PartOutcome::Decoded; parts]
        };
        // As long as it waits for others, it is not slow.
        for (waited, is_slow) in [(Duration::ZERO, true), (Duration::MAX, false)] {
            let (mut queue, device) = device_queue(chunks, slow);
            *device.waited.lock().unwrap() = waited;
            let promise = DevicePromise { device: 1e-9, cpu: 1e-9, due: Instant::now() };
            Arc::get_mut(&mut queue.context).unwrap().promise = Some(promise);
            for chunk in 0..chunks {
                queue.push(chunk, span(2 * chunk as u64).start, &verified(&[Some(0), Some(1)])).unwrap();
            }
            let mut by_cpu = 0;
            for _ in 0..2 * chunks {
                by_cpu += usize::from(matches!(queue.next().await.0.by, DecodedBy::CpuIsFaster(_)));
            }
            let mut given: Vec<usize> = device.given.lock().unwrap().iter().map(Vec::len).collect();
            given.sort();
            let expected: &[&[usize]] =
                if is_slow { &[&[2, 2, most], &[2, 2, most, most]] } else { &[&[2, 2, LEFT, most, most]] };
            assert!(expected.contains(&&given[..]), "{waited:?}: {given:?}");
            assert_eq!(by_cpu, 2 * chunks - given.iter().sum::<usize>(), "{waited:?}: {given:?}");
        }
    }

    /// What has no device, or none that decodes it, is decoded by the CPU anyway.
    #[tokio::test]
    async fn only_what_a_slow_device_would_be_given_counts_as_left_to_the_cpu() {
        let promise = DevicePromise { device: 1e-9, cpu: 1e-9, due: Instant::now() };
        let (took, times) = (Duration::from_secs(1), DeviceTimes::default());
        let run = || DeviceRun { rank: 0, elements: 1, began: Instant::now(), took, is_slow: true, times };
        let of_device = device_queue(1, |_| unreachable!("it is slow")).0;
        for (mut queue, is_left) in [(of_device, true), (queue(&[&[]]), false)] {
            for _ in 0..2 {
                queue.slow.judge(&promise, &run(), [(0, 1)].into_iter());
            }
            queue.push(0, 0, &verified(&[Some(0)])).unwrap();
            assert_eq!(matches!(queue.next().await.0.by, DecodedBy::CpuIsFaster(_)), is_left);
        }
    }

    #[tokio::test]
    async fn a_device_that_panics_ends_all_that_it_was_given() {
        let (mut queue, _device) = device_queue(1, |_| panic!("as a device may"));
        queue.push(0, 0, &verified(&[Some(0), Some(1)])).unwrap();
        let (first, second) = (queue.next().await, queue.next().await);
        assert!(first.0.result.is_err() && first.1.is_none() && second.0.result.is_err());
        let undecodable = second.1.unwrap().undecodable;
        assert_eq!(undecodable, [TokenRange { start: 0, end: span(2).start }]);
    }
}
