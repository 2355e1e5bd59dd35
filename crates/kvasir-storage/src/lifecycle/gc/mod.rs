//! Deletion: tombstones, and the garbage collector that turns them into free space.
//!
//! Removing an object means writing a tombstone: from then on lookups do not offer it, while running reads continue.
//! Its bytes are deleted after [`GcPolicy::grace`], and the tombstone [`GcPolicy::tombstone_retention`] later: counted
//! from the deletion of the bytes, however late that was, because only then does the period begin in which a slow
//! collector may still delete. **While a tombstone exists, its name is never written again** (a chunk stored again gets
//! a new incarnation number in its header, hence another name). So any number of collectors may run at once, and a
//! collector that stalls between deciding and deleting is still safe: it can only delete the object that it decided on.
//! So the replicas of a cluster divide the chunks among them ([`WorkShare`]) without agreeing on anything. One of them
//! also lists the whole store, for what concerns all chunks: counts, capacity, salts, journals, remains of writers. What
//! has to leave for the capacity it chooses for all, and writes down for the owners of the chunks.
//!
//! A pass lists objects before their tombstones, so a tombstone whose bytes are gone costs no request while it is kept. A
//! writer that was slower than the grace may write them again: the next pass lists them, and deletes them again.
//!
//! Ages are measured by the store's clock alone: the epoch object written at the start of the pass against
//! the listed objects. Replicas' clocks may be wrong by any amount.

mod capacity;
mod concurrent;
mod contexts;
mod epoch;
mod evaluate;
mod expired_salts;
pub(crate) mod intents;
mod leftovers;
mod listed_objects;
mod pace;
mod record;
mod sweep;
mod tails;
mod tenant_budget;
#[cfg(test)]
mod testing;
mod uses;
mod victims;

use std::{
    collections::{BTreeSet, HashSet},
    fmt::Display,
    time::Duration,
};

use futures::{StreamExt, TryStreamExt};
use kvasir_eviction::PolicyKind;
use kvasir_store::{
    StoreError,
    layout::{ChunkKey, JournalLog, Key},
};
use kvasir_types::{ModelId, Name, ObjectDigest};
use object_store::{ObjectMeta, path::Path};
use tokio::time::Instant;

pub(super) use self::sweep::is_younger;
use self::{
    capacity::CapacityPlan, concurrent::concurrently, contexts::Contexts, epoch::Epoch, intents::Decided,
    listed_objects::ListedObjects, pace::Pace, sweep::DueTombstone, tenant_budget::TenantActionBudget,
    victims::Victims,
};
use super::{
    Lifecycle, ProgressAnswer,
    work_share::{Units, WorkShare},
};
use crate::{
    changes::{context_digest, count::Count, path_digest},
    limits,
    transitions::Transition,
};

/// The collector's policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcPolicy {
    /// Time from a tombstone to the deletion of its bytes: at least the longest load.
    pub grace: Duration,
    /// Time from the deletion of the bytes to that of the tombstone: longer than any pause of a process.
    pub tombstone_retention: Duration,
    /// Age at which chunks expire; `None`: never.
    pub ttl: Option<Duration>,
    /// Age at which journal batches of stored chunks are deleted. Those of removals are kept as long as their
    /// tombstones.
    pub journal_retention: Duration,
    /// Maximum bytes of chunk objects; `None`: no limit.
    pub capacity_bytes: Option<u64>,
    /// Eviction policy above that limit.
    pub eviction: PolicyKind,
    /// Time without a write after which an unfinished upload's files are deleted.
    pub leftovers_age: Duration,
    /// Deletions and tombstones per second; zero: no limit.
    pub actions_per_second: u32,
    /// Only count.
    pub dry_run: bool,
}

impl GcPolicy {
    /// How long removals are remembered: until the removed name may be used again.
    pub fn removals_kept(&self) -> Duration {
        self.grace.saturating_add(self.tombstone_retention)
    }

    /// Tombstones that are swept together: as many as the rate allows in a second, since nothing stops a pass in between.
    fn tombstones_at_once(&self) -> usize {
        match self.actions_per_second {
            0 => limits::GC_BATCH_OBJECTS,
            in_a_second => limits::GC_BATCH_OBJECTS.min(in_a_second as usize),
        }
    }
}

impl Default for GcPolicy {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(15 * 60),
            tombstone_retention: Duration::from_secs(24 * 3600),
            ttl: None,
            journal_retention: Duration::from_secs(3600),
            capacity_bytes: None,
            eviction: PolicyKind::DEFAULT,
            leftovers_age: Duration::from_secs(24 * 3600),
            actions_per_second: 100,
            dry_run: false,
        }
    }
}

