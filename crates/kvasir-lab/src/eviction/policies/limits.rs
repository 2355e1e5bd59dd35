//! Named limits of the compared policies, each with its reason. None is fitted to a trace.

/// S3-FIFO's small queue is a tenth of the capacity (SOSP'23 §4.2; the paper finds no difference from 5 to 20
/// %).
pub const S3FIFO_SMALL_DIVISOR: u64 = 10;
/// S3-FIFO counts uses in two bits.
pub const S3FIFO_USES_MAX: u8 = 3;
/// Ghosts kept even if the tier holds fewer entries than this, so that a tiny tier also learns from some
/// history.
pub const GHOST_ENTRIES_MIN: usize = 1024;
/// Idle time after which [`Ttl`](super::Ttl) drops an entry by default: five minutes, as hosted prompt caches do.
pub const TTL_SECONDS_DEFAULT: f64 = 300.0;
/// Accesses of a class between two fits of its exponential: 24 additions each.
pub const REFIT_CLASS_ACCESSES: usize = 64;
/// Shortest distinguishable reuse time: keeps rates finite when a clock stands still.
pub const REUSE_SECONDS_MIN: f64 = 1e-3;
/// How strongly [`LeCar`](super::LeCar) learns from a regret (HotStorage'18 §4).
pub const LECAR_LEARNING_RATE: f64 = 0.45;
/// Weight of a regret after as many accesses as there are entries (HotStorage'18 §4).
pub const LECAR_DISCOUNT_BASE: f64 = 0.005;
/// Entries that [`Lhd`](super::Lhd) draws for an eviction (NSDI'18 §5 finds 64 enough).
pub const LHD_DRAWN: usize = 64;
/// Accesses between two fits of [`Lhd`](super::Lhd), at least; later, as many as entries.
pub const LHD_FIT_ACCESSES_MIN: u64 = 10_000;
/// Share of its counts that [`Lhd`](super::Lhd) keeps at a fit.
pub const LHD_KEEP: f64 = 0.9;
