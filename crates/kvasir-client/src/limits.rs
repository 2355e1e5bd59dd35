//! Named limits of the client, each with its reason.

use std::time::Duration;

/// Longest wait for a TCP and TLS connection: past any round trip; a dead replica must not eat the SLO.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest silence on an answer that has begun or is due. The fetcher's own stall rule is far quicker; this
/// frees the connection.
pub const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest control request (lookup, registration), retries apart.
pub const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest upload of one object: 256 MiB at 10 Mb/s.
pub const UPLOAD_TIMEOUT: Duration = Duration::from_secs(240);
/// Attempts of one idempotent request.
pub const ATTEMPTS_MAX: u32 = 4;
/// First backoff; doubles with every attempt, drawn uniformly from zero to it (full jitter).
pub const BACKOFF_BASE: Duration = Duration::from_millis(40);
/// Longest backoff, and longest `Retry-After` that is honoured rather than reported.
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Retries a client may spend at once; an outage must not multiply the load on what is left.
pub const RETRY_BUDGET: f64 = 10.0;
/// What a success gives back to the budget: retries are at most a tenth of the traffic in the long run.
pub const RETRY_REFILL: f64 = 0.1;
/// Most bytes of a control answer that are read: the largest lookup answer has 4,096 chunks of ≤ 2 KB.
pub const CONTROL_BYTES_MAX: usize = 16 << 20;
/// Most bytes of a profile: 5 % of the weights of a 70 B model in bf16.
pub const PROFILE_BYTES_MAX: usize = 7 << 30;
/// Most bytes of a chunk object that is read whole.
pub const OBJECT_BYTES_MAX: usize = 1 << 30;
/// Chunks of a sample that are read at the same time.
pub const SAMPLE_CONCURRENCY: usize = 4;
/// Tokens of a sampled chunk that are decoded: contexts count alike, however long their chunks are.
pub const SAMPLE_TOKENS_MAX: usize = 512;
/// Bytes of KV in a sample, in f32: fewer tokens of each chunk are decoded where the model's are large.
pub const SAMPLE_BYTES_MAX: usize = 8 << 30;
/// Loads tell each other what they miss in steps of this many bytes: a base of some hundred tokens to a few thousand.
pub const NEIGHBOUR_STEP_BYTES: u64 = 4 << 20;
/// Chunks that are encoded or uploaded at the same time: one of each.
pub const STORE_CONCURRENCY: usize = 2;
/// Bytes of the pages of a request for objects, decoded; two requests are under way.
pub const PAGES_BYTES_MAX: usize = 32 << 20;
/// Chunks that are decoded at the same time.
pub const DECODE_CONCURRENCY: usize = 2;
/// Arrivals that wait for the load's task; a batch is at most a few hundred KB.
pub const ARRIVALS_QUEUE: usize = 256;
/// A partial tail is stored anew only with at least this many tokens more than what is stored already.
pub const TAIL_GROWTH_MIN: u64 = 256;