/// The actions of a pass, or those that it would have taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GcReport {
    /// Whether the pass took place; false if another collector of the whole store began at the same time.
    pub led: bool,
    /// Whether it listed the whole store.
    pub listed_all: bool,
    /// Chunk objects listed.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Tombstones written for chunks past their time to live.
    pub expired: u64,
    /// Tombstones written for objects of a chunk that has a preferred one.
    pub duplicates: u64,
    /// Tombstones written for tails that a longer chunk contains.
    pub contained: u64,
    /// Tombstones written to stay within the capacity: of objects in this replica's units, whoever chose them.
    pub evicted: u64,
    /// Bytes of their objects.
    pub evicted_bytes: u64,
    /// Files of unfinished uploads deleted.
    pub leftovers_deleted: u64,
    /// Chunk objects deleted.
    pub deleted: u64,
    /// Their bytes.
    pub deleted_bytes: u64,
    /// Tombstones deleted.
    pub tombstones_deleted: u64,
    /// Journal batches deleted.
    pub batches_deleted: u64,
    /// Direct uploads deleted that were not committed in time.
    pub uploads_deleted: u64,
    /// Versions of contexts deleted: superseded, expired or of deleted contexts.
    pub context_versions_deleted: u64,
    /// Chunks spared because a context pins them, or may.
    pub pinned: u64,
    /// Unreadable contexts: none of their tenants' chunks expire or are evicted.
    pub contexts_unreadable: u64,
    /// Unreadable chunk objects, left unchanged.
    pub unread: u64,
    /// Objects spared after the decision to delete them: a context had pinned them since the pass began, what has their
    /// content was removed, or a chunk was stored behind a tail.
    pub spared: u64,
}

const LISTING: &str = "listing the store for the collector";

/// A running pass.
struct GcPass<'a> {
    policy: &'a GcPolicy,
    share: &'a WorkShare,
    lists_all: bool,
    /// Number of its epoch, and when that was last dated.
    epoch: u64,
    marked: Instant,
    /// The units of the model listed last.
    units: Option<(Name, ModelId, Units)>,
    now: StoreTime,
    started: Instant,
    report: GcReport,
    pace: Pace,
    contexts: Contexts,
    /// Objects in its units; `None`: any may be listed later.
    listed: Option<ListedObjects>,
    /// Expired chunks that may already have a tombstone.
    expired: Vec<ChunkKey>,
    /// Tombstones to be swept.
    due_tombstones: Vec<DueTombstone>,
    decided: Decided,
    /// Whether decisions were dropped, because their intent had become too old.
    was_cut_short: bool,
    /// Deleted objects that have no deletion note yet.
    gone: Vec<ChunkKey>,
    capacity_plan: CapacityPlan,
    /// What another replica has chosen for eviction.
    victims: Option<Victims>,
    /// Opaque objects with a tombstone, whose markers are deleted.
    removed_opaque: HashSet<ObjectDigest>,
    /// Namespaces with rotated salts.
    rotated: BTreeSet<(Name, Name)>,
    count: Count,
    tenant_budget: TenantActionBudget,
}

/// Milliseconds of the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreTime(i64);

impl StoreTime {
    fn of(meta: &ObjectMeta) -> Self {
        Self(meta.last_modified.timestamp_millis())
    }

    /// How much older `meta` is; zero if it is younger.
    fn age(self, meta: &ObjectMeta) -> Duration {
        self.since(Self::of(meta))
    }

    /// How long ago `before` was; zero if it is in the future.
    fn since(self, before: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(before.0)).unwrap_or(0))
    }
}

impl Lifecycle {
    /// One pass over a share of the store. Any number may run concurrently, anywhere. `progress` may end it
    /// between two chunks: then only the decisions made so far are carried out. Objects are collected
    /// [`limits::GC_PARALLEL`] at a time, with the requests for each in order.
    ///
    /// # Errors
    /// [`StoreError::Request`]; completed work is final, and the next pass continues.
    pub async fn collect_garbage<N: ProgressAnswer>(
        &self,
        policy: &GcPolicy,
        share: &WorkShare,
        progress: impl FnMut(&GcReport) -> N,
    ) -> Result<GcReport, StoreError> {
        let begun = self.begin_epoch(share, policy.dry_run).await?;
        let Some(epoch) = begun else { return Ok(GcReport::default()) };
        let share = &share.at_epoch(epoch.n);
        let mut pass = GcPass::new(policy, share, epoch);
        let outcome = self.collect(&mut pass, progress).await;
        // What it has deleted must not wait for its notes until a whole retention is over.
        if outcome.is_err()
            && let Err(error) = self.note_gone(&mut pass).await
        {
            tracing::warn!(%error, "deleted objects have no note; a pass after their retention notes them");
        }
        outcome.map(|()| pass.report)
    }

