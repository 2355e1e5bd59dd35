//! The network of a load: sends reads and returns verified chunks.

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Duration};

use kvasir_api::ChunkMatch;
use kvasir_types::{Level, Loss, ModelId};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use super::{
    LoadError,
    arrival::{Arrival, ReadId},
    assembly::{Defect, ExpectedTokens, ObjectAssembly, VerifiedChunk},
    begin::PlannedLevels,
    fetch::{ArrivalSink, FetchTask, PartSizing},
};
use crate::{
    Error,
    fetcher::{ByteRate, RequestId},
    limits::{REPAIR_TIME_MAX, REPAIRS_PER_CHUNK},
    rest::{Client, ObjectName, ReadReport, Routes, SharedObject},
};

/// The reads of a load, and the objects that they fill.
pub(super) struct Network {
    routes: Arc<Routes>,
    model_id: ModelId,
    expected: ExpectedTokens,
    chunks: Vec<ChunkRead>,
    /// Active reads. Messages of other reads are ignored: those were cancelled.
    reads: BTreeMap<ReadId, ActiveRead>,
    repairs: u64,
    /// Dropped with the load, which aborts them.
    tasks: JoinSet<()>,
    arrivals: mpsc::Sender<Arrival>,
}

/// A chunk that is being read.
struct ChunkRead {
    assembly: ObjectAssembly,
    levels: PlannedLevels,
    /// The bytes of it that other loads of this client have.
    shared: Arc<SharedObject>,
    /// Requests that failed.
    failures: u32,
    repairs: u32,
    /// The level to decode it at once its repairs have ended.
    awaited: Option<Level>,
}

struct ActiveRead {
    chunk: usize,
    task: AbortHandle,
}

/// The result of a read's bytes.
pub(super) struct ReceivedBytes {
    pub(super) chunk: usize,
    /// Bytes of a core request that were not present before, if any.
    pub(super) fresh: Option<(RequestId, u64)>,
    pub(super) defects: Vec<LoadError>,
}

/// The end of a read.
#[derive(Debug)]
pub(super) enum ReadEnd {
    Completed {
        request: RequestId,
    },
    Failed {
        request: RequestId,
        chunk: usize,
        error: Error,
    },
    /// The last repair that the chunk's decode waited for has ended.
    Repaired {
        chunk: usize,
        level: Level,
    },
}

/// The available bytes of a chunk to decode.
#[derive(Debug)]
pub(super) enum ChunkBytes {
    Verified(VerifiedChunk),
    /// Repairs are running; [`ReadEnd::Repaired`] follows.
    Repairing,
    /// Not even the head arrived.
    Unusable,
}

impl Network {
    pub(super) fn new(
        routes: Routes,
        model_id: ModelId,
        expected: ExpectedTokens,
        objects: impl IntoIterator<Item = (ChunkMatch, PlannedLevels)>,
        arrivals: mpsc::Sender<Arrival>,
    ) -> Self {
        let chunk = |(object, levels): (ChunkMatch, PlannedLevels)| ChunkRead {
            shared: routes.client().shared_reads.open(object.object_digest),
            assembly: ObjectAssembly::new(object, levels.floor),
            levels,
            failures: 0,
            repairs: 0,
            awaited: None,
        };
        let chunks = objects.into_iter().map(chunk).collect();
        Self {
            routes: Arc::new(routes),
            model_id,
            expected,
            chunks,
            reads: BTreeMap::new(),
            repairs: 0,
            tasks: JoinSet::new(),
            arrivals,
        }
    }

    pub(super) fn client(&self) -> &Client {
        self.routes.client()
    }

    /// Loss of a chunk's KV when decoded at a level.
    pub(super) fn loss_of(&self, chunk: usize, level: Level) -> Loss {
        let ChunkRead { assembly, levels, .. } = &self.chunks[chunk];
        levels.loss_of(assembly.object(), level)
    }

    /// Reads the missing parts of `0..end` of a chunk, in part sizes for a link of `rate`.
    pub(super) fn fetch(&mut self, request: RequestId, chunk: usize, end: u64, rate: Option<ByteRate>) {
        // The core only counts the bytes of the prefix that have arrived; the assembly knows which.
        let missing = self.chunks[chunk].assembly.missing(end);
        let sizing = PartSizing::new(rate, self.client().first_byte_latencies.quantile(0.5));
        let task = FetchTask {
            routes: Arc::clone(&self.routes),
            object: self.object_name(chunk),
            shared: Arc::clone(&self.chunks[chunk].shared),
            request,
            parts: sizing.split(&missing),
            concurrency: sizing.concurrency,
            failures: self.chunks[chunk].failures,
        };
        let read = task.run(self.arrivals.clone());
        self.spawn(ReadId::Request(request), chunk, read);
    }

