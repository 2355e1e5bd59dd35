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
/// Bytes between two selected pieces that are read and dropped rather than asked for around: a request to a store costs
/// more than their transfer.
pub const SELECT_GAP_BYTES: u64 = 64 << 10;
/// Body bytes an upload may hold in memory before it goes to the spool file: most chunks never see the disk, whose
/// every write would wait for the one before.
pub const SPOOL_MEMORY_BYTES: usize = 24 << 20;
/// Memory of all uploads together: bodies, of which those that find none go to their files at once, and parts.
pub const SPOOL_MEMORY_TOTAL_BYTES: usize = 64 << 20;
/// Share of the memory of bodies that is left for the buffers of spool files.
pub const SPOOL_BUFFERS_DIVISOR: u64 = 3;
/// Bytes gathered before they go to a spool file; an upload has two such buffers.
pub const SPOOL_BUFFER_BYTES: usize = 128 << 10;
/// The same where memory has run out: little enough to count among what a connection costs.
pub const SPOOL_BUFFER_SHORT_BYTES: usize = 16 << 10;
/// Bytes of a part, where a body goes to the store in parts, because it did not fit into memory: S3 wants at least 5 MiB and at most 10,000 parts.
pub const MULTIPART_PART_BYTES: usize = 8 << 20;
/// Bytes of a part of a body whose digest is known beforehand, where the store takes parts of any length; an upload holds two of them.
pub const STREAMED_PART_BYTES: usize = 512 << 10;
/// Bytes that are held of such a body until its head has come: one whose head is longer is not offered to the hot tier.
pub const PASSING_HEAD_BYTES_MAX: usize = 512 << 10;
/// Store requests of one lookup at once.
pub const LOOKUP_PARALLEL: usize = 16;
/// Parts of prompts, of 1,024 tokens each, whose block hashes are remembered: ~6 KiB each, so 13 MiB for 2 M tokens.
pub const CHAIN_SEGMENTS_MAX: usize = 2_048;
/// Chunks probed in the first, the second and each later round of a cold lookup.
pub const PROBE_ROUNDS: [usize; 3] = [4, 60, 192];
/// Objects of one seq_hash without a tombstone that a reader considers; GC removes duplicates.
pub const OBJECTS_PER_SEQ_MAX: usize = 8;
/// Names under which one PUT stores its object, where each is removed before it is acknowledged: more removals than
/// anybody sends beside one upload.
pub const PUT_ATTEMPTS_MAX: usize = 8;
/// First wait for writers of other bytes under the same key to give way; doubled each time.
pub const OPAQUE_CONTEST_WAIT: Duration = Duration::from_millis(25);
/// How often an opaque object is read that seems to be damaged, before it is taken for that.
pub const OPAQUE_READS: usize = 8;
/// Longest time after its write in which a writer takes its object back.
pub const OPAQUE_RETRACT_MAX: Duration = Duration::from_secs(60);
/// Age at which nobody takes an object back any more: twice as long, for the store's dates and the write itself.
pub const OPAQUE_SETTLED_AFTER: Duration = Duration::from_secs(120);
/// Most objects of a key that are looked at: writers of the same bytes each write one, and the collector leaves one.
pub const OPAQUE_OBJECTS_MAX: usize = 256;
/// Objects of a list of keys that are looked up at once.
pub const LISTED_PARALLEL: usize = 32;
/// Opaque objects that are remembered as acknowledged; what is forgotten is written once more when it comes again.
pub const ACKNOWLEDGED_ENTRIES_MAX: usize = 65_536;
/// Longest of these waits, 775 ms in all: what does not give way by then is there to stay.
pub const OPAQUE_CONTEST_WAIT_MAX: Duration = Duration::from_millis(400);
/// Misses remembered at once: 40 bytes each.
pub const NEGATIVE_ENTRIES_MAX: usize = 65_536;
/// How long a miss is remembered.
pub const NEGATIVE_TTL: Duration = Duration::from_secs(1);
/// Objects whose sizes are remembered, so that a ranged read needs no second request: ~250 bytes each.
pub const CATALOG_ENTRIES_MAX: usize = 65_536;
/// Objects remembered with all that the index was given of them: ~600 bytes each.
pub const INDEX_ENTRIES_MAX: usize = 16_384;
/// Objects whose last use is remembered: ~100 bytes each.
pub const USES_MAX: usize = 262_144;
/// Objects among which one pass chooses what to evict: ~400 bytes each while it chooses.
pub const COLD_OBJECTS_MAX: usize = 1_000_000;
/// How often a fresh lookup looks again because something that it matched has a tombstone; then it ends before that. And how often
/// a lookup asks the store again for a chunk that a removal hid meanwhile, or begins anew because the index was emptied.
pub const FRESH_LOOKS_MAX: usize = 4;
/// Objects remembered as gone or corrupt, so that their index rows die when met.
pub const GONE_ENTRIES_MAX: usize = 65_536;
/// Registered models remembered: one key each.
pub const MODELS_CACHED_MAX: usize = 4_096;
/// Models listed for one tenant.
pub const MODELS_LISTED_MAX: usize = 1_000;
/// Specs read at once for such a list.
pub(crate) const SPECS_PARALLEL: usize = 16;
/// Profiles listed for one model.
pub const PROFILES_LISTED_MAX: usize = 1_000;
/// Directories tried when index databases are locked by other processes.
pub const INDEX_SLOTS_MAX: usize = 16;
/// Memory of the hot index: pages of the database, and lines (~90 bytes a chunk) of a million chunks and more.
pub const INDEX_CACHE_BYTES: u64 = 192 << 20;
/// Share of it for pages.
pub const INDEX_PAGES_DIVISOR: u64 = 3;
/// Places in the index remembered, so that rows of a context lie together: ~120 bytes each.
pub const INDEX_POSITIONS_MAX: usize = 65_536;
/// Journal entries that wait for the next batch: ~600 bytes each.
pub const JOURNAL_WAITING_MAX: usize = 8_192;
/// Largest batch that is read.
pub const JOURNAL_BATCH_BYTES_MAX: u64 = 16 << 20;
/// Batches that are read while one is being taken in.
pub const JOURNAL_BATCHES_AHEAD: usize = 4;
/// Batches of all replicas that are looked at with one listing: a page of it.
pub const JOURNAL_LISTED_MAX: usize = 1_000;
/// Looks, after there were more, until that is tried again: a minute or so.
pub const JOURNAL_LOOKS_BY_FOLDER: u32 = 30;
/// Unit of the coarser of a store's dates: HTTP headers have seconds where listings have milliseconds.
pub const STORE_DATE_UNIT: Duration = Duration::from_secs(1);
/// Tombstones and deletions of one tenant in one pass of the collector: 100 s at the default rate.
pub const GC_TENANT_ACTIONS_MAX: u32 = 10_000;
/// Chunks that one intent of the collector names: one listing of the contexts for so many tombstones. At the default rate they
/// are written within a second, for which a pin of one of them waits.
pub const GC_INTENT_CHUNKS_MAX: usize = 100;
/// Time after which a collector writes no more tombstones of an intent.
pub const GC_INTENT_USE: Duration = Duration::from_secs(5 * 60);
/// Age at which the intent of a collector goes that ended before it had carried it out: longer than its use by more than any
/// request to the store, or pause of a process, takes.
pub const GC_INTENT_KEPT: Duration = Duration::from_secs(20 * 60);
/// How often a pin looks whether the intents are gone that were there before it, and the time between two looks.
pub const PIN_LOOKS_MAX: usize = 10;
/// See [`PIN_LOOKS_MAX`].
pub const PIN_LOOK_EVERY: Duration = Duration::from_millis(500);

