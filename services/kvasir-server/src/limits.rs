//! Limits of the HTTP side, each with its reason.

use std::time::Duration;

/// Longest JSON body of a lookup: 1 M tokens as decimal numbers, or 64 K block hashes as hex.
pub(crate) const LOOKUP_JSON_BYTES_MAX: usize = 16 << 20;
/// Longest JSON body otherwise: as many keys as a request may name, each byte an escape. What is made of a body has several
/// times its size, and is kept while the store is asked.
pub(crate) const JSON_BYTES_MAX: usize = 1 << 20;
/// Bytes of a body that is read whole for which no room is reserved.
pub(crate) const SHORT_BODY_BYTES: usize = 64 << 10;
/// Bytes of all bodies that are being read whole, beyond their first [`SHORT_BODY_BYTES`].
pub(crate) const LONG_BODIES_BYTES_MAX: usize = 256 << 20;
/// Longest time to read a whole body: 16 MiB at 2.2 Mbit/s.
pub(crate) const WHOLE_BODY_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest aws-chunk of an S3 body: `s3s` holds it whole. Clients that sign chunks send 64 KiB; some send a part as one.
pub(crate) const S3_CHUNK_BYTES_MAX: usize = 64 << 20;
/// What is held for such a chunk: its head, the parts of the body that it shares with other chunks, and what parts cost.
pub(crate) const S3_HELD_BYTES_MAX: usize = S3_CHUNK_BYTES_MAX + (8 << 20);
/// Memory of a part of a body beside its bytes; its sender chooses how many there are.
pub(crate) const HELD_PART_BYTES: usize = 128;
/// Longest JSON before objects that are stored together: 256 keys of 512 bytes, each byte an escape.
pub(crate) const NEW_OBJECTS_HEAD_BYTES_MAX: usize = 1 << 20;
/// Status in the audit log of a request whose client hung up before its response.
pub(crate) const STATUS_ABANDONED: u16 = 499;
/// Largest count in a report of a load: 4 TiB, or 140 years of a GPU in ms. Reports are added up for all tenants.
pub(crate) const LOAD_COUNT_MAX: u64 = 1 << 42;
/// How long a client may take to send a request's head; slower ones only occupy connections.
pub(crate) const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a connection may be idle: longer than the keep-alive pings of HTTP/2 and of event streams.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(120);
/// How long a sender may pause within a body.
pub(crate) const BODY_STALL_MAX: Duration = Duration::from_secs(30);
/// How long a client may take for a part that was handed over of a response: 4 MiB at 17 kB/s.
pub(crate) const RESPONSE_STALL_MAX: Duration = Duration::from_secs(240);
/// How often that is checked on a connection.
pub(crate) const STALL_CHECKED_EVERY: Duration = Duration::from_secs(15);
/// Minimum average rate of a body, after such a pause: slower than any link worth sending KV caches over.
pub(crate) const BODY_BYTES_PER_SECOND_MIN: u64 = 1 << 10;
/// Bytes of path and query: enough for 256 ranges of sections, or 32 labels.
pub(crate) const URI_BYTES_MAX: usize = 8 << 10;
/// Headers of a request.
pub(crate) const HEADERS_MAX: usize = 64;
/// Their bytes: the longest credential, and the usual headers.
pub(crate) const HEADER_BYTES_MAX: usize = 32 << 10;
/// Headers that the protocol's parser accepts: beyond this, or beyond its buffer, the client gets a bare 431.
pub(crate) const H1_HEADERS_MAX: usize = 128;
/// Concurrent streams of one HTTP/2 connection.
pub(crate) const H2_STREAMS_MAX: u32 = 256;
/// Memory of one connection's buffers: two of equal size, since a body's next piece is read while one is
/// processed, and those of its spool file once memory is exhausted.
pub(crate) const CONNECTION_MEMORY_BYTES: u64 = 128 << 10;
/// Minimum: the longest accepted head must fit into one buffer.
pub(crate) const CONNECTION_MEMORY_BYTES_MIN: u64 = 128 << 10;
/// Maximum: HTTP/2 windows are eight times that.
pub(crate) const CONNECTION_MEMORY_BYTES_MAX: u64 = 16 << 20;
/// The part that is not available for the two buffers.
pub(crate) const CONNECTION_MEMORY_OVERHEAD_BYTES: u64 = 32 << 10;
/// Longest read and write buffer of an HTTP/1 connection: longer ones are no faster.
pub(crate) const H1_BUFFER_BYTES_MAX: u64 = 256 << 10;
/// Bytes of a TLS connection that are encrypted ahead of its socket, and written to it with one call: 16 records of 16 KiB, where
/// rustls alone takes four. A client that reads slowly leaves them in memory, with 22 bytes a record: 256 MiB for 1,024 connections.
pub(crate) const TLS_AHEAD_BYTES_MAX: usize = 16 * (16 << 10);
/// Least bytes of a response, as far as they are ready, that one write passes to the socket: a frame of the
/// hot tier.
pub(crate) const GATHERED_BYTES_MIN: usize = 1 << 20;
/// The same for a socket that takes them fast; twice as much is no cheaper. A millisecond of a core.
pub(crate) const GATHERED_BYTES_MAX: usize = 4 << 20;
/// Longest time in which a fast connection takes them: 40 MB/s.
pub(crate) const GATHERED_TIME_MAX: Duration = Duration::from_millis(100);
/// Shortest part behind which others are gathered: usually a frame of the hot tier, whose memory is leased.
/// Parts that a store sends for a reader whose frames do not fit into the tier are shorter, and are not held.
pub(crate) const GATHERED_PART_BYTES_MIN: usize = 512 << 10;
/// Window of one HTTP/2 connection, in multiples of a connection's memory: bounds all its streams together.
pub(crate) const H2_CONNECTION_WINDOWS: u64 = 8;
/// Window of one HTTP/2 stream, likewise: the most that one unread upload can hold.
pub(crate) const H2_STREAM_WINDOWS: u64 = 4;
/// Header list of one HTTP/2 request: beyond this the stream is reset or gets a bare 431.
pub(crate) const H2_HEADER_BYTES_MAX: u32 = 64 << 10;
/// Bytes of a refused body that are still read, so that the client sees the refusal instead of a reset.
pub(crate) const REFUSED_BODY_BYTES_MAX: u64 = 64 << 20;
/// How long that may take.
pub(crate) const REFUSED_BODY_TIME_MAX: Duration = Duration::from_secs(5);
/// Concurrent connections to the listener of probes and metrics: a kubelet, a few scrapers, an operator.
pub(crate) const OPS_CONNECTIONS_MAX: usize = 32;
/// Those of one address.
pub(crate) const OPS_CONNECTIONS_PER_ADDRESS_MAX: usize = 8;
/// Longest connection to it: longer than any probe or scrape, so that idle ones do not keep others out.
pub(crate) const OPS_CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest request id that is accepted from a client.
pub(crate) const REQUEST_ID_BYTES_MAX: usize = 64;
/// How long connections wait at start for the store to respond, before they get an error.
pub(crate) const STORE_WAIT_AT_START_MAX: Duration = Duration::from_secs(5);
/// Longest pause between attempts to reach the store at start.
pub(crate) const STORE_RETRY_PAUSE_MAX: Duration = Duration::from_secs(10);
/// How often the hot index is written out.
pub(crate) const INDEX_FLUSH_EVERY: Duration = Duration::from_secs(10);
/// How often expired rows of removals are deleted from the hot index: their names may be used again.
pub(crate) const REMOVALS_EXPIRE_EVERY: Duration = Duration::from_secs(3600);
/// How often a replica looks whether a scrub is due or was interrupted, unless `scrub.interval` is shorter: to go on with one, it
/// lists again what is verified.
pub(crate) const SCRUB_DUE_EVERY: Duration = Duration::from_secs(600);
/// How often an idle replica reads the journal.
pub(crate) const JOURNAL_IDLE_INTERVAL: Duration = Duration::from_secs(60);
/// Age of the last journal read at which a lookup reads first: including the read, well within the 30 seconds
/// in which a removal reaches every route.
pub(crate) const JOURNAL_AGE_MAX: Duration = Duration::from_secs(10);
/// Reads of the journal per second by all replicas of a cluster together: S3 asks $100 a month for them, at a listing each.
pub const JOURNAL_READS_PER_SECOND: f64 = 8.0;
/// Longest interval that results, for a hundred members.
pub const JOURNAL_SHARED_INTERVAL_MAX: Duration = Duration::from_millis(12_500);
/// Turns of the journal in a large cluster for each in which what was stored is written and read. Removals are in every one.
pub const JOURNAL_STORED_TURNS: u32 = 2;
/// How often a replica of a large cluster collects the tails that it knows in the units of others, at most: every replica reads
/// the batch that announces them.
pub const KNOWN_TAILS_EVERY: Duration = Duration::from_secs(3600);
/// How often a replica of a large cluster reads how much tenants have stored.
pub const JOURNAL_COUNTS_EVERY: Duration = Duration::from_secs(30);
/// Members up to which each replica has rows of everything in its index: beyond that, its own part and what it was asked for.
/// Their reads of each other's batches grow with the square: 64 a second at 8.
pub const JOURNAL_ROWS_MEMBERS_MAX: usize = 8;
/// How long a lookup waits for that read.
pub(crate) const JOURNAL_CATCH_UP_TIME_MAX: Duration = Duration::from_secs(5);
/// Consecutive panics of a background task after which a replica that needs it is not ready.
pub(crate) const BACKGROUND_PANICS_MAX: u32 = 3;
/// Longest additional pause of a background task after panics.
pub(crate) const BACKGROUND_BACK_OFF_MAX: Duration = Duration::from_secs(60);
/// Time limit of writing hot data from memory to disk at shutdown: with the last journal batch less than the 10 s that the chart
/// adds to the drain.
pub(crate) const HOT_WRITE_BACK_TIME_MAX: Duration = Duration::from_secs(5);
/// Time limit of the last journal batch at shutdown.
pub(crate) const FINAL_JOURNAL_BATCH_TIME_MAX: Duration = Duration::from_secs(3);
/// `Retry-After` of a refused client, in seconds.
pub(crate) const RETRY_AFTER_SECONDS: u64 = 1;
/// `Retry-After` of a tenant over its storage quota, in seconds: the collector must first free removed
/// objects.
pub(crate) const QUOTA_RETRY_AFTER_SECONDS: u64 = 600;
/// Longest lifetime of a presigned URL that S3 accepts: 7 days.
pub(crate) const URL_TTL_MAX: Duration = Duration::from_secs(7 * 86_400);
/// Longest credential: a JSON Web Token with a long list of claims.
pub(crate) const CREDENTIAL_BYTES_MAX: usize = 8 << 10;
/// Longest name of a credential in the audit log.
pub(crate) const CREDENTIAL_NAME_BYTES_MAX: usize = 128;
/// Tokens, and tenants with a quota, of a tenants file.
pub(crate) const TOKENS_MAX: usize = 100_000;
/// Keys of a JWKS file.
pub(crate) const JWKS_KEYS_MAX: usize = 64;
/// Tolerated difference between an issuer's clock and ours.
pub(crate) const JWT_LEEWAY: Duration = Duration::from_secs(30);
/// Tokens of which it is remembered that they were valid.
pub(crate) const JWT_ACCEPTED_MAX: usize = 4_096;
/// Addresses whose refused credentials are counted.
pub(crate) const FAILURE_LIMITER_PEERS_MAX: usize = 1 << 16;
/// Largest file of credentials, keys or certificates.
pub(crate) const RELOADED_BYTES_MAX: u64 = 64 << 20;
/// How often such files are checked for changes.
pub(crate) const RELOAD_EVERY: Duration = Duration::from_secs(5);
/// How often the credential of a running body is checked, and how long requests may go on whose client certificate is no longer
/// accepted: together with the check of the files, a revocation takes effect within 6 s.
pub(crate) const CREDENTIAL_LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest response that is sent without watching its credential: it is already in memory.
pub(crate) const UNWATCHED_BYTES_MAX: u64 = 64 << 10;
/// Encrypted tenants that the log names; the others are only counted.
pub(crate) const SEALED_TENANTS_LOGGED_MAX: usize = 100;
/// Timeout of a TLS handshake.
pub(crate) const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Ranges of sections in one request: a directory never has more scopes.
pub(crate) const SECTION_RANGES_MAX: usize = 256;
/// How often an idle event stream sends a keep-alive: below the idle timeouts of common proxies.
pub(crate) const EVENTS_KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often an idle event stream checks whether the replica is draining.
pub(crate) const EVENTS_TICK: Duration = Duration::from_millis(500);
/// Minimum lifetime of a tombstone after its bytes: a collector pass stops deleting after that time.
pub(crate) const TOMBSTONE_RETENTION_MIN: Duration = Duration::from_secs(60);
/// Longest XML body over S3: a list of all parts of an object.
pub(crate) const S3_XML_BYTES_MAX: usize = 4 << 20;
/// Keys of a page of a list over S3, as in AWS.
pub(crate) const S3_LIST_KEYS_MAX: usize = 1_000;
/// Keys that one S3 request may remove, as in AWS.
pub(crate) const S3_DELETE_KEYS_MAX: usize = 1_000;
/// Parts of an S3 object, as in AWS.
pub(crate) const S3_PARTS_MAX: u16 = 10_000;
/// Interval between points of the series: that of usual Prometheus scrapes.
pub(crate) const SERIES_STEP: Duration = Duration::from_secs(10);
/// Number of points kept: an hour, 250 KiB.
pub(crate) const SERIES_POINTS: usize = 360;
/// Tenants of the hot tier that are listed: those with the most data.
pub(crate) const HOT_TENANTS_LISTED_MAX: usize = 100;
/// Tenants whose latest loads are kept: with [`LOADS_KEPT_MAX`](kvasir_api::LOADS_KEPT_MAX) of at most 6 KiB
/// each, 12 MiB.
pub(crate) const LOAD_TENANTS_MAX: usize = 32;
/// Models of all tenants whose latest trainings are kept: with [`TRAININGS_KEPT_MAX`](kvasir_api::TRAININGS_KEPT_MAX) of at
/// most 1 KiB each, 1 MiB.
pub(crate) const TRAINING_MODELS_MAX: usize = 128;
/// Longest audited path: longer than any route with its ids, each byte of a namespace and of a key an escape. With
/// [`AUDIT_CALLS_MAX`](kvasir_api::AUDIT_CALLS_MAX) calls, 2 MiB.
pub(crate) const AUDITED_PATH_BYTES_MAX: usize = 2 << 10;
/// Longest context of a plan: a thousand times the longest in use.
pub(crate) const PLAN_TOKENS_MAX: u64 = 1 << 30;
/// Most GPUs of a plan.
pub(crate) const PLAN_GPUS_MAX: u64 = 100_000;
/// Members of a cluster: ten times the largest considered in the design; ranking all of them takes 0.1 ms.
pub(crate) const MEMBERS_MAX: usize = 1_000;
/// Interval of DNS queries for the members: Kubernetes records have a TTL of 5 s to 30 s.
pub(crate) const MEMBERS_RESOLVE_EVERY: Duration = Duration::from_secs(5);
/// How long a replica waits for its first list before it reads the whole journal, as without one.
pub(crate) const MEMBERS_KNOWN_WITHIN: Duration = Duration::from_secs(60);
/// Timeout of a DNS query.
pub(crate) const MEMBERS_RESOLVE_TIME_MAX: Duration = Duration::from_secs(5);
/// Number of jobs kept on record.
pub(crate) const JOBS_KEPT: usize = 32;
