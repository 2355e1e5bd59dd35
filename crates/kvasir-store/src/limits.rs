//! Every limit of the store, each with its reason. Settings may lower most of them.

use std::time::Duration;

/// Concurrent requests to the store.
pub const STORE_REQUESTS_MAX: usize = 128;
/// Queued requests; a task of a few KiB each.
pub const STORE_WAITING_MAX: usize = 4_096;
/// Longest wait for a connection: a lost SYN is sent again after 1 s and after 3 s.
pub const STORE_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long they wait in the queue: a client's patience with a silent service.
pub const STORE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Open bodies per request permit: slow readers must not block others' requests. One tenant has at most half of them.
pub const STORE_BODIES_PER_REQUEST: usize = 4;
/// Pause before the first retry; it doubles.
pub const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause between retries.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Retries that a call adds to the budget: bounds the additional load on a failing store.
pub const RETRIES_PER_CALL: f64 = 0.2;
/// Retries added per second: a replica with little traffic may still retry.
pub const RETRIES_PER_SECOND: f64 = 10.0;
/// Retries that can accumulate: for a burst of faults after a quiet period.
pub const RETRY_BUDGET_MAX: f64 = 100.0;
/// Consecutive faults that open the breaker: 1 in 10⁹ by chance if one request in four fails.
pub const BREAKER_FAULTS: u32 = 16;
/// First pause of an open breaker; it doubles with each failed probe.
pub const BREAKER_PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest pause: bounds how late the end of an outage is noticed.
pub const BREAKER_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Bytes of a file read at once: few thread switches, and buffers that an allocator keeps. A reader holds one.
pub const STORE_FILE_PART_BYTES: u64 = 512 << 10;
/// Smallest payload written to a directory past the page cache: shorter ones are records, which are read
/// soon.
pub const STORE_UNBUFFERED_WRITE_BYTES_MIN: usize = 256 << 10;
/// Bytes of such a write: a disk is no faster with more.
pub const STORE_UNBUFFERED_WRITE_BYTES: usize = 1 << 20;
/// Longest silence within a body.
pub const STORE_BODY_STALL_MAX: Duration = Duration::from_secs(10);
/// Minimum average rate of a body, as far as the store is the cause.
pub const STORE_BODY_BYTES_PER_SECOND_MIN: u64 = 256 << 10;
/// Objects of a directory listed with one thread switch, ~200 bytes each.
pub const STORE_LISTED_AT_ONCE: usize = 1_024;
/// Threads of a directory that stay with one piece of work for all its requests. The work may wait for another thread of
/// the runtime's 512, so most of those stay free for that. Never more than half of the concurrent requests.
pub const STORE_FILE_THREADS_MAX: usize = 64;
/// Bytes that such work writes at most: more cost far more than thread switches do, and stay in memory while a disk hangs.
pub const STORE_FILE_THREAD_BYTES_MAX: u64 = 8 << 20;
/// Folders of a directory that are known to be durable, ~250 bytes each; one that is forgotten costs a sync.
pub const STORE_FOLDERS_REMEMBERED_MAX: usize = 4_096;
/// Concurrent deletions of one stream.
pub const STORE_DELETES_AT_ONCE: usize = 8;
/// Unfinished multipart uploads that one pass of the collector examines: ten pages of a listing.
pub const UNFINISHED_LISTED_MAX: usize = 10_000;
/// Keys in a keys file.
pub const SEAL_KEYS_MAX: usize = 100_000;
/// Tenants without a key here for which a replica caches whether they have one elsewhere.
pub const SEAL_TENANTS_REMEMBERED_MAX: usize = 4_096;
/// How long it caches that: for this long, its writes may be unencrypted after the tenant got its first key
/// elsewhere.
pub const SEAL_LOOKED_AT_AGAIN: Duration = Duration::from_secs(30);
/// Tenant keys for which a replica remembers that it attempted to rewrap them.
pub const SEAL_REWRAPS_REMEMBERED_MAX: usize = 4_096;
/// Pause between attempts to rewrap a tenant key: while the store takes no writes, one read of a tenant in this
/// time waits for the failure.
pub const SEAL_REWRAP_AGAIN: Duration = Duration::from_secs(30);
/// Longest record of a tenant, sealed or not: a context with the maximum number of chunks has 0.3 MB.
pub const SEALED_RECORD_BYTES_MAX: u64 = 4 << 20;
/// Reads of a sealed record before it counts as damaged: one bad read may be a transfer error, two mean that
/// the store's copy is bad.
pub const SEALED_RECORD_READS: usize = 3;
/// Time limit of the probe of direct uploads.
pub const DIRECT_PROBE_TIME: Duration = Duration::from_secs(10);
