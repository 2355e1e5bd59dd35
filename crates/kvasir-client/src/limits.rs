//! Named limits of the client, each with its reason.

use std::time::Duration;

use kvasir_codec::limits::TOKEN_FACTORS_MAX;

/// Longest wait for a TCP and TLS connection: longer than any round trip, but a dead replica must not use up
/// the SLO.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest silence before or during a response. The fetcher's own stall rule is much faster; this one frees
/// the connection.
pub const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest control request (lookup, registration), excluding retries.
pub const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);
/// Slowest body that is waited for, of an upload, of an answer that is read whole, or of one of several opaque objects: it may
/// take the time of its bytes at this rate, 10 Mb/s, and [`READ_TIMEOUT`].
pub const TRANSFER_BYTES_PER_SECOND_MIN: u64 = 1_250_000;
/// Attempts of one idempotent request.
pub const ATTEMPTS_MAX: u32 = 4;
/// First backoff; doubles with every attempt, drawn uniformly from zero to it (full jitter).
pub const BACKOFF_BASE: Duration = Duration::from_millis(40);
/// Longest backoff, and longest `Retry-After` that is honoured rather than reported.
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Retries that a client may spend in a burst: retries must not multiply the load during an outage.
pub const RETRY_BUDGET: f64 = 10.0;
/// Retries that a success returns to the budget: in the long run, at most a tenth of the traffic.
pub const RETRY_REFILL: f64 = 0.1;
/// Most bytes read of a control response: the largest lookup response has 4,096 chunks of ≤ 2 KB.
pub const CONTROL_BYTES_MAX: usize = 16 << 20;
/// Most bytes of a profile: 5 % of the weights of a 70 B model in bf16.
pub const PROFILE_BYTES_MAX: usize = 7 << 30;
/// Most multiply-adds for an element that decoding with another client's profile may take: by a basis of full rank of the
/// widest scope that training finds one for, and by as many factors of a token predictor as a profile may have.
pub const PROFILE_ELEMENT_MACS_MAX: usize = 8_192 + TOKEN_FACTORS_MAX;
/// Most bytes of another client's profile beside those of bases that large: the tables of 21 scopes' token predictors, each
/// of 384 factors for 262,144 tokens. Bases of smaller scopes leave room for more.
pub const PROFILE_TABLE_BYTES_MAX: usize = 2 << 30;
/// Most bytes of a chunk object that is read whole.
pub const OBJECT_BYTES_MAX: usize = 1 << 30;
/// Most bytes of an engine's identity: a few dozen fields with their values.
pub const IDENTITY_BYTES_MAX: usize = 64 << 10;
/// Sampled chunks read concurrently.
pub const SAMPLE_CONCURRENCY: usize = 4;
/// Tokens decoded of a sampled chunk, so that contexts count equally, however long their chunks are.
pub const SAMPLE_TOKENS_MAX: usize = 512;
/// Bytes of KV in a sample, in f32: for models with large KV, fewer tokens of each chunk are decoded.
pub const SAMPLE_BYTES_MAX: usize = 8 << 30;
/// Loads report their missing bytes to each other in steps of this size: a base of a few hundred to a few
/// thousand tokens.
pub const NEIGHBOUR_STEP_BYTES: u64 = 4 << 20;
/// Chunks being encoded or uploaded concurrently: one of each.
pub const STORE_CONCURRENCY: usize = 2;
/// Decoded bytes of the pages in one request for objects; two requests run concurrently.
pub const PAGES_BYTES_MAX: usize = 32 << 20;
/// Chunks decoded concurrently.
pub const DECODE_CONCURRENCY: usize = 2;
/// Tokens that a device decodes at once, of the same layers of several chunks: one chunk keeps few of a GPU's multiprocessors
/// busy, while scratch memory grows with the tokens. A longer chunk is decoded alone.
pub const DEVICE_TOKENS_MAX: usize = 4096;
/// How often a device may refuse all that it is given at once before the CPU decodes the rest of the load for it:
/// each costs the time until the fault.
pub const DEVICE_FAULTS_MAX: u32 = 3;
/// Runs of devices before a load counts on their pace.
pub const DEVICE_RUNS_MIN: u32 = 8;
/// How many times longer than in earlier loads a device may take for what it is given at once: a GPU's decodes wait for each
/// other, and four may run for the pages of a rank.
pub const DEVICE_SLOW_FACTOR: f64 = 4.0;
/// A run that is shorter is not slow: so long may a host take to wake a thread.
pub const DEVICE_SLOW_MIN: Duration = Duration::from_millis(20);
/// Slow runs of a rank in a row after which its device may be given nothing more: one is an accident.
pub const DEVICE_SLOW_RUNS: u32 = 2;
/// Arrivals queued for the load's task; a batch is at most a few hundred KB.
pub const ARRIVALS_QUEUE: usize = 256;
/// A partial tail is stored again only with at least this many tokens more than before.
pub const TAIL_GROWTH_MIN: u64 = 256;

