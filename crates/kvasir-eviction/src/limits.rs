//! Named limits of the eviction policies, each with its reason. None is fitted to a trace.

/// Request classes with a separate queue. Eviction compares the heads of all queues, so this bounds its time.
pub const CLASSES_MAX: usize = 256;
/// Classes of one tenant, so that a tenant that invents types cannot use up the table.
pub const CLASSES_PER_TENANT_MAX: usize = 32;
/// Keys whose uses are sampled to learn about reuse, cached or not (60 to 70 bytes each: 1.9 to 2.2 MiB per policy, by
/// the size of keys).
pub const SAMPLED_KEYS_MAX: usize = 32 * 1024;
/// How far back reuse is learnt from (the paper's "last period").
pub const REUSE_WINDOW_SECONDS: f64 = 3_600.0;
/// Least accesses between two fits of [`Adaptive`](super::Adaptive)'s hazards; later, as many as sampled keys.
pub const REFIT_ACCESSES: usize = 512;
/// Request ends remembered to recognise follow-ups (~50 bytes each: 3.2 MiB).
pub const TURN_ENDS_MAX: usize = 64 * 1024;
/// Numbers of uses that [`Adaptive`](super::Adaptive) distinguishes, in factors of two.
pub const USE_BUCKETS: u32 = 6;
/// Queues of [`Adaptive`](super::Adaptive), which compares both ends of each: bounds the time of an eviction. One per
/// combination of uses, pace, class and value that occurs: about 500 in a tier of chunks with four levels.
pub const QUEUES_MAX: usize = 1024;
/// Of these, reserved for entries without a separate class: 6 × 8 combinations of uses and pace, of five values.
pub const QUEUES_UNCLASSED: usize = 240;
/// Evicted entries whose uses [`Adaptive`](super::Adaptive) remembers, per entry (2 bytes each).
pub const REMEMBERED_PER_ENTRY: usize = 8;
/// Tenants with a separate share of a tier; the others share one.
pub const TENANTS_MAX: usize = 256;
/// Entries of the largest copy in a [`HitRatioCurve`](super::HitRatioCurve); the three others have fewer. More would be nearer to
/// the truth and cost as much more memory.
pub const CURVE_ENTRIES_MAX: usize = 8 * 1024;
/// How long prompts of routes are counted before the counts begin anew.
pub const ROUTE_WINDOW_SECONDS: f64 = 60.0;
/// Prompts of one route within that which say that it is shared at all.
pub const SPLIT_PROMPTS_MIN: u32 = 32;
/// A route with more than one of this many lookups of its replica is split.
pub const SPLIT_SHARE: u32 = 4;
/// How long a split lasts. A prefix that many still share is split anew within a window.
pub const SPLIT_SECONDS: f64 = 3_600.0;
/// Routes that are counted within a window: one has to have a quarter of the lookups to matter.
pub const ROUTES_COUNTED_MAX: usize = 4_096;
/// Longer routes that are split together with one: 16,384 tokens of a prefix that all of its prompts share.
pub const SPLIT_DEPTH_MAX: usize = 64;
/// Routes that are split at once; beyond it the oldest is not any more.
pub const SPLITS_MAX: usize = 1_024;