    async fn collect<N: ProgressAnswer>(
        &self,
        pass: &mut GcPass<'_>,
        mut progress: impl FnMut(&GcReport) -> N,
    ) -> Result<(), StoreError> {
        let (policy, share) = (pass.policy, pass.share);
        let (StoreTime(begun_ms), lists_all) = (pass.now, pass.lists_all);
        if let Err(error) = self.write_uses(pass).await {
            tracing::warn!(%error, "what this replica has served could not be written down: another one that evicts does not know it");
        }
        pass.victims = self.read_victims(pass).await;
        pass.listed = self.no_objects_listed(lists_all);
        let needs_models = !lists_all || share.has_known_tails();
        let models = if needs_models { self.models().await? } else { Vec::new() };
        let tenants = if lists_all { self.catalog.tenants().await? } else { Vec::new() };
        let with_models = models.iter().map(|(tenant, _)| tenant).collect::<BTreeSet<_>>().len();
        pass.tenant_budget = TenantActionBudget::of(policy, tenants.len().max(with_models));
        if lists_all {
            self.read_contexts(pass, tenants).await?;
            self.delete_old_intents(pass).await?;
            pass.report.uploads_deleted = self.uploads.collect_uploads(begun_ms, policy.dry_run).await?;
        }
        let counting = lists_all.then(|| self.changes.begin_count(begun_ms));
        let mut listing = if lists_all {
            self.bucket.list_long(&self.bucket.layout().tenants_prefix(), LISTING)
        } else {
            self.list_units(share, &models, LISTING)
        };
        // Adjacent in every listing: a store lists by key or walks folder by folder.
        let mut group: Vec<(ChunkKey, ObjectMeta)> = Vec::new();
        while let Some((key, meta)) = listing.try_next().await? {
            if lists_all {
                pass.count(&key, &meta);
            }
            match key {
                Key::Chunk(key) => {
                    pass.note_listed(&key);
                    let is_another = |first: &ChunkKey| {
                        (&first.tenant, &first.model_id, &first.seq_hash)
                            != (&key.tenant, &key.model_id, &key.seq_hash)
                    };
                    if group.first().is_some_and(|(first, _)| is_another(first)) {
                        self.evaluate_chunk(pass, std::mem::take(&mut group)).await?;
                        if !progress(&pass.report).goes_on() {
                            return self.stop(pass).await;
                        }
                    }
                    group.push((key, meta));
                }
                Key::Tombstone(key) => {
                    pass.exclude_from_capacity(&key);
                    if lists_all && key.model_id == ModelId::OPAQUE {
                        pass.removed_opaque.insert(key.object_digest);
                    }
                    if pass.owns(&key) {
                        self.sweep_tombstone(pass, key, meta).await?;
                    }
                    if !progress(&pass.report).goes_on() {
                        return self.stop(pass).await;
                    }
                }
                // A store lists them after the tombstones of their tenant; a walk of folders may not, and
                // then they wait for the next pass.
                Key::Listed(listed) if pass.removed_opaque.contains(&listed.object_digest) => {
                    self.sweep_listed(pass, listed, &meta).await?;
                }
                Key::Gone(key) if pass.owns(&key) => self.delete_stray_note(pass, &key, &meta).await?,
                Key::SaltRotation { tenant, namespace, .. } => {
                    pass.rotated.insert((tenant, namespace));
                }
                _ => {}
            }
            self.mark_expired_due(pass).await?;
            self.carry_out_due(pass).await?;
            self.note_gone_due(pass).await?;
        }
        self.evaluate_chunk(pass, group).await?;
        self.mark_expired(pass).await?;
        self.sweep_due(pass).await?;
        if share.has_known_tails() {
            self.collect_known_tails(pass, models).await?;
        }
        if let Some(counting) = counting {
            counting.publish(std::mem::take(&mut pass.count));
            self.collect_expired_salts(pass).await;
            let plan = std::mem::take(&mut pass.capacity_plan);
            self.evict_to_capacity(pass, plan).await?;
        }
        self.evict_chosen(pass).await?;
        self.carry_out(pass).await?;
        self.note_gone(pass).await?;
        if !progress(&pass.report).goes_on() || !lists_all {
            return Ok(());
        }
        self.compact_journal(pass).await?;
        self.sweep_leftovers(pass).await?;
        progress(&pass.report);
        Ok(())
    }

    /// Ends a pass in the middle of its listing.
    async fn stop(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        self.carry_out(pass).await?;
        self.note_gone(pass).await
    }

