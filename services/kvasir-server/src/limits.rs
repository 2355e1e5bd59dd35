//! Limits of the HTTP side, each with its reason.

use std::time::Duration;

/// Longest JSON body: a lookup of 1 M tokens as decimal numbers, or of 64 K block hashes as hex.
pub(crate) const JSON_BYTES_MAX: usize = 16 << 20;
/// Longest JSON in front of objects that are stored together: 256 keys of 512 bytes, each byte an escape.
pub(crate) const NEW_OBJECTS_HEAD_BYTES_MAX: usize = 1 << 20;
/// How long a client may take for a request's head; longer ones hold connections for nothing.
pub(crate) const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(15);
/// How long nothing may move on a connection: longer than the keep-alive pings of HTTP/2 and of event streams.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(120);
/// How long a sender may pause within a body.
pub(crate) const BODY_STALL_MAX: Duration = Duration::from_secs(30);
/// Slowest body on average, after such a pause: slower than any line that KV caches are worth sending over.
pub(crate) const BODY_BYTES_PER_SECOND_MIN: u64 = 1 << 10;
/// Bytes of path and query: a list of 256 ranges of sections, or 32 labels, fits.
pub(crate) const URI_BYTES_MAX: usize = 8 << 10;
/// Headers of a request.
pub(crate) const HEADERS_MAX: usize = 64;
/// Their bytes: the longest credential, and the usual.
pub(crate) const HEADER_BYTES_MAX: usize = 32 << 10;
/// Headers that the protocol's parser takes: beyond it, and beyond its buffer, the connection gets a bare 431.
pub(crate) const H1_HEADERS_MAX: usize = 128;
/// Streams of one HTTP/2 connection at once.
pub(crate) const H2_STREAMS_MAX: u32 = 256;
/// Memory of one connection's buffers: two of one size, since a body's next piece is read while one is
/// being taken in, and those of its spool file where memory has run out.
pub(crate) const CONNECTION_MEMORY_BYTES: u64 = 128 << 10;
/// Least of it: the longest head that is taken has to fit into one buffer.
pub(crate) const CONNECTION_MEMORY_BYTES_MIN: u64 = 128 << 10;
/// Most of it: windows of HTTP/2 are eight times that.
pub(crate) const CONNECTION_MEMORY_BYTES_MAX: u64 = 16 << 20;
/// What of it is not for the two buffers.
pub(crate) const CONNECTION_MEMORY_OVERHEAD_BYTES: u64 = 32 << 10;
/// Longest read and write buffer of an HTTP/1 connection: longer ones are read no faster.
pub(crate) const H1_BUFFER_BYTES_MAX: u64 = 256 << 10;
/// Least bytes of an answer, as far as they are ready, that go to the socket in one write: a frame of the hot tier.
pub(crate) const GATHERED_BYTES_MIN: usize = 1 << 20;
/// The same where it takes them fast; twice that is no cheaper. A millisecond of a core.
pub(crate) const GATHERED_BYTES_MAX: usize = 4 << 20;
/// Longest time in which a connection that is fast takes them: 40 MB/s.
pub(crate) const GATHERED_TIME_MAX: Duration = Duration::from_millis(100);
/// Shortest part that others are gathered behind: mostly a frame of the hot tier, whose memory is paid for. What a store sends for a
/// reader whose frames the tier has no memory for comes in shorter ones, and is not held.
pub(crate) const GATHERED_PART_BYTES_MIN: usize = 512 << 10;
/// Window of one HTTP/2 connection, in multiples of a connection's memory: bounds its streams together.
pub(crate) const H2_CONNECTION_WINDOWS: u64 = 8;
/// Window of one HTTP/2 stream, likewise: what one unread upload can hold.
pub(crate) const H2_STREAM_WINDOWS: u64 = 4;
/// Header list of one HTTP/2 request: beyond it the stream is reset or gets a bare 431.
pub(crate) const H2_HEADER_BYTES_MAX: u32 = 64 << 10;
/// Rest of a refused body that is read, so that the client gets to see the refusal instead of a reset.
pub(crate) const REFUSED_BODY_BYTES_MAX: u64 = 64 << 20;
/// How long that may take.
pub(crate) const REFUSED_BODY_TIME_MAX: Duration = Duration::from_secs(5);
/// Connections at once to the listener of probes and metrics: a kubelet, a few scrapers, somebody looking.
pub(crate) const OPS_CONNECTIONS_MAX: usize = 32;
/// Longest connection to it: more than any probe or scrape takes, so that idle ones do not keep others out.
pub(crate) const OPS_CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest request id that is taken over from a client.
pub(crate) const REQUEST_ID_BYTES_MAX: usize = 64;
/// How long connections wait at start for the store to answer, before they are told that it has not.
pub(crate) const STORE_WAIT_AT_START_MAX: Duration = Duration::from_secs(5);
/// Longest pause between attempts to reach the store at start.
pub(crate) const STORE_RETRY_PAUSE_MAX: Duration = Duration::from_secs(10);
/// How often the hot index is written out.
pub(crate) const INDEX_FLUSH_EVERY: Duration = Duration::from_secs(10);
/// How often rows of removals whose names may be used again are deleted from the hot index.
pub(crate) const REMOVALS_EXPIRE_EVERY: Duration = Duration::from_secs(3600);
/// How often a replica reads the journal while it serves no requests.
pub(crate) const JOURNAL_IDLE_INTERVAL: Duration = Duration::from_secs(60);
/// Age of the last read of the journal at which a lookup reads first: with the read itself well within the 30 seconds in
/// which a removal reaches every route.
pub(crate) const JOURNAL_AGE_MAX: Duration = Duration::from_secs(10);
/// How long a lookup waits for that read.
pub(crate) const JOURNAL_CATCH_UP_TIME_MAX: Duration = Duration::from_secs(5);
/// Panics of a background task in a row after which a replica that needs it is not ready.
pub(crate) const BACKGROUND_PANICS_MAX: u32 = 3;
/// Longest pause that panics add to a background task's own.
pub(crate) const BACKGROUND_BACK_OFF_MAX: Duration = Duration::from_secs(60);
/// How long the last journal batch may take at shutdown.
pub(crate) const FINAL_JOURNAL_BATCH_TIME_MAX: Duration = Duration::from_secs(3);
/// What a refused client should wait, in seconds.
pub(crate) const RETRY_AFTER_SECONDS: u64 = 1;
/// What a tenant over its storage quota should wait for, in seconds: the collector, which frees what was removed.
pub(crate) const QUOTA_RETRY_AFTER_SECONDS: u64 = 600;
/// Longest credential: a JSON Web Token with a long list of claims.
pub(crate) const CREDENTIAL_BYTES_MAX: usize = 8 << 10;
/// Longest name of a credential in the audit log.
pub(crate) const CREDENTIAL_NAME_BYTES_MAX: usize = 128;
/// Tokens, and tenants with a quota, of a tenants file.
pub(crate) const TOKENS_MAX: usize = 100_000;
/// Keys of a JWKS file.
pub(crate) const JWKS_KEYS_MAX: usize = 64;
/// Clocks of an issuer and ours may differ by this.
pub(crate) const JWT_LEEWAY: Duration = Duration::from_secs(30);
/// Addresses whose refused credentials are counted.
pub(crate) const FAILURE_LIMITER_PEERS_MAX: usize = 1 << 16;
/// Largest file of credentials, keys or certificates.
pub(crate) const RELOADED_BYTES_MAX: u64 = 64 << 20;
/// How often such files are looked at for changes.
pub(crate) const RELOAD_EVERY: Duration = Duration::from_secs(5);
/// How often the credential of a body under way is looked at: with the look at the files, what is revoked ends within 6 s.
pub(crate) const CREDENTIAL_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest answer that is sent whatever becomes of its credential: it is in memory already.
pub(crate) const UNWATCHED_BYTES_MAX: u64 = 64 << 10;
/// Tenants that the log names as sealed; of the others it says how many there are.
pub(crate) const SEALED_TENANTS_LOGGED_MAX: usize = 100;
/// How long a TLS handshake may take.
pub(crate) const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Ranges of sections in one request: more than a directory has scopes makes no sense.
pub(crate) const SECTION_RANGES_MAX: usize = 256;
/// How often an idle event stream says that it is alive: below the idle timeouts of common proxies.
pub(crate) const EVENTS_KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often an idle event stream looks whether the replica is draining.
pub(crate) const EVENTS_TICK: Duration = Duration::from_millis(500);
/// Least life of a tombstone after its bytes: a collector's pass stops deleting when it has taken as long.
pub(crate) const TOMBSTONE_RETENTION_MIN: Duration = Duration::from_secs(60);
/// Longest XML body over S3: a list of all the parts of an object.
pub(crate) const S3_XML_BYTES_MAX: usize = 4 << 20;
/// Keys of a page of a list over S3, as in AWS.
pub(crate) const S3_LIST_KEYS_MAX: usize = 1_000;
/// Keys that one request over S3 removes, as in AWS.
pub(crate) const S3_DELETE_KEYS_MAX: usize = 1_000;
/// Parts of an object over S3, as in AWS.
pub(crate) const S3_PARTS_MAX: u16 = 10_000;
/// How often a point of the series is taken: as often as Prometheus usually looks.
pub(crate) const SERIES_STEP: Duration = Duration::from_secs(10);
/// Points that are kept: an hour, 250 KiB.
pub(crate) const SERIES_POINTS: usize = 360;
/// Tenants of the hot tier that are named, those that have most.
pub(crate) const HOT_TENANTS_LISTED_MAX: usize = 100;
/// Tenants whose last loads are remembered: with [`LOADS_KEPT_MAX`](kvasir_api::LOADS_KEPT_MAX) of at most 6 KiB each, 12 MiB.
pub(crate) const LOAD_TENANTS_MAX: usize = 32;
/// Longest path that is audited: beyond any route's with its ids. With [`AUDIT_CALLS_MAX`](kvasir_api::AUDIT_CALLS_MAX) calls, 1 MiB.
pub(crate) const AUDITED_PATH_BYTES_MAX: usize = 768;
/// Longest context of a plan: a thousand times the longest in use.
pub(crate) const PLAN_TOKENS_MAX: u64 = 1 << 30;
/// Most GPUs of a plan.
pub(crate) const PLAN_GPUS_MAX: u64 = 100_000;
/// Members of a cluster: ten times the largest that was thought through; a rank of all of them takes 0.1 ms.
pub(crate) const MEMBERS_MAX: usize = 1_000;
/// How often DNS is asked for the members: its records live 5 s to 30 s in Kubernetes.
pub(crate) const MEMBERS_RESOLVE_EVERY: Duration = Duration::from_secs(5);
/// How long DNS may take.
pub(crate) const MEMBERS_RESOLVE_TIME_MAX: Duration = Duration::from_secs(5);
/// Jobs that are remembered.
pub(crate) const JOBS_KEPT: usize = 32;
