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
/// Chunks that are encoded or uploaded at the same time: one of each.
pub const STORE_CONCURRENCY: usize = 2;
/// Chunks that are decoded at the same time.
pub const DECODE_CONCURRENCY: usize = 2;
/// Arrivals that wait for the load's task; a batch is at most a few hundred KB.
pub const ARRIVALS_QUEUE: usize = 256;
/// A partial tail is stored anew only with at least this many tokens more than what is stored already.
pub const TAIL_GROWTH_MIN: u64 = 256;
