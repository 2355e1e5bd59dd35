//! Every limit of the storage layer, each with its reason. Settings may lower most of them.

use std::time::Duration;

/// Largest chunk object. An uncompressed 16-bit chunk of 1,536 tokens of a 70B model is 480 MiB; encoded ones are
/// tens of MiB. Room for the largest exact chunk.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// Largest profile: 5 % of the weights of a 70B model is 7 GB, but a basis is bounded at 2 GiB by its own offsets.
pub const PROFILE_BYTES_MAX: u64 = 2 << 30;
/// Largest header + directory + tokens that is read into memory: 64 spans of 256 sections and 16 K tokens.
pub const HEAD_BYTES_MAX: u64 = 4 << 20;
/// First read of an object whose head is wanted: covers header, directory and tokens of a default chunk.
pub const HEAD_GUESS_BYTES: u64 = 32 << 10;
/// Body bytes an upload may hold in memory before it goes to the spool file.
pub const SPOOL_MEMORY_BYTES: usize = 1 << 20;
/// Spool bytes in memory over all uploads; beyond it every body goes to its file at once.
pub const SPOOL_MEMORY_TOTAL_BYTES: usize = 32 << 20;
/// Bodies above this are sent to the store in parts.
pub const MULTIPART_THRESHOLD_BYTES: u64 = 16 << 20;
/// Bytes of a part: S3 wants at least 5 MiB and at most 10,000 parts.
pub const MULTIPART_PART_BYTES: usize = 8 << 20;
/// Uploads that hold a part in memory at once: bounds it at this × a part.
pub const UPLOADS_SENDING_MAX: usize = 6;
/// Requests to the store at once.
pub const STORE_REQUESTS_MAX: usize = 128;
/// Store requests of one lookup at once.
pub const LOOKUP_PARALLEL: usize = 16;
/// Chunks probed in the first, the second and each later round of a cold lookup.
pub const PROBE_ROUNDS: [usize; 3] = [4, 60, 192];
/// Objects of one seq_hash that a reader considers; GC removes duplicates.
pub const OBJECTS_PER_SEQ_MAX: usize = 8;
/// Misses remembered at once: 40 bytes each.
pub const NEGATIVE_ENTRIES_MAX: usize = 65_536;
/// How long a miss is remembered.
pub const NEGATIVE_TTL: Duration = Duration::from_secs(1);
/// Objects whose sizes are remembered, so that a ranged read needs no second request: ~250 bytes each.
pub const CATALOG_ENTRIES_MAX: usize = 65_536;
/// Objects remembered as gone or corrupt, so that their index rows die when met.
pub const DEAD_ENTRIES_MAX: usize = 65_536;
/// Registered models remembered: one key each.
pub const MODELS_CACHED_MAX: usize = 4_096;
/// Profiles listed for one model.
pub const PROFILES_LISTED_MAX: usize = 1_000;
/// Directories tried when index databases are locked by other processes.
pub const INDEX_SLOTS_MAX: usize = 16;
/// Memory of the hot index's page cache.
pub const INDEX_CACHE_BYTES: u64 = 64 << 20;
/// Journal entries that wait for the next batch: ~600 bytes each.
pub const JOURNAL_WAITING_MAX: usize = 8_192;
/// Largest batch that is read.
pub const JOURNAL_BATCH_BYTES_MAX: u64 = 16 << 20;
/// Epochs of the collector that are kept, for whoever looks.
pub const EPOCHS_KEPT: usize = 8;
/// Store requests of a rebuild at once.
pub const REBUILD_PARALLEL: usize = 32;
/// How long a first writer waits before it re-reads on a store that ignores conditional creates.
pub const FIRST_WRITER_SETTLE: Duration = Duration::from_millis(250);
/// Bytes of a tenant's salt.
pub const SALT_BYTES: usize = 32;
/// Longest frame of the hot tier: the unit of its policy, its files and its waits. A millisecond from a disk.
pub const HOT_FRAME_BYTES: u64 = 1 << 20;
/// Bytes that one store request of the hot tier brings at most: bounds what a slow reader makes it hold.
pub const HOT_FLIGHT_BYTES: u64 = 8 << 20;
/// Frames that wait to be written to disk; what is evicted from memory beyond that is dropped.
pub const HOT_WRITES_MAX: usize = 64;
/// Prefetches at once.
pub const HOT_PREFETCHES_MAX: usize = 8;
/// Tenants with a share of their own in the hot tier; the others share one.
pub const HOT_TENANTS_MAX: usize = 256;
/// Frames of an object that are told apart in the order of a context: 1 GiB at a MiB each.
pub const HOT_FRAMES_ORDERED: u32 = 1024;
/// Worth of a level's bytes relative to the level below: steps refined by three lower the squared error to a ninth.
pub const HOT_LEVEL_WORTH: f32 = 1.0 / 9.0;
