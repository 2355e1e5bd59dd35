//! Every limit of the storage layer, each with its reason. Settings may lower most of them.

use std::time::Duration;

/// Largest chunk object. An uncompressed 16-bit chunk of 1,536 tokens of a 70B model is 480 MiB; encoded ones
/// are tens of MiB. Leaves room for the largest exact chunk.
pub const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// Largest profile: 5 % of the weights of a 70B model is 7 GB, but a basis is bounded at 2 GiB by its own offsets.
pub const PROFILE_BYTES_MAX: u64 = 2 << 30;
/// First read of an object whose head is needed: covers header, directory and tokens of a default chunk.
pub const HEAD_GUESS_BYTES: u64 = 32 << 10;
/// Bytes between two selected pieces that are read and dropped rather than skipped with another request: a
/// request to a store costs more than their transfer.
pub const SELECT_GAP_BYTES: u64 = 64 << 10;
/// Body bytes that an upload may hold in memory before it uses the spool file: most chunks never reach the
/// disk, where each write waits for the previous one.
pub const SPOOL_MEMORY_BYTES: usize = 24 << 20;
/// Memory of all uploads together: bodies, which use their files at once when it is exhausted, and parts.
pub const SPOOL_MEMORY_TOTAL_BYTES: usize = 64 << 20;
/// Share of the bodies' memory reserved for the buffers of spool files.
pub const SPOOL_BUFFERS_DIVISOR: u64 = 3;
/// Write buffer of a spool file; an upload has two.
pub const SPOOL_BUFFER_BYTES: usize = 128 << 10;
/// The same when memory is exhausted: small enough to count as part of a connection's cost.
pub const SPOOL_BUFFER_SHORT_BYTES: usize = 16 << 10;
/// Size of a part if a body is sent to the store in parts because it did not fit into memory: S3 requires at
/// least 5 MiB and at most 10,000 parts.
pub const MULTIPART_PART_BYTES: usize = 8 << 20;
/// Size of a part of a body with an announced digest, if the store accepts parts of any length; an upload
/// holds two of them.
pub const STREAMED_PART_BYTES: usize = 512 << 10;
/// Bytes of such a body that are held until its head has arrived: one with a longer head is not offered to
/// the hot tier.
pub const PASSING_HEAD_BYTES_MAX: usize = 512 << 10;
/// Concurrent store requests of one lookup.
pub const LOOKUP_PARALLEL: usize = 16;
/// Parts of prompts, of 1,024 tokens each, whose block hashes are remembered: ~6 KiB each, so 13 MiB for 2 M tokens.
pub const CHAIN_SEGMENTS_MAX: usize = 2_048;
/// Chunks probed in the first, the second and each later round of a cold lookup.
pub const PROBE_ROUNDS: [usize; 3] = [4, 60, 192];
/// Objects of one seq_hash without a tombstone that a reader considers; the collector removes duplicates.
pub const OBJECTS_PER_SEQ_MAX: usize = 8;
/// Names under which one PUT tries to store its object, if each is removed before it is acknowledged: more
/// removals than clients send during one upload.
pub const PUT_ATTEMPTS_MAX: usize = 8;
/// First wait for writers of different bytes under the same key to give way; doubled each time.
pub const OPAQUE_CONTEST_WAIT: Duration = Duration::from_millis(25);
/// How often an apparently damaged opaque object is read before it counts as damaged.
pub const OPAQUE_READS: usize = 8;
/// Longest time after its write in which a writer may withdraw its object.
pub const OPAQUE_RETRACT_MAX: Duration = Duration::from_secs(60);
/// Age at which no writer withdraws an object any more: twice as long, for the store's dates and the write
/// itself.
pub const OPAQUE_SETTLED_AFTER: Duration = Duration::from_secs(120);
/// Longer than the upload of an object in parts takes.
pub const OPAQUE_PARTS_TIME_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of objects of a key that are considered: writers of the same bytes each write one, and the
/// collector keeps one.
pub const OPAQUE_OBJECTS_MAX: usize = 256;
/// Objects of a list of keys that are looked up concurrently.
pub const LISTED_PARALLEL: usize = 32;
/// Acknowledged opaque objects that are remembered; an object beyond that is written once more when it is
/// stored again.
pub const ACKNOWLEDGED_ENTRIES_MAX: usize = 65_536;
/// Longest of these waits, 775 ms in total: an object that has not given way by then stays.
pub const OPAQUE_CONTEST_WAIT_MAX: Duration = Duration::from_millis(400);
/// Misses remembered: 40 bytes each.
pub const NEGATIVE_ENTRIES_MAX: usize = 65_536;
/// How long a miss is remembered.
pub const NEGATIVE_TTL: Duration = Duration::from_secs(1);
/// Objects whose sizes are cached, so that a ranged read needs no second request: ~250 bytes each.
pub const CATALOG_ENTRIES_MAX: usize = 65_536;
/// Objects cached with all of their index data: ~600 bytes each.
pub const INDEX_ENTRIES_MAX: usize = 16_384;
/// Objects whose last use is remembered: ~100 bytes each, and 12 each in the record of a replica's uses.
pub const USES_MAX: usize = 262_144;
/// How long the record of a replica's uses is kept after the last one.
pub const USES_KEPT: Duration = Duration::from_secs(24 * 3600);
/// Objects among which one pass chooses what to evict: ~400 bytes each while it chooses, and 8 each in the record of what
/// others are to evict. Of a store with more, a pass sees an even share, and each pass another one.
pub const COLD_OBJECTS_MAX: usize = 1_000_000;
/// Age from which nobody evicts by that record: several of the longest intervals that a large store has between passes.
pub const VICTIMS_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// How often a fresh lookup repeats because a matched chunk has a tombstone; after that it ends before that
/// chunk. Also how often a lookup asks the store again for a chunk that a removal hid in the meantime, or
/// restarts because the index was emptied.
pub const FRESH_LOOKS_MAX: usize = 4;
/// Objects remembered as gone or corrupt, so that their index rows are deleted when found.
pub const GONE_ENTRIES_MAX: usize = 65_536;
/// Registered models remembered: one key each.
pub const MODELS_CACHED_MAX: usize = 4_096;
/// Model specs kept in memory, of at most 150 KB each.
pub const SPECS_CACHED_MAX: usize = 1_024;
/// Models listed for one tenant.
pub const MODELS_LISTED_MAX: usize = 1_000;
/// Specs read concurrently for such a list.
pub(crate) const SPECS_PARALLEL: usize = 16;
/// Profiles listed for one model.
pub const PROFILES_LISTED_MAX: usize = 1_000;
/// Directories tried when index databases are locked by other processes.
pub const INDEX_SLOTS_MAX: usize = 16;
/// Memory of the hot index: pages of the database, and lineages (~90 bytes per chunk) of a million chunks and
/// more.
pub const INDEX_CACHE_BYTES: u64 = 192 << 20;
/// Share of it for pages.
pub const INDEX_PAGES_DIVISOR: u64 = 3;
/// Index positions remembered, so that rows of a context are adjacent: ~120 bytes each.
pub const INDEX_POSITIONS_MAX: usize = 65_536;
/// Journal entries waiting for the next batches: ~600 bytes each, and 13 KB of the longest chunks.
pub const JOURNAL_WAITING_MAX: usize = 8_192;
/// Entries about what was stored that a turn of the journal leaves waiting: at more of them all are appended, long before they are
/// so many that some are dropped.
pub const JOURNAL_STORED_WAITING_MAX: usize = 1_024;
/// Largest batch that is read. Ours have entries of at most half as many bytes.
pub const JOURNAL_BATCH_BYTES_MAX: u64 = 16 << 20;
/// Damaged batches of removals, and tenants whose removals could not be read for want of their key, that are remembered, so that
/// the index is emptied once for each.
pub const JOURNAL_UNREADABLE_MAX: usize = 4_096;
/// Batches of a log that are read at once, whoever wrote them: at 150 ms a request, one of each of a hundred
/// replicas in about a second. A lookup that reads the journal first waits for them. They hold at most 256 MiB, and
/// half of that if they are full batches of our own.
pub const JOURNAL_BATCHES_AHEAD: usize = 16;
/// Before the last read of removals, the period whose batches the next read lists again, by the times in their names:
/// what a batch may be late, and twenty minutes that a reader's clock may be ahead of the store's.
pub const JOURNAL_REMOVALS_WINDOW: Duration = Duration::from_secs(30 * 60);
/// All batches of removals are listed this often, so that none stays unheard should the store's clock have been set back.
pub const JOURNAL_REMOVALS_LISTED_EVERY: Duration = Duration::from_secs(60 * 60);
/// A batch of removals that the store has later than its name says is appended again under a later name: the writer's
/// clock stood still, or its request took that long.
pub const JOURNAL_REMOVALS_LATE_MAX: Duration = Duration::from_secs(10 * 60);
/// Batches in a page of a listing.
pub const JOURNAL_PAGE: usize = 1_000;
/// Pages of one listing of all journals, or of one log: ten MB of names, in up to five seconds at 150 ms a request. What a hundred
/// replicas stored has 25, if a pass of the collector deletes the old batches three quarters of an hour after their time.
pub const JOURNAL_PAGES_MAX: usize = 32;
/// The same where rows are read: in a small cluster each replica does every second, and needs them soon.
pub const JOURNAL_ROWS_PAGES_MAX: usize = 10;
/// Listings of replicas' journals at a time, or of parts of the log of removals: replicas that have ended keep theirs
/// until it is collected.
pub const JOURNAL_FOLDERS_AT_ONCE: usize = 16;
/// After a larger journal, listings by folder before a single listing is tried again: about a minute.
pub const JOURNAL_LOOKS_BY_FOLDER: u32 = 30;
/// Resolution of the coarser of a store's dates: HTTP headers have seconds where listings have milliseconds.
pub const STORE_DATE_UNIT: Duration = Duration::from_secs(1);
/// Tombstones and deletions of one tenant in one pass of the collector: what the rate allows in this many seconds.
pub const GC_TENANT_SECONDS: u32 = 100;
/// The same at a low rate: as at the default one.
pub const GC_TENANT_ACTIONS_MIN: u32 = 10_000;
/// Fewer than five tenants divide what the rate allows in this many seconds: a pass may take as long for one as for five.
pub const GC_TENANTS_SECONDS: u32 = 500;
/// Chunks named by one intent of the collector: one listing of the contexts for this many tombstones. At the
/// default rate they are written within a second, during which a pin of one of them waits.
pub const GC_INTENT_CHUNKS_MAX: usize = 100;
/// Time after which a collector writes no more tombstones of an intent.
pub const GC_INTENT_USE: Duration = Duration::from_secs(5 * 60);
/// Age at which the intent of a collector that ended early is deleted: longer than its use by more than any
/// request to the store, or pause of a process.
pub const GC_INTENT_KEPT: Duration = Duration::from_secs(20 * 60);
/// How often a pin checks whether earlier intents are gone, and the interval between checks.
pub const PIN_LOOKS_MAX: usize = 10;
/// See [`PIN_LOOKS_MAX`].
pub const PIN_LOOK_EVERY: Duration = Duration::from_millis(500);

