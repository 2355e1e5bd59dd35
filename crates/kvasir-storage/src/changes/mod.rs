//! Changes and their subscribers: the journal for other replicas, events for routers, the ledger for quotas.
//!
//! [`Changes::publish`] is the only place where a change of this replica is distributed to all of them. It
//! only touches memory, so no acknowledgement waits for it.

pub(crate) mod count;
pub mod events;
pub(crate) mod journal;
pub(crate) mod ledger;
mod tombstones;
mod usage;

use std::{sync::Arc, time::Duration};

use kvasir_types::{ModelId, Name};

pub use self::journal::JournalReading;
pub(crate) use self::usage::{context_digest, path_digest};
use self::{
    events::EventLog,
    journal::{Journal, JournalEntry},
    ledger::{Ledger, Stored},
};
use crate::{
    bucket::Bucket,
    catalog::Catalog,
    index::{IndexEntry, Scope},
    read::Reads,
};

/// This replica's own changes, and other replicas' changes that it receives.
#[derive(Debug)]
pub struct Changes {
    bucket: Arc<Bucket>,
    catalog: Arc<Catalog>,
    reads: Arc<Reads>,
    events: EventLog,
    journal: Journal,
    /// Each tenant's usage of the store.
    ledger: Arc<Ledger>,
    /// How long removals are kept in the journal.
    removals_kept: Duration,
}

impl Changes {
    pub(crate) fn new(
        bucket: Arc<Bucket>,
        catalog: Arc<Catalog>,
        reads: Arc<Reads>,
        removals_kept: Duration,
    ) -> Self {
        let journal = Journal::new(&reads.index().index().log_positions());
        let events = EventLog::new(journal.replica().as_str());
        Self { bucket, catalog, reads, events, journal, ledger: Arc::default(), removals_kept }
    }

    /// The name of this process among all that write to the store.
    pub(crate) fn replica(&self) -> &Name {
        self.journal.replica()
    }

    /// Publishes a chunk object that this replica has stored. Its namespace is the one that its writer named,
    /// otherwise that of its parent chunk, if this replica has seen that. `since_ms` is the store's time at
    /// which the object existed, before its tombstone was checked.
    pub(crate) fn publish_stored(
        &self,
        tenant: Name,
        model_id: ModelId,
        entry: &Arc<IndexEntry>,
        block_hashes: Vec<[u8; 8]>,
        namespace: Option<Name>,
        since_ms: Option<i64>,
    ) {
        let scope = Scope::new(&tenant, &model_id);
        let known = || self.catalog.label(scope, &entry.row.seq_hash, Some(entry.parent_hash));
        let namespace = namespace.or_else(known);
        let entry = Arc::clone(entry);
        self.publish(JournalEntry::Stored { tenant, model_id, entry, block_hashes, namespace, since_ms });
    }

    /// Publishes a change made by this replica.
    pub(crate) fn publish(&self, entry: JournalEntry) {
        self.note_labels(&entry);
        if let Some(event) = self.event_of(&entry, self.journal.replica()) {
            self.events.push(event);
        }
        let stored = match &entry {
            JournalEntry::Stored { tenant, entry, since_ms, .. } => {
                let (row, stored_ms) = (&entry.row, since_ms.or_else(|| self.bucket.now_ms()));
                let digest = *row.object_digest.as_bytes();
                Some((tenant.clone(), digest, Stored::one(row.object_bytes), stored_ms))
            }
            _ => None,
        };
        let n = self.journal.push(entry);
        if let Some((tenant, digest, stored, stored_ms)) = stored {
            self.ledger.note(&tenant, digest, stored, (self.journal.replica(), n), stored_ms);
        }
    }
}
