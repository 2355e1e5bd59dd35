//! Entries of sealed tenants: in a batch they are in boxes, one per tenant.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
};

use bytes::Bytes;
use kvasir_store::{
    StoreError,
    layout::JournalLog,
    seal::{Purpose, SealError},
};
use kvasir_types::Name;
use object_store::path::Path;

use super::super::Changes;
use super::{
    JournalEntry, Log,
    entry::{Batch, decode, decode_entries, encode, encode_entries},
};
use crate::limits;

/// A batch of another replica, as far as this one may use it.
pub(super) struct OpenedBatch {
    pub(super) entries: Vec<JournalEntry>,
    /// Number of skipped parts: boxes of tenants whose key this replica does not have, unsealed entries of tenants with a key,
    /// and entries of kinds that this version does not know.
    pub(super) skipped: u64,
    /// Tenants with a key here whose box did not open for want of that key.
    pub(super) unopened: Vec<Name>,
    pub(super) opened: Vec<Name>,
}

/// What this replica could not read of other replicas' removals, and emptied its index for.
#[derive(Debug, Default)]
pub(super) struct UnreadableRemovals {
    /// Tenants whose key was not available.
    tenants: BTreeSet<Name>,
    damaged: BTreeSet<(Name, u64)>,
}

impl UnreadableRemovals {
    /// Records a batch of removals that is being applied. Returns whether it is the first of some tenant that does not open: until
    /// one opens, rows of that tenant cannot come back.
    pub(super) fn note_opened(&mut self, batch: &OpenedBatch) -> bool {
        for tenant in &batch.opened {
            self.tenants.remove(tenant);
        }
        if self.tenants.len() > limits::JOURNAL_UNREADABLE_MAX {
            self.tenants.clear();
        }
        let before = self.tenants.len();
        self.tenants.extend(batch.unopened.iter().cloned());
        self.tenants.len() > before
    }

    /// Records a damaged batch. Returns whether it is new.
    pub(super) fn note_damaged(&mut self, replica: &Name, n: u64) -> bool {
        if self.damaged.len() > limits::JOURNAL_UNREADABLE_MAX {
            self.damaged.clear();
        }
        self.damaged.insert((replica.clone(), n))
    }
}

impl Changes {
    /// Encodes a batch. Entries of a tenant whose key is unavailable are left out and count as dropped, so
    /// that they do not block other tenants' entries.
    ///
    /// # Errors
    /// [`StoreError::Request`].
    pub(super) async fn encode_batch(
        &self,
        log: &Log,
        path: &Path,
        entries: &[JournalEntry],
    ) -> Result<Vec<u8>, StoreError> {
        let keyring = self.bucket.open().keyring();
        let mut batch = Batch::default();
        let mut to_seal: BTreeMap<&Name, Vec<&JournalEntry>> = BTreeMap::new();
        for entry in entries {
            match keyring.seals(entry.tenant()) {
                true => to_seal.entry(entry.tenant()).or_default().push(entry),
                // Replicas with the tenant's key would skip a plain removal.
                false
                    if log.log == JournalLog::Removed && self.is_sealed_elsewhere(entry.tenant()).await? =>
                {
                    log.dropped.fetch_add(1, Ordering::Relaxed);
                }
                false => batch.entries.push(entry.clone()),
            }
        }
        for (tenant, entries) in to_seal {
            let (place, count) = (self.place_of(path, tenant), entries.len() as u64);
            match keyring.seal(tenant, Purpose::Journal, &place, &encode_entries(entries)).await {
                Ok(sealed) => batch.sealed.push((tenant.clone(), sealed.into())),
                Err(error) if SealError::of(&error).is_some() => {
                    tracing::error!(%error, %tenant, count, "journal entries of a tenant cannot be sealed and are dropped");
                    log.dropped.fetch_add(count, Ordering::Relaxed);
                }
                Err(error) => return Err(StoreError::request("appending to the journal")(error)),
            }
        }
        Ok(encode(&batch))
    }

    async fn is_sealed_elsewhere(&self, tenant: &Name) -> Result<bool, StoreError> {
        match self.bucket.open().keyring().is_plain(tenant).await {
            Ok(_) => Ok(false),
            Err(error) if SealError::of(&error).is_some() => {
                tracing::error!(%error, "a removal of a sealed tenant cannot be announced and is dropped");
                Ok(true)
            }
            Err(error) => Err(StoreError::request("appending to the journal")(error)),
        }
    }

    /// The entries of a batch that this replica may use. `None` if the bytes are not a valid batch, or a box of a tenant with a
    /// key was altered.
    ///
    /// # Errors
    /// [`StoreError::Request`]: a key could not be fetched.
    pub(super) async fn decode_batch(
        &self,
        path: &Path,
        bytes: &Bytes,
    ) -> Result<Option<OpenedBatch>, StoreError> {
        let keyring = self.bucket.open().keyring();
        let Some(Batch { mut entries, sealed, unknown: mut skipped }) = decode(bytes) else {
            return Ok(None);
        };
        let before = entries.len();
        entries.retain(|entry| !keyring.seals(entry.tenant()));
        skipped += (before - entries.len()) as u64;
        let (mut opened_tenants, mut unopened) = (Vec::new(), Vec::new());
        for (tenant, sealed) in sealed {
            let place = self.place_of(path, &tenant);
            match keyring.open(&tenant, Purpose::Journal, &place, &sealed).await {
                Ok(opened) => {
                    let Some(inner) = decode_entries(&opened) else { return Ok(None) };
                    let own = inner.entries.into_iter().filter(|entry| *entry.tenant() == tenant);
                    entries.extend(own);
                    skipped += inner.unknown;
                    opened_tenants.push(tenant);
                }
                Err(error) if SealError::of(&error).is_some_and(SealError::is_lost_key) => {
                    tracing::debug!(%error, %path, %tenant, "skipping a sealed part of a journal batch");
                    skipped += 1;
                    if keyring.seals(&tenant) {
                        unopened.push(tenant);
                    }
                }
                Err(error) if SealError::of(&error).is_some() => return Ok(None),
                Err(error) => return Err(StoreError::request("reading the journal")(error)),
            }
        }
        Ok(Some(OpenedBatch { entries, skipped, unopened, opened: opened_tenants }))
    }

    fn place_of(&self, batch: &Path, tenant: &Name) -> String {
        format!("{}\n{tenant}", self.bucket.open().keyring().place(batch))
    }
}