/// Deleted objects without a note before the collector announces them and writes their notes: each announcement is a batch of
/// removals, which every replica reads. With those that are swept together, two passes at a time (a job beside the background
/// pass) have 7,254 of them at most, fewer than [`JOURNAL_WAITING_MAX`]. Not counted are other removals that wait, and those
/// that a pass announces again after an error.
pub const GC_GONE_WAITING_MAX: usize = 3_500;
/// Candidates for tails in the units of others that a pass verifies before it marks what it found: an hour's work at 150 ms a
/// request, for which the rest of the pass waits, and which a pass loses that is killed.
pub const GC_KNOWN_TAILS_MAX: usize = 3_500;
/// Objects for which a pass of the collector has requests under way: a quarter of the requests that a replica sends at
/// once, so that those of its clients find room.
pub const GC_PARALLEL: usize = 32;
/// Objects that wait until a pass asks for them together: ~500 bytes each. A multiple of [`GC_PARALLEL`], so that few
/// requests are waited for alone.
pub const GC_BATCH_OBJECTS: usize = 4 * GC_PARALLEL;
/// Bits by which a pass knows the objects in its units that it has listed: 32 MiB while it runs. Each sets two. Of other
/// objects, it takes next to none for one of them if they are two million, and one in seven if they are a sixteenth of 10⁹.
pub const GC_LISTED_BITS: usize = 1 << 28;
/// Number from which an epoch of the collector is not one of ours.
pub const EPOCH_MAX: u64 = 1 << 62;
/// How often a pass that lists the whole store says that it lasts: well below what other members wait for.
pub const EPOCH_MARKED_EVERY: Duration = Duration::from_secs(30);
/// Epochs of the collector that are kept for inspection.
pub const EPOCHS_KEPT: usize = 8;
/// Keys of one page of a listing, by the S3 API: a longer folder of chunks is listed in slices.
pub const LISTING_PAGE: usize = 1_000;
/// Keys that a slice should hold: rarely more than a page.
pub const LISTING_SLICE_KEYS: usize = 850;
/// Slices listed at once.
pub const LISTINGS_AT_ONCE: usize = 16;
/// Age of a tenant's list of models by which work is divided: a new model is collected that much later at most.
pub const WORK_MODELS_AGE_MAX: Duration = Duration::from_secs(3600);
/// Passes of each member after which units have other owners: with the default interval, twice a day.
pub const WORK_TURN_PASSES: u64 = 64;
/// Time after which units of scrubs have other owners: longer than any scrub should take.
pub const SCRUB_TURN: Duration = Duration::from_secs(30 * 24 * 3600);
/// A member lists the whole store if nobody did while it made this many passes, times the members that come before it.
pub const WHOLE_PASSES_MISSED_MAX: u32 = 3;
/// How often a collector of a part tries to begin an epoch that others begin at the same time.
pub const EPOCH_TRIES_MAX: usize = 8;
/// Concurrent store requests of a rebuild.
pub const REBUILD_PARALLEL: usize = 32;
/// How long first writers wait for each other on a store that ignores conditional creates: longer than the
/// resolution of a store's dates, so that all proposals of one date have arrived.
pub const FIRST_WRITER_SETTLE: Duration = Duration::from_millis(1_500);
/// Reads of a salt before it counts as damaged.
pub const SALT_READS: usize = 3;
/// Age of a namespace's cached salts before they are read again: `journal.lag`.
pub const SALT_ROTATIONS_FRESH: Duration = Duration::from_secs(5);
/// Age at which a caller waits for that read.
pub const SALT_ROTATIONS_STALE_MAX: Duration = Duration::from_secs(60);
/// Salts of one namespace that lookups search: each costs a walk of the index.
pub const SALT_ROTATIONS_LIVE_MAX: usize = 4;
/// Bytes of a tenant's salt.
pub const SALT_BYTES: usize = 32;
/// Longest frame of the hot tier, unless a single piece is longer: the unit of its policy, its files and its
/// waits. A millisecond from a disk.
pub const HOT_FRAME_BYTES: u64 = 1 << 20;
/// Longest frame that is cached: objects with larger pieces are passed through.
pub const HOT_FRAME_BYTES_MAX: u64 = 64 << 20;
/// Maximum bytes of one store request of the hot tier: bounds the memory that a slow reader makes it hold.
pub const HOT_FETCH_BYTES: u64 = 8 << 20;
/// Bytes of a stored object's base that the hot tier is offered: a chunk of a large model. The rest is read
/// from the store once.
pub const HOT_OFFERED_BYTES_MAX: u64 = 32 << 20;
/// Longest time that a body may take to arrive if its frames are copied as it passes, beyond the first
/// [`HOT_FETCH_BYTES`].
pub const PASSING_TIME_MAX: Duration = Duration::from_secs(1);
/// Share of the hot tier's memory for frames in flight, and for evicted ones that are not sent yet.
pub const HOT_IN_FLIGHT_DIVISOR: u64 = 8;
/// Share of it that fetches of several frames leave for others.
pub const HOT_IN_FLIGHT_RESERVE_DIVISOR: u64 = 16;
/// Share of it that the process keeps for later frames when frames are freed.
pub const HOT_SPARE_DIVISOR: u64 = 16;
/// Least memory for frames in transit, however little is cached: several frames, for a tier that only has a
/// disk.
pub const HOT_MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Share of the hot tier's memory for frames waiting to be written to disk; frames evicted beyond that are
/// dropped.
pub const HOT_WRITING_DIVISOR: u64 = 16;
/// Least bytes of frames that may wait for the disk, however little memory the tier has: several frames.
pub const HOT_WRITING_BYTES_MIN: u64 = 8 << 20;
/// Share of the hot tier's memory for prefetched frames that no reader has requested yet.
pub const HOT_PREFETCH_DIVISOR: u64 = 16;
/// Concurrent prefetches.
pub const HOT_PREFETCHES_MAX: usize = 8;
/// Number of chunks to read ahead of a read.
pub const HOT_READ_AHEAD_CHUNKS: usize = 2;
/// Frames of 256 tokens of an object that are distinguished in the order of a context.
pub const HOT_FRAMES_ORDERED: u32 = 1024;
/// Value of a level's bytes relative to the previous level: steps refined by three lower the squared error to
/// a ninth.
pub const HOT_LEVEL_WORTH: f32 = 1.0 / 9.0;
/// Refused chunks remembered for `explain`: ~300 bytes each.
pub const REFUSALS_MAX: usize = 4_096;
/// How long they are remembered.
pub const REFUSALS_KEPT: Duration = Duration::from_secs(3600);
/// Chunks whose namespace is remembered as a label of events: ~200 bytes each.
pub const LINEAGE_MAX: usize = 65_536;
/// Namespaces of a tenant that are listed.
pub const NAMESPACES_LISTED_MAX: usize = 1_000;
/// Models of a tenant that `explain` compares with.
pub const MODELS_COMPARED_MAX: usize = 64;
/// Namespaces that `explain` searches.
pub const NAMESPACES_COMPARED_MAX: usize = 64;
/// Tombstones and uploads that `explain` searches: 20 pages of a listing.
pub const TRACES_LISTED_MAX: usize = 20_000;
/// Direct uploads whose announcement and commit are remembered.
pub const COMMITS_KEPT: usize = 4_096;
/// Lifetime of a presigned URL: longer than most loads, and clients request new ones.
pub const URL_TTL: Duration = Duration::from_secs(300);
/// Age at which a direct upload without a commit is collected.
pub const UPLOAD_TTL: Duration = Duration::from_secs(3600);
/// Events kept for readers that reconnect.
pub const EVENTS_KEPT_MAX: usize = 16_384;
/// Bytes of kept events: one of a chunk of 1,536 tokens is about 2.5 KB.
pub const EVENTS_KEPT_BYTES: usize = 16 << 20;
/// Events passed to a reader at once.
pub const EVENTS_BATCH: usize = 64;
/// Events that a reader reconnecting to another replica gets again, at least: those within this time of its
/// last one, beyond the time that replicas take to hear of each other's events. Their clocks may differ by as much.
pub const EVENTS_OVERLAP: Duration = Duration::from_secs(10);
/// Contexts read concurrently for a page.
pub const CONTEXTS_PARALLEL: usize = 16;
/// Versions of a context.
pub const CONTEXT_VERSIONS_MAX: usize = 10_000;
/// Versions beyond it: one that unpins the context, and one that deletes it.
pub const CONTEXT_LAST_VERSIONS: usize = 2;
/// Objects whose division and checksums are cached: 8 bytes per piece, some KiB each.
pub const HOT_OBJECTS_MAX: usize = 1_024;
/// Maximum number of pieces of such an object; larger ones are divided anew for each read.
pub const HOT_OBJECT_PIECES_MAX: usize = 16_384;
/// Positions in contexts remembered from lookups, and requested chunks: ~250 bytes each.
pub const HOT_LOOKUP_RECORDS_MAX: usize = 65_536;
/// How long after its lookup a read or write still belongs to a request: longer than any load takes.
pub const HOT_REQUEST_SECONDS_MAX: f64 = 300.0;
/// Evictions from the hot tier recorded for `explain`: ~100 bytes each.
pub const HOT_EVICTIONS_KEPT: usize = 16_384;
/// Evictions that `explain` lists: those of 64 chunks from memory and from disk.
pub const EVICTIONS_LISTED_MAX: usize = 128;
/// Journal batches for which a tenant's account is kept separately until the next count: the oldest are
/// merged into the count.
pub const LEDGER_BATCHES_MAX: usize = 4_096;
/// Age of the last count, or of the last word of the replica that keeps the accounts, at which a replica counts itself.
pub const LEDGER_AGE_MAX: Duration = Duration::from_secs(3600);
/// Age of the last count at which the replica that keeps the accounts counts itself. It hears of all chunks and objects that are
/// stored, and each replica adds what no journal says: figures become too large by what is collected until the collector counts
/// again.
pub const LEDGER_LISTED_AGE_MAX: Duration = Duration::from_secs(12 * 3600);
/// Objects younger than this when a collector begins may arrive through the journal while it counts, or later:
/// twice its lag in the largest clusters. A count names the replicas whose batches were read this lately.
pub const LEDGER_RECENT: Duration = Duration::from_secs(120);
/// Replicas whose last batch is remembered, so that a batch that is read again is not counted again.
pub const LEDGER_HEARD_MAX: usize = 4_096;
/// Replicas named in a count, the latest writers first: their list fits into a field of the journal.
pub const LEDGER_REPLICAS_MAX: usize = 400;
/// Objects remembered as read directly once: after the second time, the hot tier caches their base.
pub const DIRECT_SEEN_MAX: usize = 16_384;
/// Unreadable objects that a scrub logs; a tenant's key may be lost, and with it all of its objects.
pub(crate) const SCRUB_UNREAD_LOGGED: u64 = 100;
/// How often a rate-limited scrub reports progress and can be stopped.
pub(crate) const SCRUB_PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// How long a process runs before it begins a scrub, unless `scrub.interval` is shorter: units are divided by the
/// list of members, and during a rollout DNS may leave out any of them.
pub(crate) const SCRUB_BEGUN_AFTER: Duration = Duration::from_secs(3600);
/// How often a scrub records how far it is: a restarted replica reads that much again.
pub(crate) const SCRUB_KEPT_EVERY: Duration = Duration::from_secs(10);
