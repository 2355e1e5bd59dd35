//! Entries of sealed tenants: in a batch they are in boxes, one per tenant.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use bytes::Bytes;
use kvasir_store::{
    StoreError,
    seal::{Purpose, SealError},
};
use kvasir_types::Name;
use object_store::path::Path;

use super::super::Changes;
use super::{
    JournalEntry, Log,
    entry::{Batch, decode, decode_entries, encode, encode_entries},
};

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

    /// The entries of a batch that this replica may use, and the number of skipped parts: boxes of tenants
    /// whose key it does not have, and unsealed entries of tenants with a key. `None` if the bytes are not a
    /// valid batch, or a box of a tenant with a key was altered.
    ///
    /// # Errors
    /// [`StoreError::Request`]: a key could not be fetched.
    pub(super) async fn decode_batch(
        &self,
        path: &Path,
        bytes: &Bytes,
    ) -> Result<Option<(Vec<JournalEntry>, u64)>, StoreError> {
        let keyring = self.bucket.open().keyring();
        let Some(Batch { mut entries, sealed, unknown: mut skipped }) = decode(bytes) else {
            return Ok(None);
        };
        let before = entries.len();
        entries.retain(|entry| !keyring.seals(entry.tenant()));
        skipped += (before - entries.len()) as u64;
        for (tenant, sealed) in sealed {
            let place = self.place_of(path, &tenant);
            match keyring.open(&tenant, Purpose::Journal, &place, &sealed).await {
                Ok(opened) => {
                    let Some(inner) = decode_entries(&opened) else { return Ok(None) };
                    let own = inner.entries.into_iter().filter(|entry| *entry.tenant() == tenant);
                    entries.extend(own);
                    skipped += inner.unknown;
                }
                Err(error) if SealError::of(&error).is_some_and(SealError::is_lost_key) => {
                    tracing::debug!(%error, %path, %tenant, "skipping a sealed part of a journal batch");
                    skipped += 1;
                }
                Err(error) if SealError::of(&error).is_some() => return Ok(None),
                Err(error) => return Err(StoreError::request("reading the journal")(error)),
            }
        }
        Ok(Some((entries, skipped)))
    }

    fn place_of(&self, batch: &Path, tenant: &Name) -> String {
        format!("{}\n{tenant}", self.bucket.open().keyring().place(batch))
    }
}
