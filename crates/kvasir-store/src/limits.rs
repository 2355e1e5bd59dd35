//! Every limit of the store, each with its reason. Settings may lower most of them.

use std::time::Duration;

/// Requests to the store at once.
pub const STORE_REQUESTS_MAX: usize = 128;
/// Requests that wait for a place; a task of a few KiB each.
pub const STORE_WAITING_MAX: usize = 4_096;
/// How long they wait; a client's patience with one that says nothing.
pub const STORE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Open bodies for each place of a request: slow readers must not keep others from asking.
pub const STORE_BODIES_PER_REQUEST: usize = 4;
/// Pause before the first retry; it doubles.
pub const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause between retries.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Retries that a call adds to the budget: at most so much more load for a store in trouble.
pub const RETRIES_PER_CALL: f64 = 0.2;
/// Retries that a second adds: a replica with little to do may still retry.
pub const RETRIES_PER_SECOND: f64 = 10.0;
/// Retries that can be saved up: for a burst of faults after a quiet time.
pub const RETRY_BUDGET_MAX: f64 = 100.0;
/// Faults in a row that open the breaker: 1 in 10⁹ by chance where one request in four fails.
pub const BREAKER_FAULTS: u32 = 16;
/// First pause of an open breaker; it doubles with each failed probe.
pub const BREAKER_PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest pause: how late the end of an outage may be noticed.
pub const BREAKER_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Bytes of a file that are read at once: few tasks for a thread, and buffers that an allocator keeps.
pub const STORE_FILE_PART_BYTES: u64 = 512 << 10;
/// Least payload that is written to a directory past the page cache: shorter ones are records, which are read soon.
pub const STORE_UNBUFFERED_WRITE_BYTES_MIN: usize = 256 << 10;
/// Bytes of such a write: a disk is no faster with more.
pub const STORE_UNBUFFERED_WRITE_BYTES: usize = 1 << 20;
/// Longest silence within a body.
pub const STORE_BODY_STALL_MAX: Duration = Duration::from_secs(10);
/// Slowest body on average, as far as the store is the reason.
pub const STORE_BODY_BYTES_PER_SECOND_MIN: u64 = 256 << 10;
/// Deletions of one stream at once.
pub const STORE_DELETES_AT_ONCE: usize = 8;
/// Unfinished uploads in parts that one pass of the collector looks at: ten pages of a listing.
pub const UNFINISHED_LISTED_MAX: usize = 10_000;
/// Keys of a keys file.
pub const SEAL_KEYS_MAX: usize = 100_000;
/// Tenants without a key here of which a replica remembers whether they have one elsewhere.
pub const SEAL_TENANTS_REMEMBERED_MAX: usize = 4_096;
/// How long it remembers that: as long may what it stores be in the clear after the tenant got its first key elsewhere.
pub const SEAL_LOOKED_AT_AGAIN: Duration = Duration::from_secs(30);
/// Longest record of a tenant, sealed or not: a context of the most chunks has 0.3 MB.
pub const SEALED_RECORD_BYTES_MAX: u64 = 4 << 20;
/// Reads of a sealed record before it is taken for damaged: once wrong may be the way here, twice is the store.
pub const SEALED_RECORD_READS: usize = 3;
/// How long the probe of direct uploads may take.
pub const DIRECT_PROBE_TIME: Duration = Duration::from_secs(10);
