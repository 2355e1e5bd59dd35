//! The tenant keys: random, wrapped by the key service, kept beside the tenant's objects.
//!
//! `{tenant}/k/{id of the tenant key}/{id of the wrapping key}` is written once and never changed, so that no two writers
//! can take a key from each other: two first writers make two tenant keys, and both stay in use.

use std::{collections::HashMap, sync::Arc};

use futures::TryStreamExt;
use kvasir_types::Name;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, Result};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::{KeyService, KeyServiceError, plain_prefix::TenantKeyId, segments::KeyBytes};
use crate::layout::{Key, Layout};

/// The tenant keys that this process has opened.
#[derive(Debug)]
pub(super) struct Keyring {
    pub(super) service: Arc<dyn KeyService>,
    layout: Layout,
    opened: Mutex<HashMap<(Name, TenantKeyId), Opened>>,
}

#[derive(Clone)]
struct Opened {
    key: Arc<KeyBytes>,
    /// Under which it is wrapped.
    by: Name,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// Why a sealed object cannot be read or written; travels as the source of a store's error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SealError {
    #[error(transparent)]
    Key(#[from] KeyServiceError),
    #[error(
        "the tenant key {id} of tenant {tenant} is not in the store, and what was sealed under it stays closed; remove those chunks"
    )]
    Lost { tenant: Name, id: String },
    #[error("the object does not open: it was altered, or is not the one that was asked for")]
    Altered,
    #[error("sealed objects are not copied: their place is part of what was sealed")]
    Copied,
}

impl SealError {
    fn lost(tenant: &Name, id: &TenantKeyId) -> Self {
        Self::Lost { tenant: tenant.clone(), id: format!("{:032x}", u128::from_be_bytes(*id)) }
    }

    /// Whether a key is missing, rather than the object wrong.
    pub(crate) fn is_lost_key(&self) -> bool {
        matches!(self, Self::Key(_) | Self::Lost { .. })
    }

    /// The sealing error behind a store's error, where there is one.
    pub(crate) fn of(error: &object_store::Error) -> Option<&Self> {
        let object_store::Error::Generic { source, .. } = error else { return None };
        source.downcast_ref()
    }
}

impl From<SealError> for object_store::Error {
    fn from(error: SealError) -> Self {
        Self::Generic { store: "sealed", source: Box::new(error) }
    }
}

impl Keyring {
    pub(super) fn new(service: Arc<dyn KeyService>, layout: Layout) -> Self {
        Self { service, layout, opened: Mutex::default() }
    }

    /// The key for what is new of `tenant`: the first one by id, made if there is none.
    pub(super) async fn newest(
        &self,
        store: &dyn ObjectStore,
        tenant: &Name,
    ) -> Result<(TenantKeyId, Arc<KeyBytes>)> {
        let known = self.opened.lock().keys().filter(|(whose, _)| whose == tenant).map(|(_, id)| *id).min();
        if let Some(id) = known {
            return Ok((id, self.key(store, tenant, &id).await?));
        }
        let listed = self.listed(store, tenant).await?;
        if let Some(id) = listed.iter().map(|(id, _)| *id).min() {
            return Ok((id, self.key(store, tenant, &id).await?));
        }
        let key: Arc<KeyBytes> = Arc::new(Zeroizing::new(rand::random()));
        let mut id = TenantKeyId::default();
        id.copy_from_slice(&blake3::derive_key("kvasir 2026 tenant key id", &key[..])[..16]);
        let current = self.service.current(tenant).ok_or_else(|| SealError::lost(tenant, &id))?;
        self.write(store, tenant, &id, &key, current).await?;
        Ok((id, self.key(store, tenant, &id).await?))
    }

    /// A tenant key by its id; wrapped anew if the key service has a newer wrapping key.
    pub(super) async fn key(
        &self,
        store: &dyn ObjectStore,
        tenant: &Name,
        id: &TenantKeyId,
    ) -> Result<Arc<KeyBytes>> {
        let current = self.service.current(tenant);
        let found = self.opened.lock().get(&(tenant.clone(), *id)).cloned();
        let opened = match found {
            Some(opened) => opened,
            None => self.open(store, tenant, id, current.as_ref()).await?,
        };
        if let Some(current) = current.filter(|current| *current != opened.by) {
            self.write(store, tenant, id, &opened.key, current.clone()).await?;
            tracing::info!(%tenant, key = %current, "a tenant key is wrapped anew; the wrapping key before it may go once every replica has said so");
        }
        Ok(opened.key)
    }

    async fn open(
        &self,
        store: &dyn ObjectStore,
        tenant: &Name,
        id: &TenantKeyId,
        current: Option<&Name>,
    ) -> Result<Opened> {
        let wrapped_by = self.listed(store, tenant).await?.into_iter().filter(|(found, _)| found == id);
        let mut wrapped_by: Vec<Name> = wrapped_by.map(|(_, by)| by).collect();
        // The current wrapping key first; of the others whichever is still there.
        wrapped_by.sort_by_key(|by| Some(by) != current);
        let mut last = SealError::lost(tenant, id);
        for by in wrapped_by {
            let place = self.place(tenant, id, &by);
            let wrapped = store.get(&place).await?.bytes().await?;
            match self.service.unwrap(tenant, &by, &wrapped, place.as_ref().as_bytes()).await {
                Ok(key) => {
                    let opened = Opened { key: Arc::new(key), by };
                    self.opened.lock().insert((tenant.clone(), *id), opened.clone());
                    return Ok(opened);
                }
                Err(error) => last = error.into(),
            }
        }
        Err(last.into())
    }

    async fn write(
        &self,
        store: &dyn ObjectStore,
        tenant: &Name,
        id: &TenantKeyId,
        key: &Arc<KeyBytes>,
        by: Name,
    ) -> Result<()> {
        let place = self.place(tenant, id, &by);
        let wrapped =
            self.service.wrap(tenant, &by, key, place.as_ref().as_bytes()).await.map_err(SealError::from)?;
        store.put(&place, PutPayload::from(wrapped)).await?;
        self.opened.lock().insert((tenant.clone(), *id), Opened { key: Arc::clone(key), by });
        Ok(())
    }

    async fn listed(&self, store: &dyn ObjectStore, tenant: &Name) -> Result<Vec<(TenantKeyId, Name)>> {
        let listed: Vec<_> = store.list(Some(&self.layout.tenant_keys_prefix(tenant))).try_collect().await?;
        let keys = listed.iter().filter_map(|meta| match self.layout.parse(&meta.location) {
            Some(Key::TenantKey { id, wrapped_by, .. }) => Some((id, wrapped_by)),
            _ => None,
        });
        Ok(keys.collect())
    }

    fn place(&self, tenant: &Name, id: &TenantKeyId, by: &Name) -> object_store::path::Path {
        self.layout.path(&Key::TenantKey { tenant: tenant.clone(), id: *id, wrapped_by: by.clone() })
    }
}