/// Deleted objects that wait for the note of it before the collector announces them and writes their notes.
pub const GC_GONE_WAITING_MAX: usize = 1_000;
/// Epochs of the collector that are kept, for whoever looks.
pub const EPOCHS_KEPT: usize = 8;
/// Store requests of a rebuild at once.
pub const REBUILD_PARALLEL: usize = 32;
/// How long first writers wait for each other on a store that ignores conditional creates: longer than the unit of a
/// store's dates, so that proposals of one date are all there.
pub const FIRST_WRITER_SETTLE: Duration = Duration::from_millis(1_500);
/// Reads of a salt before it is taken for damaged.
pub const SALT_READS: usize = 3;
/// Age of what is known of a namespace's salts, before somebody looks again: `journal.lag`.
pub const SALT_ROTATIONS_FRESH: Duration = Duration::from_secs(5);
/// Age at which a caller waits for that look.
pub const SALT_ROTATIONS_STALE_MAX: Duration = Duration::from_secs(60);
/// Salts of one namespace that lookups look under: each costs a walk of the index.
pub const SALT_ROTATIONS_LIVE_MAX: usize = 4;
/// Bytes of a tenant's salt.
pub const SALT_BYTES: usize = 32;
/// Longest frame of the hot tier, unless a single piece is longer: the unit of its policy, its files and its waits. A
/// millisecond from a disk.
pub const HOT_FRAME_BYTES: u64 = 1 << 20;
/// Longest frame that is kept: an object of larger pieces is passed through.
pub const HOT_FRAME_BYTES_MAX: u64 = 64 << 20;
/// Bytes that one store request of the hot tier brings at most: bounds what a slow reader makes it hold.
pub const HOT_FETCH_BYTES: u64 = 8 << 20;
/// Bytes of a stored object's base that the hot tier is offered: a chunk of a large model. What is left out is read from the store once.
pub const HOT_OFFERED_BYTES_MAX: u64 = 32 << 20;
/// How long a body may take to come whose frames are copied while it passes, beyond the first [`HOT_FETCH_BYTES`].
pub const PASSING_TIME_MAX: Duration = Duration::from_secs(1);
/// Share of the hot tier's memory for frames on their way, and for those that were evicted and are not sent yet.
pub const HOT_IN_FLIGHT_DIVISOR: u64 = 8;
/// Share of it that is left for others by who brings more than one frame at once.
pub const HOT_IN_FLIGHT_RESERVE_DIVISOR: u64 = 16;
/// Share of it that stays with the process when frames go, for those that come.
pub const HOT_SPARE_DIVISOR: u64 = 16;
/// Least memory that frames move through, however little is kept: some frames, for a tier that has only a disk.
pub const HOT_MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Bytes that are read at once from a local file into frames: little beside the memory of the frames, and each read is a hop to
/// another thread.
pub const HOT_READ_BYTES: u64 = 256 << 10;
/// Bytes that are read at once for a reader whose frames the hot tier has no memory for, and from a local file: little enough to
/// count among what a connection costs.
pub const PASSED_BYTES: u64 = 48 << 10;
/// Share of the hot tier's memory for frames that wait to be written to disk; what is evicted beyond that is dropped.
pub const HOT_WRITING_DIVISOR: u64 = 16;
/// Least bytes of frames that may wait for the disk, however little memory the tier has: some frames.
pub const HOT_WRITING_BYTES_MIN: u64 = 8 << 20;
/// Share of the hot tier's memory for frames that nobody has asked for yet.
pub const HOT_PREFETCH_DIVISOR: u64 = 16;
/// Prefetches at once.
pub const HOT_PREFETCHES_MAX: usize = 8;
/// Chunks that are read ahead of one that is read.
pub const HOT_READ_AHEAD_CHUNKS: usize = 2;
/// Frames of 256 tokens of an object that are told apart in the order of a context.
pub const HOT_FRAMES_ORDERED: u32 = 1024;
/// Worth of a level's bytes relative to the level below: steps refined by three lower the squared error to a ninth.
pub const HOT_LEVEL_WORTH: f32 = 1.0 / 9.0;
/// Worth of a byte of a frame of which nothing but its name is known (found on disk at start, until it is used): seconds
/// of prefill a byte, as a base of one bit an element of an 8B model with grouped heads has.
pub const HOT_SECONDS_PER_BYTE_UNKNOWN: f32 = 1.25e-8;
/// The same of an object in the store of which nothing but its size is known: all levels, at some four bits an element.
pub const COLD_SECONDS_PER_BYTE_UNKNOWN: f32 = HOT_SECONDS_PER_BYTE_UNKNOWN / 4.0;
/// Layers of a model that was not met lately, when the cost of recomputing its tokens is estimated.
pub const REFERENCE_LAYERS: usize = 32;
/// Width of a model for each of its layers: 128 in Llama and Mistral 7B, 102 in Llama 70B; loss hardly depends on it
/// (Kaplan et al. 2020, section 3.1), so models stay near it.
pub const WIDTH_PER_LAYER: f64 = 128.0;
/// Operations a second of the engine by which recomputing is weighed: half of an A100's peak. Only ratios matter.
pub const REFERENCE_FLOPS: f64 = 156e12;
/// Chunks remembered as sent and not taken, for `explain`: ~300 bytes each.
pub const REFUSALS_MAX: usize = 4_096;
/// How long they are remembered.
pub const REFUSALS_KEPT: Duration = Duration::from_secs(3600);
/// Chunks whose namespace is remembered, so that events can say it: ~200 bytes each.
pub const LINEAGE_MAX: usize = 65_536;
/// Chunks before one that are looked at to find its namespace.
pub const ANCESTORS_MAX: usize = 64;
/// Namespaces of a tenant that are listed.
pub const NAMESPACES_LISTED_MAX: usize = 1_000;
/// Models of a tenant that `explain` compares with.
pub const MODELS_COMPARED_MAX: usize = 64;
/// Namespaces that `explain` looks into.
pub const NAMESPACES_COMPARED_MAX: usize = 64;
/// Tombstones and uploads that `explain` looks through: 20 pages of a listing.
pub const TRACES_LISTED_MAX: usize = 20_000;
/// Direct uploads whose announcement, and whose commit, is remembered.
pub const COMMITS_KEPT: usize = 4_096;
/// Life of a presigned URL: longer than most loads, and clients ask again.
pub const URL_TTL: Duration = Duration::from_secs(300);
/// Age at which a direct upload without a commit is collected.
pub const UPLOAD_TTL: Duration = Duration::from_secs(3600);
/// Events that are kept for readers that come back.
pub const EVENTS_KEPT_MAX: usize = 16_384;
/// Bytes of kept events: one of a chunk of 1,536 tokens is about 2.5 KB.
pub const EVENTS_KEPT_BYTES: usize = 16 << 20;
/// Events handed to a reader at once.
pub const EVENTS_BATCH: usize = 64;
/// What a reader that comes back to another replica gets again, at least: events within this time of its last one.
pub const EVENTS_OVERLAP: Duration = Duration::from_secs(10);
/// Contexts read at once for a page.
pub const CONTEXTS_PARALLEL: usize = 16;
/// Versions of a context.
pub const CONTEXT_VERSIONS_MAX: usize = 10_000;
/// Versions beyond it: one that unpins the context, and one that deletes it.
pub const CONTEXT_LAST_VERSIONS: usize = 2;
/// Objects whose cuts and checksums are remembered: 8 bytes a piece, some KiB each.
pub const HOT_OBJECTS_MAX: usize = 1_024;
/// Places in contexts that are remembered from lookups, and chunks that were asked for: ~100 bytes each.
pub const HOT_LOOKUP_RECORDS_MAX: usize = 65_536;
/// How long after its lookup a read or write still belongs to a request: longer than any load takes.
pub const HOT_REQUEST_SECONDS_MAX: f64 = 300.0;
/// Evictions from the hot tier that are remembered for `explain`: ~100 bytes each.
pub const HOT_EVICTIONS_KEPT: usize = 16_384;
/// Evictions that `explain` lists: those of 64 chunks from memory and from disk.
pub const EVICTIONS_LISTED_MAX: usize = 128;
/// Batches of the journal of which a tenant's account is kept apart until the next count: the oldest join the count.
pub const LEDGER_BATCHES_MAX: usize = 4_096;
/// Age of the last count, where no collector brings another, at which a replica counts by itself.
pub const LEDGER_AGE_MAX: Duration = Duration::from_secs(3600);
/// Objects younger than this when a collector begins may come through the journal while it counts: many times its lag.
pub const LEDGER_RECENT: Duration = Duration::from_secs(120);
/// Replicas that a count names: what fits into a field of the journal.
pub const LEDGER_REPLICAS_MAX: usize = 400;
/// Objects remembered as read directly once: the second time, a hot tier takes their base in.
pub const DIRECT_SEEN_MAX: usize = 16_384;
/// How often a scrub that waits for its rate says how far it is, and may be stopped.
pub(crate) const SCRUB_PROGRESS_EVERY: Duration = Duration::from_secs(1);