    /// Stops a request. Its later messages are ignored: the core does not count those bytes, so they are read
    /// again.
    pub(super) fn cancel(&mut self, request: RequestId) {
        if let Some(read) = self.reads.remove(&ReadId::Request(request)) {
            read.task.abort();
        }
    }

    /// Accepts bytes of a read. Damaged ones are read once more, within `left`. `None` for a cancelled read.
    pub(super) fn on_bytes(
        &mut self,
        read: ReadId,
        offset: u64,
        bytes: &[u8],
        left: Duration,
    ) -> Option<ReceivedBytes> {
        let chunk = self.reads.get(&read)?.chunk;
        let (fresh, defects) = self.chunks[chunk].assembly.insert(offset, bytes, &self.expected);
        let defects = defects.into_iter().map(|defect| self.repair(chunk, defect, left)).collect();
        let fresh = match read {
            ReadId::Request(request) if fresh > 0 => Some((request, fresh)),
            _ => None,
        };
        Some(ReceivedBytes { chunk, fresh, defects })
    }

    /// A read ended. `None` if nothing follows from it.
    pub(super) fn on_ended(&mut self, read: ReadId, result: Result<(), Error>) -> Option<ReadEnd> {
        let chunk = self.reads.remove(&read)?.chunk;
        match (read, result) {
            (ReadId::Request(request), Ok(())) => Some(ReadEnd::Completed { request }),
            (ReadId::Request(request), Err(error)) => {
                self.chunks[chunk].failures += 1;
                Some(ReadEnd::Failed { request, chunk, error })
            }
            // After an error the bytes stay damaged; nothing else to do.
            (ReadId::Repair(_), _) if self.is_repairing(chunk) => None,
            (ReadId::Repair(_), _) => {
                self.chunks[chunk].awaited.take().map(|level| ReadEnd::Repaired { chunk, level })
            }
        }
    }

    /// The verified bytes of a chunk, each span at the best level that its pieces allow, but at most `level`.
    /// The chunk is not read further.
    pub(super) fn take_verified(&mut self, chunk: usize, level: Level) -> ChunkBytes {
        if self.is_repairing(chunk) {
            self.chunks[chunk].awaited = Some(level);
            return ChunkBytes::Repairing;
        }
        self.chunks[chunk].assembly.finish(level).map_or(ChunkBytes::Unusable, ChunkBytes::Verified)
    }

