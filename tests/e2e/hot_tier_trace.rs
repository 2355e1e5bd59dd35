//! A request trace through the real service over loopback, and the same through the simulator: equal hit ratios.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use kvasir_api::{HEADER_REQUEST_TYPE, HEADER_TURN, LookupRequest, LookupResponse, routes};
use kvasir_eviction::{Moment, PolicyKind};
use kvasir_lab::eviction::{ComparedPolicy, RecomputeModel, ReplayOptions, TraceSource, replay};
use kvasir_replay::trace::{Request, SyntheticTrace, TraceFormat, TraceReader};
use kvasir_storage::hot::HotClock;
use kvasir_store::StoreConfig;
use kvasir_tests::{chunks, service::Service};
use kvasir_types::{CHUNK_TOKENS_STEP, Medium, ModelId, RootHash};

use crate::hot_tier::metric;

/// Bytes of a piece: large enough that heads, which differ by some bytes, do not matter.
const PIECE_BYTES: usize = 6_000;
/// Room for this share of the trace's blocks.
const CAPACITY: f64 = 0.2;

/// The trace's time, so that the service lives through hours in seconds.
#[derive(Debug, Default)]
struct TraceClock(AtomicU64);

impl HotClock for TraceClock {
    fn now(&self) -> Moment {
        Moment::from_micros(self.0.load(Ordering::SeqCst))
    }
}

struct Caller {
    service: Service,
    clock: Arc<TraceClock>,
    model_id: ModelId,
    root: RootHash,
}

impl Caller {
    async fn start(directory: &Path, policy: PolicyKind, capacity_bytes: u64) -> Self {
        let clock = Arc::new(TraceClock::default());
        let store = StoreConfig::new("memory://".parse().expect("a url"));
        let of_service = Arc::clone(&clock);
        let service = Service::start_with(store, directory, |config| {
            // An eighth is for frames on their way; what is kept has the rest.
            config.hot.memory_bytes = capacity_bytes + capacity_bytes.div_ceil(7);
            config.hot.disk_bytes = Some(0);
            config.hot.read_ahead_chunks = 0;
            config.hot.policy = policy;
            config.hot.clock = of_service;
        });
        let service = service.await;
        let (model_id, root) = service.prepare("n").await;
        Self { service, clock, model_id, root }
    }

    /// Acts as an engine: looks the prompt up, loads the stored part, stores the rest. Returns the number of
    /// leading chunks whose base was in the hot tier at the lookup.
    async fn request(&self, request: &Request) -> usize {
        self.settle().await;
        self.clock.0.store(request.at.as_micros(), Ordering::SeqCst);
        let tokens: Vec<u32> =
            request.blocks.iter().flat_map(|block| chunks::tokens(*block, CHUNK_TOKENS_STEP)).collect();
        let found = self.lookup(request, &tokens).await;
        assert_eq!(found.matched_tokens as usize % CHUNK_TOKENS_STEP, 0);
        for chunk in &found.chunks {
            let path = routes::chunk_object(&self.model_id, &chunk.seq_hash, &chunk.object_digest);
            let response = self.service.get(&format!("{path}?level=0"), &[]).await;
            assert_eq!(response.bytes().await.expect("reads").len() as u64, chunk.level_bytes[0]);
        }
        for start in (found.matched_tokens as usize..tokens.len()).step_by(CHUNK_TOKENS_STEP) {
            let chunk = chunks::chunk(self.root, &tokens, start, start + CHUNK_TOKENS_STEP, PIECE_BYTES);
            assert!(self.service.put(&self.model_id, &chunk).await.status().is_success());
        }
        found.chunks.iter().take_while(|chunk| chunk.medium == Medium::Cpu).count()
    }

    /// Waits until no frame is on its way: one that the last caller still holds leaves less room for the next.
    async fn settle(&self) {
        let begun = Instant::now();
        loop {
            let held = metric(&self.service, "kvasir_hot_memory_bytes", "").await;
            let kept = metric(&self.service, "kvasir_hot_bytes", "medium=\"cpu\"").await;
            if held == kept {
                return;
            }
            assert!(begun.elapsed().as_secs() < 60, "{held} bytes are held, {kept} kept");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn lookup(&self, request: &Request, tokens: &[u32]) -> LookupResponse {
        let lookup = LookupRequest {
            model_id: self.model_id,
            namespace: "n".parse().expect("a name"),
            tokens: Some(tokens.to_vec()),
            block_hashes: None,
            chunk_ids: None,
            fresh: false,
            direct: false,
        };
        let url = format!("http://{}{}", self.service.address, routes::LOOKUP);
        let sent = self.service.http.post(url).header(HEADER_REQUEST_TYPE, &request.kind);
        let sent =
            sent.header(HEADER_TURN, request.turn).body(serde_json::to_vec(&lookup).expect("serialises"));
        sent.send().await.expect("an answer").json().await.expect("its JSON")
    }
}

fn requests(trace: &Path) -> Vec<Request> {
    let mut reader = TraceReader::open(trace, TraceFormat::Bailian).expect("opens");
    let (mut request, mut requests) = (Request::default(), Vec::new());
    while reader.read(&mut request).expect("sound") {
        requests.push(request.clone());
    }
    requests
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_hits_as_often_as_the_simulator_says() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let trace = directory.path().join("trace.jsonl");
    let made = SyntheticTrace {
        seed: 11,
        requests: 160,
        scale: 0.05,
        rate: 0.5,
        block_tokens: 256,
        ..SyntheticTrace::default()
    };
    made.write(std::fs::File::create(&trace).expect("creates")).expect("writes");
    let policies = [PolicyKind::Adaptive, PolicyKind::Lru];
    let simulated = replay(&ReplayOptions {
        trace: TraceSource::File { path: trace.clone(), format: TraceFormat::Bailian },
        policies: policies.map(ComparedPolicy::Shipped).to_vec(),
        belady: false,
        capacities: vec![CAPACITY],
        warm_share: 0.0,
        recompute: RecomputeModel::default(),
        threads: 1,
    });
    let simulated = simulated.expect("a sound trace");
    let requests = requests(&trace);
    let blocks: usize = requests.iter().map(|request| request.blocks.len()).sum();
    for row in &simulated.rows {
        let Some(ComparedPolicy::Shipped(policy)) = row.policy else {
            panic!("{:?} is not asked for", row.policy)
        };
        // A level 0 of the usual size: one frame.
        let root = RootHash::from([0; 32]);
        let sample = chunks::chunk(
            root,
            &chunks::tokens(1 << 32, CHUNK_TOKENS_STEP),
            0,
            CHUNK_TOKENS_STEP,
            PIECE_BYTES,
        );
        let frame_bytes = (sample.bytes.len() - PIECE_BYTES) as u64;
        let caller =
            Caller::start(&directory.path().join(policy.name()), policy, row.capacity_blocks * frame_bytes)
                .await;
        let mut hits = 0;
        for request in &requests {
            hits += caller.request(request).await;
        }
        caller.service.stop().await;
        let (served, expected) = (hits as f64 / blocks as f64, row.total.hit_ratio());
        assert!((0.15..0.8).contains(&expected), "{policy}: {expected} is no test");
        assert!((served - expected).abs() < 0.01, "{policy}: {served:.4} served, {expected:.4} simulated");
    }
}