    async fn compact_journal(&self, pass: &mut GcPass<'_>) -> Result<(), StoreError> {
        // Removals are deleted last, once all other deletions have succeeded: a reader of an entry about a stored
        // chunk must still find its later removal.
        let logs = [
            (JournalLog::Stored, pass.policy.journal_retention),
            (JournalLog::Counted, pass.policy.journal_retention),
            (JournalLog::Removed, pass.policy.removals_kept()),
        ];
        for (log, retention) in logs {
            let folder = self.bucket.layout().log_prefix(log);
            let mut listing = self.bucket.list(&folder, "listing the journal for the collector");
            let (mut old, mut listed) = (Vec::new(), Ok(()));
            while let Some(next) = listing.next().await {
                match next {
                    Ok((Key::Journal { .. }, meta)) if pass.now.age(&meta) >= retention => {
                        old.push(meta.location);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        listed = Err(error);
                        break;
                    }
                }
                if old.len() >= limits::GC_BATCH_OBJECTS {
                    self.delete_batches(pass, std::mem::take(&mut old)).await?;
                }
            }
            // What was listed before an error is deleted, too.
            self.delete_batches(pass, old).await?;
            listed?;
        }
        Ok(())
    }

    /// Deletes old batches of one log, in any order: for readers each is independent of the others, and numbers
    /// may be missing.
    async fn delete_batches(&self, pass: &mut GcPass<'_>, old: Vec<Path>) -> Result<(), StoreError> {
        pass.report.batches_deleted += old.len() as u64;
        if pass.policy.dry_run {
            return Ok(());
        }
        let shared = &*pass;
        let (_, deleted) = concurrently(old, |path| self.delete_batch(shared, path)).await;
        deleted
    }

    async fn delete_batch(&self, pass: &GcPass<'_>, path: Path) -> Result<(), StoreError> {
        pass.pace().await;
        self.bucket.delete(&path).await?;
        self.bucket.reached(Transition::BatchDeleted);
        Ok(())
    }
}

impl<'a> GcPass<'a> {
    /// A pass that begins at `now`.
    fn new(policy: &'a GcPolicy, share: &'a WorkShare, Epoch { n, begun, lists_all }: Epoch) -> Self {
        Self {
            policy,
            share,
            lists_all,
            epoch: n,
            marked: Instant::now(),
            units: None,
            now: begun,
            started: Instant::now(),
            report: GcReport { led: true, listed_all: lists_all, ..GcReport::default() },
            pace: Pace::new(policy.actions_per_second),
            contexts: Contexts::default(),
            listed: None,
            expired: Vec::new(),
            due_tombstones: Vec::new(),
            decided: Decided::default(),
            was_cut_short: false,
            gone: Vec::new(),
            capacity_plan: CapacityPlan::of_pass(n),
            victims: None,
            removed_opaque: HashSet::new(),
            rotated: BTreeSet::new(),
            count: Count::default(),
            // Until it knows how many tenants there are.
            tenant_budget: TenantActionBudget::of(policy, usize::MAX),
        }
    }

    /// Whether a chunk is in one of this pass's units.
    fn owns(&mut self, key: &ChunkKey) -> bool {
        match &self.units {
            Some((tenant, model_id, units)) if *tenant == key.tenant && *model_id == key.model_id => {
                units.contain(&key.seq_hash)
            }
            _ => {
                let units = self.share.units(&key.tenant, &key.model_id);
                self.units = Some((key.tenant.clone(), key.model_id, units));
                units.contain(&key.seq_hash)
            }
        }
    }

    /// Whether the pass was suspended for longer than tombstones live, so that its knowledge is outdated.
    fn is_stale(&self) -> bool {
        self.started.elapsed() >= self.policy.tombstone_retention
    }

    /// Counts a tenant's objects in the store.
    fn count(&mut self, key: &Key, meta: &ObjectMeta) {
        let (tenant, digest) = match key {
            Key::Chunk(key) => (&key.tenant, *key.object_digest.as_bytes()),
            Key::Profile { tenant, profile_hash, .. } => (tenant, *profile_hash.as_bytes()),
            Key::Upload(key) => (&key.chunk.tenant, *blake3::hash(key.upload_id.as_bytes()).as_bytes()),
            Key::Part(key) => (&key.tenant, path_digest(&meta.location)),
            Key::Spec { tenant, .. } | Key::Namespace { tenant, .. } => (tenant, path_digest(&meta.location)),
            Key::Context { tenant, context_id, version } => (tenant, context_digest(context_id, *version)),
            _ => return,
        };
        let is_recent = self.now.age(meta) < limits::LEDGER_RECENT;
        self.count.met(tenant, meta.size, is_recent.then_some(digest));
    }

    /// The result of reading an object; if it failed, `None` with a warning and a count: one object, or one
    /// tenant's lost key, must not stop the collection of all others.
    fn read_or_left<T>(&mut self, key: &ChunkKey, read: Result<T, impl Display>) -> Option<T> {
        let warn = |error| {
            let ChunkKey { tenant, seq_hash, object_digest, .. } = key;
            tracing::warn!(%error, %tenant, %seq_hash, %object_digest, "the collector skips an object that it cannot read");
            self.report.unread += 1;
        };
        read.map_err(warn).ok()
    }
}
