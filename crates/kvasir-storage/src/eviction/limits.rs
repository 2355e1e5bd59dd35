//! Named limits of the eviction policies, each with its reason. None is fitted to a trace.

/// S3-FIFO's small queue is a tenth of the capacity (SOSP'23 §4.2; the paper finds 5–20 % alike).
pub const S3FIFO_SMALL_DIVISOR: u64 = 10;
/// S3-FIFO counts uses in two bits.
pub const S3FIFO_USES_MAX: u8 = 3;
/// Ghosts kept even when the tier holds fewer entries than this: a tiny tier learns from some history too.
pub const GHOST_ENTRIES_MIN: usize = 1024;
/// Idle time after which [`Ttl`](super::Ttl) drops an entry by default: five minutes, as hosted prompt caches do.
pub const TTL_SECONDS_DEFAULT: f64 = 300.0;
/// Request classes with a queue of their own. Eviction compares the heads of all, so this bounds its time.
pub const CLASSES_MAX: usize = 256;
/// Classes of one tenant, so that a tenant that invents types cannot use up the table.
pub const CLASSES_PER_TENANT_MAX: usize = 32;
/// Keys whose uses are followed to learn about reuse, cached or not (~64 bytes each: 2 MiB per policy).
pub const SAMPLED_KEYS_MAX: usize = 32 * 1024;
/// How far back reuse is learnt from (the paper's "last period").
pub const REUSE_WINDOW_SECONDS: f64 = 3_600.0;
/// Accesses of a class between two fits of its exponential: 24 additions each.
pub const REFIT_CLASS_ACCESSES: usize = 64;
/// Least accesses between two fits of [`Adaptive`](super::Adaptive)'s hazards; later, as many as sampled keys.
pub const REFIT_ACCESSES: usize = 512;
/// Shortest reuse time told apart: keeps rates finite when a clock stands still.
pub const REUSE_SECONDS_MIN: f64 = 1e-3;
/// Request ends remembered to recognise follow-ups (~64 bytes each: 4 MiB).
pub const TURN_ENDS_MAX: usize = 64 * 1024;
/// Queues of [`Adaptive`](super::Adaptive), which compares both ends of each: bounds the time of an eviction.
pub const QUEUES_MAX: usize = 256;
/// Of these, kept free for entries without a class of their own: 3 × 8 combinations of uses and pace.
pub const QUEUES_UNCLASSED: usize = 24;