    /// Whether anything is being read.
    pub(super) fn is_reading(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Stops all reads and reports how the bytes arrived.
    pub(super) fn finish(mut self) -> ReadReport {
        self.tasks.abort_all();
        ReadReport { repairs: self.repairs, ..self.routes.counters.report() }
    }

    fn is_repairing(&self, chunk: usize) -> bool {
        self.reads.iter().any(|(id, read)| matches!(id, ReadId::Repair(_)) && read.chunk == chunk)
    }

    /// Reads damaged bytes once more, through the service and unknown to the core: their quality is at stake,
    /// not the plan. Parts that stay damaged are decoded at a lower level or computed.
    fn repair(&mut self, chunk: usize, defect: Defect, left: Duration) -> LoadError {
        let (range, error) = match defect {
            Defect::Head { range, what } => (range, LoadError::Object(what)),
            Defect::Piece { range, what } => {
                (range.clone(), LoadError::Damaged { start: range.start, end: range.end, what })
            }
        };
        if self.chunks[chunk].repairs < REPAIRS_PER_CHUNK {
            self.chunks[chunk].repairs += 1;
            self.spawn_repair(chunk, range, left.min(REPAIR_TIME_MAX));
        }
        error
    }

    fn spawn_repair(&mut self, chunk: usize, range: Range<u64>, time: Duration) {
        let read = ReadId::Repair(self.repairs);
        self.repairs += 1;
        let (routes, object, arrivals) =
            (Arc::clone(&self.routes), self.object_name(chunk), self.arrivals.clone());
        self.spawn(read, chunk, async move {
            let mut sink = ArrivalSink { read, arrivals: arrivals.clone() };
            let bytes = routes.read(&object, range, true, &mut sink);
            let result = tokio::time::timeout(time, bytes).await;
            let result = result.unwrap_or_else(|_| Err(Error::protocol("the repair timed out")));
            let _ = arrivals.send(Arrival::Ended { read, at: Instant::now(), result }).await;
        });
    }

    fn spawn(&mut self, id: ReadId, chunk: usize, read: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        let task = self.tasks.spawn(read);
        self.reads.insert(id, ActiveRead { chunk, task });
    }

    fn object_name(&self, chunk: usize) -> ObjectName {
        let object = self.chunks[chunk].assembly.object();
        ObjectName { model_id: self.model_id, seq_hash: object.seq_hash, object_digest: object.object_digest }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::sample::SampleChunk, *};
    use crate::{Deadline, rest::ClientConfig};

    const SECOND: Duration = Duration::from_secs(1);
    const FIRST: ReadId = ReadId::Request(RequestId(0));

    /// A network whose tasks never run: nothing awaits them, and the test supplies their results.
    fn network(sample: &SampleChunk) -> Network {
        let client = Client::new("http://127.0.0.1:9".parse().unwrap(), ClientConfig::default()).unwrap();
        let routes = Routes::new(client, Deadline::none(), None, &[], Instant::now());
        let (arrivals, _) = mpsc::channel(1);
        let model = super::super::sample::MODEL.into();
        Network::new(
            routes,
            model,
            sample.expected.clone(),
            [(sample.object.clone(), PlannedLevels::all())],
            arrivals,
        )
    }

    fn fetching(sample: &SampleChunk) -> Network {
        let mut network = network(sample);
        network.fetch(RequestId(0), 0, sample.object.bytes, None);
        network
    }

    fn runs(bytes: ChunkBytes) -> Vec<(Range<usize>, Option<Level>)> {
        match bytes {
            ChunkBytes::Verified(chunk) => chunk.runs,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn only_reads_under_way_bring_bytes_and_each_byte_counts_once() {
        let sample = SampleChunk::new();
        let mut network = fetching(&sample);
        let size = sample.object.bytes;
        let received = network.on_bytes(FIRST, 0, &sample.bytes, SECOND).unwrap();
        assert_eq!((received.fresh, received.defects.len()), (Some((RequestId(0), size)), 0));
        let again = network.on_bytes(FIRST, 0, &sample.bytes, SECOND).unwrap();
        assert_eq!(again.fresh, None);
        network.cancel(RequestId(0));
        for read in [FIRST, ReadId::Request(RequestId(9)), ReadId::Repair(0)] {
            assert!(network.on_bytes(read, 0, &sample.bytes, SECOND).is_none());
            assert!(network.on_ended(read, Ok(())).is_none());
        }
        assert_eq!(runs(network.take_verified(0, Level(1))), [(0..512, Some(Level(1)))]);
    }

    #[tokio::test]
    async fn a_decode_waits_for_repairs_and_takes_what_they_leave() {
        let sample = SampleChunk::new();
        let last = sample.bytes.len() - 1;
        let mut damaged = sample.bytes.clone();
        damaged[last] ^= 1;
        for repaired in [true, false] {
            let mut network = fetching(&sample);
            let received = network.on_bytes(FIRST, 0, &damaged, SECOND).unwrap();
            assert!(matches!(received.defects[..], [LoadError::Damaged { .. }]));
            assert!(matches!(network.on_ended(FIRST, Ok(())), Some(ReadEnd::Completed { .. })));
            assert!(matches!(network.take_verified(0, Level(1)), ChunkBytes::Repairing));
            if repaired {
                // The first half leaves the damage where it is, and that is no reason for a third read.
                for half in [last - 99..last - 49, last - 49..last + 1] {
                    let (at, bytes) = (half.start as u64, &sample.bytes[half]);
                    let received = network.on_bytes(ReadId::Repair(0), at, bytes, SECOND).unwrap();
                    assert_eq!((received.fresh, received.defects.len()), (None, 0), "the core counted them");
                }
            }
            let end = network.on_ended(ReadId::Repair(0), Err(Error::protocol("whatever")));
            assert!(matches!(end, Some(ReadEnd::Repaired { chunk: 0, level: Level(1) })));
            assert!(network.on_ended(ReadId::Repair(0), Ok(())).is_none(), "it ends once");
            let whole = vec![(0..512, Some(Level(1)))];
            let parts = vec![(0..256, Some(Level(1))), (256..512, Some(Level(0)))];
            assert_eq!(runs(network.take_verified(0, Level(1))), if repaired { whole } else { parts });
            assert_eq!(network.finish().repairs, 1);
        }
    }

    #[tokio::test]
    async fn a_chunk_is_repaired_a_few_times_and_is_unusable_without_a_head() {
        let sample = SampleChunk::new();
        let mut damaged = sample.bytes.clone();
        damaged[0] ^= 1;
        let mut network = fetching(&sample);
        for _ in 0..REPAIRS_PER_CHUNK + 2 {
            let received = network.on_bytes(FIRST, 0, &damaged, SECOND).unwrap();
            assert!(matches!(received.defects[..], [LoadError::Object(_)]));
        }
        assert!(matches!(network.take_verified(0, Level(1)), ChunkBytes::Repairing));
        let ends = (0..u64::from(REPAIRS_PER_CHUNK)).map(|i| network.on_ended(ReadId::Repair(i), Ok(())));
        let ends: Vec<_> = ends.map(|end| end.is_some()).collect();
        assert_eq!(ends, [false, false, true], "the last one's end is the end of all");
        assert!(matches!(network.take_verified(0, Level(1)), ChunkBytes::Unusable));
        assert_eq!(network.finish().repairs, u64::from(REPAIRS_PER_CHUNK));
    }
}