/// Time that one part of a chunk takes on the link: long against its round trip within a region, short against an SLO.
pub const PART_TIME: Duration = Duration::from_millis(40);
/// Smallest part: a request costs about a kilobyte of headers and a millisecond of a replica.
pub const PART_BYTES_MIN: u64 = 256 << 10;
/// Largest part: what is lost when a connection breaks, and stores' own advice for parallel reads (8 to 16 MiB).
pub const PART_BYTES_MAX: u64 = 8 << 20;
/// Parts of one chunk on the way at once; three chunks are, at most.
pub const PARTS_AT_ONCE_MAX: usize = 6;
/// Reads whose times to first byte are remembered.
pub const FIRST_BYTE_SAMPLES: usize = 64;
/// Fewest of them that say anything about a 95th percentile.
pub const FIRST_BYTE_SAMPLES_MIN: usize = 10;
/// Reads slower to their first byte than this share of the last ones are hedged.
pub const HEDGE_QUANTILE: f64 = 0.95;
/// Shortest wait before a hedge: timers and schedulers are no better than this.
pub const HEDGE_AFTER_MIN: Duration = Duration::from_millis(5);
/// Hedges earned by a read: they are at most a twentieth of the traffic in the long run.
pub const HEDGE_SHARE: f64 = 0.05;
/// Hedges that may be saved up.
pub const HEDGE_BURST: f64 = 3.0;
/// Life of a presigned URL that does not say: the shortest default of the stores in use is longer.
pub const URL_AGE_DEFAULT: Duration = Duration::from_secs(60);
/// A URL that ends sooner than this is renewed before it is used: clocks differ and requests queue.
pub const URL_MARGIN: Duration = Duration::from_secs(2);
/// Renewals of a load's presigned URLs; whoever hands out URLs that do not hold is not asked for ever.
pub const URL_RENEWALS_MAX: u32 = 8;
/// Damaged pieces of a chunk that are read once more; more damage than this is not an accident.
pub const REPAIRS_PER_CHUNK: u32 = 3;
/// Longest wait for a damaged piece to be read once more.
pub const REPAIR_TIME_MAX: Duration = Duration::from_secs(2);
/// Idle connections kept per host: the parts of three chunks.
pub const IDLE_CONNECTIONS: usize = 18;
/// How long they are kept: below the 15 s after which the service closes one that waits for its next request, and the 60 s
/// after which load balancers do. A request that is sent just then finds nobody.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(10);
/// HTTP/2 receive window of a stream: one part, so that it never waits for credit.
pub const H2_STREAM_WINDOW_BYTES: u32 = 8 << 20;
/// HTTP/2 receive window of a connection: the parts of three chunks at 1 MiB, or 130 ms at 1 Gb/s.
pub const H2_CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Profiles of one model that a client holds.
pub const PROFILES_MAX: usize = 16;
/// Wait before a profile that could not be fetched is asked for again.
pub const PROFILE_RETRY: Duration = Duration::from_secs(60);
/// Age from which a profile is in force: readers met it at a lookup and fetched it. As often is the service asked which one is.
pub const PROFILE_ANNOUNCED: Duration = Duration::from_secs(300);
/// Largest error of a profile's finest level, over the power of the cache, with which a client encodes without being told: that of
/// an 8-bit cache and a little more.
pub const PROFILE_ERROR_MAX: f32 = 1e-3;
/// Age at which the root of a namespace is asked for again: well within the day that lookups find what a rotated salt led to.
pub const ROOT_FRESH: Duration = Duration::from_secs(60);
/// Adapters and salts whose namespaces a client remembers; others are asked for again.
pub const BINDINGS_MAX: usize = 1024;
/// What "no deadline" means: an hour.
pub const DEADLINE_NONE: Duration = Duration::from_secs(3600);
/// Most lossy loads that lie over each other beneath what is stored, where nobody knows what they cost: each adds its errors.
pub const HOPS_MAX: u8 = 2;
/// Shortest context that is stored by default: one span; computing it takes about as long as looking it up.
pub const STORE_TOKENS_MIN: usize = 256;
/// Jobs that wait in a store queue.
pub const STORE_QUEUE_JOBS: usize = 64;
/// Bytes of copied KV in a store queue: four chunks of an 8 B model in f32.
pub const STORE_QUEUE_BYTES: u64 = 2 << 30;
/// Attempts of one queued store.
pub const STORE_ATTEMPTS_MAX: u32 = 6;
/// Wait before the second attempt; doubles with each: the last comes after about half a minute.
pub const STORE_BACKOFF_BASE: Duration = Duration::from_secs(1);
/// Longest wait between attempts.
pub const STORE_BACKOFF_MAX: Duration = Duration::from_secs(15);
/// Longest that encoding a queued store waits for loads to end; a node that always loads still stores.
pub const ENCODE_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an upload that are sent between two looks at the loads under way.
pub const UPLOAD_PIECE_BYTES: usize = 64 << 10;
/// Longest pause of an upload while loads are under way: with a piece each, 2 Mb/s.
pub const UPLOAD_PAUSE: Duration = Duration::from_millis(250);
/// Longest silence of a direct read before it goes on through the service: far past any store's tail latency.
pub const DIRECT_SILENCE_MAX: Duration = Duration::from_millis(800);
/// Longest silence of another load that reads the same bytes, before a load reads them itself: its policy may have paused.
pub const SHARED_SILENCE_MAX: Duration = Duration::from_millis(250);
/// Direct reads of a load that may fail before the rest goes through the service at once.
pub const DIRECT_FAILURES_MAX: u32 = 2;
/// Threads of a blocking client's runtime: one for the network, one for what must not wait for it.
pub const BLOCKING_WORKERS: usize = 2;
/// How long a replica is passed over that could not be reached; doubles with every time in a row.
pub const MEMBER_AWAY_MIN: Duration = Duration::from_millis(500);
/// Longest that it is passed over: a pod is back after about that.
pub const MEMBER_AWAY_MAX: Duration = Duration::from_secs(10);
/// Split routes that a client remembers.
pub const SPLITS_KNOWN_MAX: usize = 4_096;
/// How long it does: the replica that split one says so again.
pub const SPLIT_KNOWN_FOR: Duration = Duration::from_secs(600);
/// Largest server-sent event that is taken: a chunk's block hashes are 20 KB.
pub(crate) const EVENT_BYTES_MAX: usize = 1 << 20;