/// Transfer time of one part of a chunk: long compared with a round trip within a region, short compared with
/// an SLO.
pub const PART_TIME: Duration = Duration::from_millis(40);
/// Smallest part: a request costs about a kilobyte of headers and a millisecond of a replica.
pub const PART_BYTES_MIN: u64 = 256 << 10;
/// Largest part: bounds the loss when a connection breaks, and follows stores' advice for parallel reads (8
/// to 16 MiB).
pub const PART_BYTES_MAX: u64 = 8 << 20;
/// Parts of one chunk in flight; at most three chunks are.
pub const PARTS_AT_ONCE_MAX: usize = 6;
/// Reads in the window of times to first byte.
pub const FIRST_BYTE_SAMPLES: usize = 64;
/// Fewest reads for an estimate of the 95th percentile.
pub const FIRST_BYTE_SAMPLES_MIN: usize = 10;
/// Reads whose first byte takes longer than this quantile of recent ones are hedged.
pub const HEDGE_QUANTILE: f64 = 0.95;
/// Shortest wait before a hedge: timers and schedulers are no more precise.
pub const HEDGE_AFTER_MIN: Duration = Duration::from_millis(5);
/// Hedges earned by a read: in the long run, at most a twentieth of the traffic.
pub const HEDGE_SHARE: f64 = 0.05;
/// Hedges that may accumulate.
pub const HEDGE_BURST: f64 = 3.0;
/// Lifetime of a presigned URL that does not state one: the shortest default of the stores in use is longer.
pub const URL_AGE_DEFAULT: Duration = Duration::from_secs(60);
/// A URL that expires sooner than this is renewed before use: clocks differ and requests queue.
pub const URL_MARGIN: Duration = Duration::from_secs(2);
/// Renewals of a load's presigned URLs: bounds requests to a service whose URLs do not work.
pub const URL_RENEWALS_MAX: u32 = 8;
/// Further reads of a chunk's damaged pieces; more damage than this is no accident.
pub const REPAIRS_PER_CHUNK: u32 = 3;
/// Longest wait for the second read of a damaged piece.
pub const REPAIR_TIME_MAX: Duration = Duration::from_secs(2);
/// Idle connections kept per host: the parts of three chunks.
pub const IDLE_CONNECTIONS: usize = 18;
/// How long idle connections are kept: less than the 15 s after which the service closes one that waits for
/// its next request, and the 60 s after which load balancers do. A request sent just then would find a closed
/// connection.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(10);
/// HTTP/2 receive window of a stream: one part, so that it never waits for credit.
pub const H2_STREAM_WINDOW_BYTES: u32 = 8 << 20;
/// HTTP/2 receive window of a connection: the parts of three chunks at 1 MiB, or 130 ms at 1 Gb/s.
pub const H2_CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Longest frame that a server may send over HTTP/2: 16 KiB, the default, to 16 MiB (RFC 9113, section 4.2). The service
/// writes frames to its socket one by one, so long ones are fewer calls. But a frame is received whole, and responses take
/// turns: of 18 parts at once, each one's next frame comes within [`SHARED_SILENCE_MAX`] over links down to 19 Mb/s.
pub const H2_FRAME_BYTES_MAX: u32 = 32 << 10;
/// Profiles of one model that a client holds.
pub const PROFILES_MAX: usize = 16;
/// Profiles of one model that a client for exact chunks fetches before it makes one: any number of others may be newer than one
/// with an exact level, and a service lists up to 1,000.
pub const EXACT_PROFILES_TRIED_MAX: usize = 128;
/// Refused or unsuitable profiles that a client remembers: as many as a service lists of one model.
pub const PROFILES_REFUSED_MAX: usize = 1_000;
/// Wait before a failed fetch of a profile is retried.
pub const PROFILE_RETRY: Duration = Duration::from_secs(60);
/// Age at which a profile comes into force: by then readers have met it in a lookup and fetched it. Also the
/// interval at which clients ask the service for the profile in force.
pub const PROFILE_ANNOUNCED: Duration = Duration::from_secs(300);
/// Largest error of a profile's finest level, relative to the power of the cache, with which a client encodes
/// by default: slightly more than that of an 8-bit cache.
pub const PROFILE_ERROR_MAX: f32 = 1e-3;
/// Age at which the root of a namespace is fetched again: well within the day for which lookups find chunks
/// under a rotated salt.
pub const ROOT_FRESH: Duration = Duration::from_secs(60);
/// Adapters and salts whose namespaces a client caches; others are queried again.
pub const BINDINGS_MAX: usize = 1024;
/// The deadline that stands for "no deadline": an hour.
pub const DEADLINE_NONE: Duration = Duration::from_secs(3600);
/// Most lossy loads in a chain beneath stored KV if their loss is unknown: each adds its errors.
pub const HOPS_MAX: u8 = 2;
/// Shortest context stored by default: one span; computing it takes about as long as looking it up.
pub const STORE_TOKENS_MIN: usize = 256;
/// Jobs queued in a store queue.
pub const STORE_QUEUE_JOBS: usize = 64;
/// Bytes of copied KV in a store queue: four chunks of an 8 B model in f32.
pub const STORE_QUEUE_BYTES: u64 = 2 << 30;
/// Attempts of one queued store.
pub const STORE_ATTEMPTS_MAX: u32 = 6;
/// Wait before the second attempt; doubles with each: the last one starts after about half a minute.
pub const STORE_BACKOFF_BASE: Duration = Duration::from_secs(1);
/// Longest wait between attempts.
pub const STORE_BACKOFF_MAX: Duration = Duration::from_secs(15);
/// Longest that encoding a queued store waits for loads to end, so that a node that always loads still
/// stores.
pub const ENCODE_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an upload sent between two checks for active loads.
pub const UPLOAD_PIECE_BYTES: usize = 64 << 10;
/// Longest pause of an upload while loads are active: at one piece per pause, 2 Mb/s.
pub const UPLOAD_PAUSE: Duration = Duration::from_millis(250);
/// Longest silence of a direct read before it continues through the service: well beyond any store's tail
/// latency. Also the longest wait for new presigned URLs, during which no read of a load begins.
pub const DIRECT_SILENCE_MAX: Duration = Duration::from_millis(800);
/// Longest silence of another load that reads the same bytes, before a load reads them itself: the other's
/// policy may have paused.
pub const SHARED_SILENCE_MAX: Duration = Duration::from_millis(250);
/// Direct reads of a load that may fail before all further reads use the service from the start.
pub const DIRECT_FAILURES_MAX: u32 = 2;
/// Threads of a blocking client's runtime: one for the network, one for work that must not wait for it.
pub const BLOCKING_WORKERS: usize = 2;
/// Shortest time between two requests for the list of replicas: two lists may be in use for a while.
pub const MEMBERS_ASKED_EVERY: Duration = Duration::from_secs(1);
/// Time after which a service that has no members, or did not say so, is asked again.
pub const MEMBERS_ASKED_AGAIN: Duration = Duration::from_secs(60);
/// Pause before an unreachable replica is probed; doubles with each failure in a row.
pub const MEMBER_PROBE_PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest such pause: about what a pod takes to return.
pub const MEMBER_PROBE_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Timeout of a probe.
pub const MEMBER_PROBE_TIME_MAX: Duration = Duration::from_secs(3);
/// How long a client that connects waits for the first probes. Replicas that have not answered by then are not used until they
/// do.
pub const MEMBERS_PROBED_WITHIN: Duration = Duration::from_millis(500);
/// Probes of new replicas at once.
pub const MEMBER_PROBES: usize = 16;
/// Split routes that a client remembers.
pub const SPLITS_KNOWN_MAX: usize = 4_096;
/// How long a client remembers a split route: the replica that split it repeats the hint.
pub const SPLIT_KNOWN_FOR: Duration = Duration::from_secs(600);
/// Largest accepted server-sent event: a chunk's block hashes are 20 KB.
pub(crate) const EVENT_BYTES_MAX: usize = 1 << 20;
